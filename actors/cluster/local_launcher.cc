#include <utility>

#include "actors/cluster/child_process.h"
#include "actors/cluster/local_launcher_internal.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

absl::StatusOr<LaunchedProcess> LocalLauncher::Launch(const LaunchCommand& command) {
  const uint32_t rank = command.rank;
  if (processes_.contains(rank)) {
    return absl::FailedPreconditionError(StrCat("rank ", rank, " was launched before"));
  }
  ASSIGN_OR_RETURN(ChildProcess child,
                   ChildProcess::Start({command.arguments, command.environment, command.cores}));
  const int pid = child.pid();
  processes_[rank] = std::make_unique<LocalProcess>(
      io_, std::move(child),
      [this, rank](std::string_view line) {
        if (events_.on_line) events_.on_line(rank, line);
      },
      [this, rank](int wait_status) {
        if (events_.on_exit) events_.on_exit(rank, wait_status);
      });
  return LaunchedProcess{pid, HostName()};
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
