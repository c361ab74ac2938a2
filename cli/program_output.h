// Runs a short program and returns what it prints.
//
// Thread rule: blocks its caller, for ten seconds at most.

#ifndef PENSTOCK_CLI_PROGRAM_OUTPUT_H_
#define PENSTOCK_CLI_PROGRAM_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace penstock::cli {

// Of its standard output and error together, without the last newline. An error names the program,
// and says what it has printed.
absl::StatusOr<std::string> OutputOf(std::vector<std::string> arguments, const std::string& input);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PROGRAM_OUTPUT_H_
