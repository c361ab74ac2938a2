// A program that a test runs as a process of its own, with what it prints.
//
// Thread rule: one thread. Invariant: the process is killed and reaped with the object.

#ifndef PENSTOCK_TESTS_SUPPORT_PROGRAM_H_
#define PENSTOCK_TESTS_SUPPORT_PROGRAM_H_

#include <chrono>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "actors/cluster/child_process.h"

namespace penstock::testing {

class Program {
 public:
  // Fails the test where it cannot be started; the object is then of no use.
  explicit Program(std::vector<std::string> arguments,
                   std::vector<std::pair<std::string, std::string>> environment = {});
  ~Program();
  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  int pid() const { return child_->pid(); }
  // Standard output and error so far.
  const std::string& output() const { return output_; }

  // Reads on until the output holds `text`; false at its end, or where a minute passes.
  [[nodiscard]] bool AwaitOutput(std::string_view text);

  // The same for the whole line that holds `text`.
  [[nodiscard]] bool AwaitLine(std::string_view text);

  // Waits for the end, a minute at most; the status as a shell tells it.
  std::optional<int> AwaitEnd();

 private:
  // False at the end of the output, or when there is none for a while.
  bool ReadSome(int timeout_ms = 60'000);

  std::optional<actors::ChildProcess> child_;
  int output_fd_ = -1;
  std::string output_;
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_PROGRAM_H_
