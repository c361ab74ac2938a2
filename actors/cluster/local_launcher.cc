#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "actors/cluster/child_process.h"
#include "actors/cluster/host_agent.h"
#include "actors/cluster/local_launcher_internal.h"
#include "actors/cluster/oom_kills.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

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
  for (uint32_t i = 0; i < std::max(command.agent_ranks, 1u); ++i) {
    if (HasLaunched(rank + i)) {
      return absl::FailedPreconditionError(StrCat("rank ", rank + i, " was launched before"));
    }
  }
  ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start({command.arguments, command.environment,
                                                            command.cores, command.input}));
  const bool is_remote = !command.remote_host.empty();
  const int pid = is_remote ? 0 : child.pid();
  if (is_remote) starters_.insert(rank);
  if (is_remote && on_starter_) on_starter_(child.pid(), child.exit_fd());
  for (uint32_t i = 0; i < command.agent_ranks; ++i) agent_ranks_[rank + i].first = rank;
  processes_[rank] = std::make_unique<LocalProcess>(
      io_, std::move(child),
      [this, rank, is_agent = command.agent_ranks > 0](std::string_view line) {
        OnLine(rank, is_agent, line);
      },
      [this, rank, is_remote, agent_ranks = command.agent_ranks,
       num_kills = OutOfMemoryKills()](int wait_status) {
        std::string note;  // behind "was killed by signal 9 (Killed)"
        if (is_remote && WIFSIGNALED(wait_status)) {
          note = StrCat(", which ended the program on ", here_, " that had started the node");
        } else if (is_remote) {
          wait_status = OfRemote(wait_status);
        } else if (IsProbablyOutOfMemory(wait_status, num_kills)) {
          note = kProbablyOutOfMemory;
        }
        OnExit(rank, agent_ranks, wait_status, note);
      });
  return LaunchedProcess{pid, is_remote ? command.remote_host : HostName()};
}

LocalProcess* LocalLauncher::ProcessOf(uint32_t rank) const {
  const auto of_agent = agent_ranks_.find(rank);
  const auto it = processes_.find(of_agent == agent_ranks_.end() ? rank : of_agent->second.first);
  return it == processes_.end() ? nullptr : it->second.get();
}

void LocalLauncher::OnLine(uint32_t rank, bool is_agent, std::string_view line) {
  const std::optional<AgentReport> report = is_agent ? ParseReport(line) : std::nullopt;
  const auto of_agent = agent_ranks_.find(report.has_value() ? report->rank : rank);
  const bool is_known = of_agent != agent_ranks_.end() && of_agent->second.first == rank;
  if (!report.has_value() || !is_known) {
    if (events_.on_line) events_.on_line(rank, line);
  } else if (report->kind == AgentReport::Kind::kLine) {
    if (events_.on_line) events_.on_line(report->rank, report->text);
  } else if (report->kind == AgentReport::Kind::kFinished) {
    of_agent->second.is_finished = true;
  } else if (!std::exchange(of_agent->second.has_exited, true)) {
    if (events_.on_exit) events_.on_exit(report->rank, report->wait_status, report->text);
  }
}

// The process that was started here has ended. With an agent end its nodes.
void LocalLauncher::OnExit(uint32_t rank, uint32_t agent_ranks, int wait_status,
                           std::string_view note) {
  if (agent_ranks == 0 && events_.on_exit) events_.on_exit(rank, wait_status, note);
  const auto tell = [&](uint32_t of_agent) {
    if (std::exchange(agent_ranks_[of_agent].has_exited, true)) return;
    if (events_.on_exit) events_.on_exit(of_agent, wait_status, note);
  };
  // What is told first counts as the cause of the rest.
  const auto killed = killed_.find(rank);
  if (agent_ranks > 0 && killed != killed_.end()) tell(killed->second);
  for (uint32_t i = 0; i < agent_ranks; ++i) tell(rank + i);
}

bool LocalLauncher::IsFinished(uint32_t rank) {
  const auto of_agent = agent_ranks_.find(rank);
  if (of_agent != agent_ranks_.end() && of_agent->second.is_finished) return true;
  LocalProcess* const process = ProcessOf(rank);
  return process == nullptr || process->is_finished();
}

void LocalLauncher::End(uint32_t rank, bool at_once) {
  const auto of_agent = agent_ranks_.find(rank);
  if (of_agent != agent_ranks_.end() && of_agent->second.has_exited) return;
  LocalProcess* const process = ProcessOf(rank);
  if (process == nullptr) return;
  const uint32_t first = of_agent == agent_ranks_.end() ? rank : of_agent->second.first;
  killed_.try_emplace(first, rank);
  if (at_once || !starters_.contains(first)) {
    process->Kill();
  } else {
    process->Terminate();
  }
}

}  // namespace penstock::actors
