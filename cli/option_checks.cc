#include "cli/option_checks.h"

#include <cmath>
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

CLI::Validator NotNegative() {
  const auto check = [](std::string& text) -> std::string {
    double value = 0;
    if (!absl::SimpleAtod(text, &value)) return StrCat("expected a number, not '", text, "'");
    if (!(value >= 0) || !std::isfinite(value)) {
      return StrCat("expected a number of at least 0, not ", text);
    }
    return "";
  };
  return CLI::Validator(check, "", "");
}

absl::Status AtOption(std::string_view option, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(option, " ", ToStd(status.message())));
}

}  // namespace penstock::cli
