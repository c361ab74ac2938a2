#include "cli/option_checks.h"

#include <cmath>
#include <string>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

// In seconds; 0: it is none.
double SecondsOf(std::string_view text) {
  static constexpr std::string_view kUnits = "smhd";
  static constexpr double kSeconds[] = {1, 60, 3600, 86400};
  double unit = 1;
  if (const size_t at = text.empty() ? kUnits.npos : kUnits.find(text.back()); at != kUnits.npos) {
    unit = kSeconds[at];
    text.remove_suffix(1);
  }
  double value = 0;
  if (!absl::SimpleAtod(std::string(text), &value) || !std::isfinite(value)) return 0;
  return value * unit;
}

}  // namespace

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

CLI::Validator TimeLimit() {
  const auto check = [](std::string& text) -> std::string {
    if (SecondsOf(text) > 0) return "";
    return StrCat("expected a time such as 90, 90s, 30m, 2h or 1d, not '", text, "'");
  };
  return CLI::Validator(check, "", "");
}

absl::Duration ParseTimeLimit(std::string_view text) { return absl::Seconds(SecondsOf(text)); }

absl::Status AtOption(std::string_view option, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(option, " ", ToStd(status.message())));
}

}  // namespace penstock::cli
