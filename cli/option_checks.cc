#include "cli/option_checks.h"

#include <string>

#include "absl/strings/numbers.h"

#include "base/strings.h"

namespace penstock::cli {

CLI::Validator AtLeast(int64_t least) {
  const auto check = [least](std::string& text) -> std::string {
    int64_t value = 0;
    if (!absl::SimpleAtoi(text, &value)) return StrCat("expected an integer, not '", text, "'");
    if (value < least) return StrCat("must be at least ", least, ", not ", value);
    return "";
  };
  return CLI::Validator(check, "", "");
}

}  // namespace penstock::cli
