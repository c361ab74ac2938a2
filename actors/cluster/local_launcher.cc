#include <signal.h>
#include <sys/wait.h>

#include <utility>

#include "actors/cluster/child_process.h"
#include "actors/cluster/local_launcher_internal.h"
#include "actors/cluster/oom_kills.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// Behind "was killed by signal 9 (Killed)".
constexpr std::string_view kOfStarter =
    ", which ended the program on this host that had started the node";

// The wait status of a remote process, from that of the program that has started it.
int OfRemote(int wait_status) {
  constexpr int kOfSignals = 128;
  if (!WIFEXITED(wait_status)) return wait_status;
  const int signal_number = WEXITSTATUS(wait_status) - kOfSignals;
  return signal_number > 0 && signal_number < NSIG ? signal_number : wait_status;
}

}  // namespace

absl::StatusOr<LaunchedProcess> LocalLauncher::Launch(const LaunchCommand& command) {
  const uint32_t rank = command.rank;
  if (processes_.contains(rank)) {
    return absl::FailedPreconditionError(StrCat("rank ", rank, " was launched before"));
  }
  ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start({command.arguments, command.environment,
                                                            command.cores, command.input}));
  const bool is_remote = !command.remote_host.empty();
  const int pid = is_remote ? 0 : child.pid();
  processes_[rank] = std::make_unique<LocalProcess>(
      io_, std::move(child),
      [this, rank](std::string_view line) {
        if (events_.on_line) events_.on_line(rank, line);
      },
      [this, rank, is_remote, num_kills = OutOfMemoryKills()](int wait_status) {
        std::string_view note;
        if (is_remote && WIFSIGNALED(wait_status)) {
          note = kOfStarter;
        } else if (is_remote) {
          wait_status = OfRemote(wait_status);
        } else if (WIFSIGNALED(wait_status) && WTERMSIG(wait_status) == SIGKILL &&
                   OutOfMemoryKills() > num_kills) {
          note = kProbablyOutOfMemory;
        }
        if (events_.on_exit) events_.on_exit(rank, wait_status, note);
      });
  return LaunchedProcess{pid, is_remote ? command.remote_host : HostName()};
}

bool LocalLauncher::IsFinished(uint32_t rank) {
  const auto it = processes_.find(rank);
  return it == processes_.end() || it->second->is_finished();
}

void LocalLauncher::Kill(uint32_t rank) {
  const auto it = processes_.find(rank);
  if (it != processes_.end()) it->second->Kill();
}

}  // namespace penstock::actors
