// Looks at the devices of a session that lie in the nodes of a cluster.
//
// Thread rule: thread-safe, but not on the loop's thread.
// Invariant: a node that does not answer delays an inspection by no more than its timeout.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_INSPECTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_INSPECTOR_INTERNAL_H_

#include <cstdint>
#include <memory>
#include <utility>

#include "actors/cluster/cluster_access_internal.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/engine/inspector.h"

namespace penstock::actors {

class ClusterInspector final : public Inspector {
 public:
  ClusterInspector(std::shared_ptr<ClusterAccess> access, std::shared_ptr<ClusterSession> session)
      : access_(std::move(access)), session_(std::move(session)) {}

  absl::StatusOr<EngineSnapshot> Inspect(absl::Duration timeout) override;

 private:
  control::StatusPromise AskNode(control::ControlLoop& loop, NodeSupervisor& supervisor,
                                 uint32_t rank, const MemberSilences& silences,
                                 absl::Duration timeout,
                                 const std::shared_ptr<EngineSnapshot>& snapshot) const;

  const std::shared_ptr<ClusterAccess> access_;
  const std::shared_ptr<ClusterSession> session_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_INSPECTOR_INTERNAL_H_
