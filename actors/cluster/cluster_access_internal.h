// The way to a cluster for what may outlive it.
//
// Thread rule: thread-safe, but not from the loop's thread.
// Invariant: after Close nobody is in With, and nobody enters.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACCESS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACCESS_INTERNAL_H_

#include <mutex>

#include "absl/status/status.h"

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node_supervisor_internal.h"

namespace penstock::actors {

class ClusterAccess {
 public:
  // The arguments outlive Close.
  ClusterAccess(control::ControlLoop& loop, NodeSupervisor& supervisor)
      : loop_(&loop), supervisor_(&supervisor) {}

  // Runs `use` with the loop and the supervisor; its status. kFailedPrecondition: the cluster has
  // ended.
  template <typename Use>
  absl::Status With(Use use) {
    const std::lock_guard lock(mutex_);
    if (loop_ == nullptr) return absl::FailedPreconditionError("the cluster has ended");
    return use(*loop_, *supervisor_);
  }

  void Close() {
    const std::lock_guard lock(mutex_);
    loop_ = nullptr;
  }

 private:
  std::mutex mutex_;
  control::ControlLoop* loop_;  // null: closed; guarded by mutex_
  NodeSupervisor* const supervisor_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACCESS_INTERNAL_H_
