#include "tests/support/run_example.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::testing {

ExampleRun RunExample(std::string_view name, std::string_view arguments) {
  const std::string command = StrCat(PENSTOCK_EXAMPLES "/example_", name, " ", arguments, " 2>&1");
  ExampleRun run;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) {
    ADD_FAILURE() << "cannot start " << command;
    return run;
  }
  char buffer[4096];
  for (size_t n = 0; (n = fread(buffer, 1, sizeof(buffer), pipe)) > 0;)
    run.output.append(buffer, n);
  const int status = pclose(pipe);
  run.exit_status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return run;
}

std::vector<double> NumbersAfter(std::string_view text, std::string_view word) {
  const std::string label = StrCat(word, " ");
  std::vector<double> numbers;
  for (size_t at = text.find(label); at != std::string_view::npos; at = text.find(label, at)) {
    at += label.size();
    numbers.push_back(strtod(std::string(text.substr(at)).c_str(), nullptr));
  }
  return numbers;
}

}  // namespace penstock::testing
