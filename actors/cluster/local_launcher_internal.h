// Launches processes on this host.
//
// Thread rule: the thread of the event loop.

#ifndef PENSTOCK_ACTORS_CLUSTER_LOCAL_LAUNCHER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_LOCAL_LAUNCHER_INTERNAL_H_

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include <kj/async-io.h>

#include "actors/cluster/launcher_internal.h"
#include "actors/cluster/local_process_internal.h"

namespace penstock::actors {

class LocalLauncher final : public Launcher {
 public:
  // `io` outlives it.
  explicit LocalLauncher(kj::AsyncIoContext& io) : io_(io) {}

  void SetEvents(Events events) override { events_ = std::move(events); }
  absl::StatusOr<LaunchedProcess> Launch(const LaunchCommand& command) override;
  bool HasLaunched(uint32_t rank) const override { return processes_.contains(rank); }
  bool IsFinished(uint32_t rank) override;
  void Kill(uint32_t rank) override;

 private:
  kj::AsyncIoContext& io_;
  Events events_;
  std::map<uint32_t, std::unique_ptr<LocalProcess>> processes_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_LOCAL_LAUNCHER_INTERNAL_H_
