// Checks of the values of command-line options, with errors in our words.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_OPTION_CHECKS_H_
#define PENSTOCK_CLI_OPTION_CHECKS_H_

#include <cstdint>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"

// CLI/CLI.hpp takes 5 seconds to compile, so files that call these checks include it themselves.
namespace CLI {
class Validator;
}

namespace penstock::cli {

// An integer of at least `least`: "--devices: must be at least 1, not 0".
CLI::Validator AtLeast(int64_t least);

// A finite number that is not negative.
CLI::Validator NotNegative();

// A length of time, as of `timeout`: seconds, or a number with s, m, h or d. Longer than nothing.
CLI::Validator TimeLimit();
// REQUIRES: TimeLimit takes the text.
absl::Duration ParseTimeLimit(std::string_view text);

// The error with the option before it: "--listen ...".
absl::Status AtOption(std::string_view option, const absl::Status& status);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_OPTION_CHECKS_H_
