// Runs a program of examples/ as a shell does.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_RUN_EXAMPLE_H_
#define PENSTOCK_TESTS_SUPPORT_RUN_EXAMPLE_H_

#include <string>
#include <string_view>
#include <vector>

namespace penstock::testing {

struct ExampleRun {
  int exit_status = 0;  // -1: ended by a signal
  std::string output;   // standard output and errors
};

// The example in the folder `name`; `arguments` are words of the shell.
ExampleRun RunExample(std::string_view name, std::string_view arguments = "");

// The numbers that follow `word` and a space in the text, in order.
std::vector<double> NumbersAfter(std::string_view text, std::string_view word);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_RUN_EXAMPLE_H_
