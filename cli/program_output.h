// Runs a short program and returns what it prints.
//
// Thread rule: blocks its caller, for ten seconds at most.

#ifndef PENSTOCK_CLI_PROGRAM_OUTPUT_H_
#define PENSTOCK_CLI_PROGRAM_OUTPUT_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace penstock::cli {

struct ProgramOutput {
  std::string program;
  std::string text;     // of its standard output and error together, without the last newlines
  int wait_status = 0;  // as waitpid gives it
};

// An error names the program.
absl::StatusOr<ProgramOutput> EndOf(std::vector<std::string> arguments, const std::string& input);

// What an error says of a program that has ended otherwise than it should, with some of its text.
absl::Status FailureOf(const ProgramOutput& output);

// The text of a program that ends with status 0. An error says what another one has printed.
absl::StatusOr<std::string> OutputOf(std::vector<std::string> arguments, const std::string& input);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PROGRAM_OUTPUT_H_
