// Launches processes on this host, among them programs such as ssh that start a node, or an agent
// with several, on another.
//
// Thread rule: the thread of the event loop.

#ifndef PENSTOCK_ACTORS_CLUSTER_LOCAL_LAUNCHER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_LOCAL_LAUNCHER_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include <kj/async-io.h>

#include "actors/cluster/launcher_internal.h"
#include "actors/cluster/local_process_internal.h"

namespace penstock::actors {

class LocalLauncher final : public Launcher {
 public:
  // `io` outlives it. `here`: what messages call this host. `on_starter`: as ClusterOptions has it.
  explicit LocalLauncher(kj::AsyncIoContext& io, std::string here = "this host",
                         std::function<void(int pid, int pid_fd)> on_starter = nullptr)
      : io_(io), here_(std::move(here)), on_starter_(std::move(on_starter)) {}

  void SetEvents(Events events) override { events_ = std::move(events); }
  absl::StatusOr<LaunchedProcess> Launch(const LaunchCommand& command) override;
  bool HasLaunched(uint32_t rank) const override { return ProcessOf(rank) != nullptr; }
  bool IsFinished(uint32_t rank) override;
  void Kill(uint32_t rank) override { End(rank, /*at_once=*/true); }
  void Terminate(uint32_t rank) override { End(rank, /*at_once=*/false); }

 private:
  // What an agent has reported of one of its ranks.
  struct AgentRank {
    uint32_t first = 0;  // of the agent's
    bool has_exited = false;
    bool is_finished = false;
  };

  void End(uint32_t rank, bool at_once);
  // The process that has started the rank; null: it was not launched.
  LocalProcess* ProcessOf(uint32_t rank) const;
  void OnLine(uint32_t rank, bool is_agent, std::string_view line);
  void OnExit(uint32_t rank, uint32_t agent_ranks, int wait_status, std::string_view note);

  kj::AsyncIoContext& io_;
  const std::string here_;
  const std::function<void(int pid, int pid_fd)> on_starter_;
  Events events_;
  std::map<uint32_t, std::unique_ptr<LocalProcess>> processes_;  // by their first rank
  std::set<uint32_t> starters_;  // those of them that start a node elsewhere
  std::map<uint32_t, AgentRank> agent_ranks_;
  std::map<uint32_t, uint32_t> killed_;  // by the first rank of a process, the rank that Kill named
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_LOCAL_LAUNCHER_INTERNAL_H_
