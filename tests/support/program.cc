#include "tests/support/program.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include "gtest/gtest.h"

namespace penstock::testing {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kPatience{60};

}  // namespace

Program::Program(std::vector<std::string> arguments,
                 std::vector<std::pair<std::string, std::string>> environment) {
  actors::ChildCommand command;
  command.arguments = std::move(arguments);
  command.environment = std::move(environment);
  absl::StatusOr<actors::ChildProcess> child = actors::ChildProcess::Start(command);
  EXPECT_TRUE(child.ok()) << child.status();
  child_.emplace(*std::move(child));
  output_fd_ = child_->TakeOutputFd();
  fcntl(output_fd_, F_SETFL, O_NONBLOCK);
}

Program::~Program() { close(output_fd_); }

bool Program::AwaitOutput(std::string_view text) {
  const auto begin = Clock::now();
  while (output_.find(text) == std::string::npos) {
    if (Clock::now() - begin > kPatience || !ReadSome()) return false;
  }
  return true;
}

bool Program::AwaitLine(std::string_view text) {
  if (!AwaitOutput(text)) return false;
  const size_t begin = output_.find(text);
  while (output_.find('\n', begin) == std::string::npos) {
    if (!ReadSome()) return false;
  }
  return true;
}

std::optional<int> Program::AwaitEnd() {
  const auto begin = Clock::now();
  while (Clock::now() - begin < kPatience) {
    while (ReadSome(10)) {
    }
    if (const std::optional<int> status = child_->Reap()) {
      while (ReadSome(0)) {
      }
      return actors::ShellStatus(*status);
    }
  }
  return std::nullopt;
}

bool Program::ReadSome(int timeout_ms) {
  pollfd poll_fd = {output_fd_, POLLIN, 0};
  if (poll(&poll_fd, 1, timeout_ms) <= 0) return false;
  char buffer[4096];
  const ssize_t num_bytes = read(output_fd_, buffer, sizeof(buffer));
  if (num_bytes <= 0) return false;
  output_.append(buffer, static_cast<size_t>(num_bytes));
  return true;
}

}  // namespace penstock::testing
