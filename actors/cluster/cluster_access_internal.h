// Access to the control loop and the supervisor of a cluster, for objects that may outlive the
// cluster.
//
// Thread rule: thread-safe; must not be called on the loop's thread.
// Invariant: when Close returns, no call of With is running, and later calls fail.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACCESS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACCESS_INTERNAL_H_

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node_supervisor_internal.h"

namespace penstock::actors {

class ClusterAccess {
 public:
  // The arguments must live until Close returns.
  ClusterAccess(control::ControlLoop& loop, NodeSupervisor& supervisor)
      : loop_(&loop), supervisor_(&supervisor) {}

  // Calls `use` with the loop and the supervisor and returns its status. Returns
  // kFailedPrecondition if the cluster has ended.
  template <typename Use>
  absl::Status With(Use use) {
    const absl::ReaderMutexLock lock(&mutex_);  // a long call keeps no other one waiting
    if (loop_ == nullptr) return absl::FailedPreconditionError("the cluster has ended");
    return use(*loop_, *supervisor_);
  }

  void Close() {
    const absl::MutexLock lock(&mutex_);
    loop_ = nullptr;
  }

 private:
  absl::Mutex mutex_;
  control::ControlLoop* loop_ ABSL_GUARDED_BY(mutex_);  // null: closed
  NodeSupervisor* const supervisor_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_ACCESS_INTERNAL_H_
