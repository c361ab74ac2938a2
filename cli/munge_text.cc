#include "cli/munge_text.h"

#include <errno.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"

#include "actors/cluster/child_process.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::cli {
namespace {

constexpr std::string_view kPrefix = "MUNGE:";
constexpr absl::Duration kTimeout = absl::Seconds(10);
constexpr size_t kMaxOutputBytes = size_t{64} << 10;
// Hosts may start one after another, and slowly.
constexpr char kLife[] = "--ttl=3600";

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

// The last line that a program prints, which is done in time and does not fail. Warnings, which go
// to the same pipe, come before.
absl::StatusOr<std::string> OutputOf(std::vector<std::string> arguments, const std::string& input) {
  const std::string program = arguments[0];
  ASSIGN_OR_RETURN(
      actors::ChildProcess child,
      actors::ChildProcess::Start(
          {.arguments = std::move(arguments), .environment = {}, .cores = {}, .input = input}));
  const int fd = child.TakeOutputFd();
  const auto close_fd = absl::MakeCleanup([fd] { close(fd); });
  const absl::Time deadline = absl::Now() + kTimeout;
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
        StrCat(program, " has not answered within ", absl::FormatDuration(kTimeout)));
  }
  if (*status == 0) return output.substr(output.rfind('\n') + 1);
  return absl::UnavailableError(
      StrCat(program, " ", actors::DescribeWaitStatus(*status), ": ", output.substr(0, 200)));
}

}  // namespace

absl::StatusOr<std::string> SealWithMunge(const std::string& text) {
  ASSIGN_OR_RETURN(std::string line,
                   OutputOf({"munge", StrCat("--restrict-uid=", geteuid()), kLife}, text));
  if (IsSealedWithMunge(line)) return line;
  return absl::UnavailableError("munge has printed no credential");
}

bool IsSealedWithMunge(std::string_view line) { return line.substr(0, kPrefix.size()) == kPrefix; }

absl::StatusOr<std::string> OpenWithMunge(const std::string& line) {
  return OutputOf({"unmunge", "--metadata=/dev/null"}, StrCat(line, "\n"));
}

std::function<absl::StatusOr<std::string>(const std::string& key)> KeySealFor(
    const std::vector<actors::NodePlace>& places) {
  const bool is_sent = !places.empty() && !places[0].through.empty() && places[0].key_file.empty();
  if (!is_sent || places[0].joins_arguments || std::getenv("SLURM_JOB_ID") == nullptr ||
      !SealWithMunge("test").ok()) {
    return nullptr;
  }
  return SealWithMunge;
}

}  // namespace penstock::cli
