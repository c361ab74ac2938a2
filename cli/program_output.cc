#include "cli/program_output.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "actors/cluster/child_process.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr absl::Duration kProgramTimeout = absl::Seconds(10);
constexpr size_t kMaxOutputBytes = size_t{64} << 10;

// Whether the descriptor can be read before the deadline.
bool AwaitInput(int fd, absl::Time deadline) {
  while (true) {
    pollfd entry = {fd, POLLIN, 0};
    const int64_t left_ms = absl::ToInt64Milliseconds(deadline - absl::Now());
    if (left_ms <= 0) return false;
    const int ready = poll(&entry, 1, static_cast<int>(left_ms));
    if (ready > 0) return true;
    if (ready < 0 && errno != EINTR) return false;
  }
}

}  // namespace

absl::StatusOr<ProgramOutput> EndOf(std::vector<std::string> arguments, const std::string& input) {
  const std::string program = arguments[0];
  ASSIGN_OR_RETURN(
      actors::ChildProcess child,
      actors::ChildProcess::Start(
          {.arguments = std::move(arguments), .environment = {}, .cores = {}, .input = input}));
  const int fd = child.TakeOutputFd();
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const absl::Time deadline = absl::Now() + kProgramTimeout;
  std::string output;
  std::array<char, 4096> bytes{};
  while (output.size() < kMaxOutputBytes && AwaitInput(fd, deadline)) {
    const ssize_t num_read = read(fd, bytes.data(), bytes.size());
    if (num_read < 0 && errno == EINTR) continue;
    if (num_read <= 0) break;
    output.append(bytes.data(), static_cast<size_t>(num_read));
  }
  std::optional<int> status;
  if (AwaitInput(child.exit_fd(), deadline)) status = child.Reap();
  while (!output.empty() && output.back() == '\n') output.pop_back();
  if (!status.has_value()) {
    return absl::DeadlineExceededError(
        StrCat(program, " has not answered within ", absl::FormatDuration(kProgramTimeout)));
  }
  return ProgramOutput{program, std::move(output), *status};
}

absl::Status FailureOf(const ProgramOutput& output) {
  return absl::UnavailableError(StrCat(output.program, " ",
                                       actors::DescribeWaitStatus(output.wait_status), ": ",
                                       output.text.substr(0, 200)));
}

absl::StatusOr<std::string> OutputOf(std::vector<std::string> arguments, const std::string& input) {
  ASSIGN_OR_RETURN(ProgramOutput output, EndOf(std::move(arguments), input));
  if (output.wait_status == 0) return std::move(output.text);
  return FailureOf(output);
}

}  // namespace penstock::cli
