// Kept states that lie in the nodes of a cluster, under a number. The nodes drop them when the
// object goes.
//
// Thread rule: thread-safe, but not from the loop's thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_KEPT_STATES_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_KEPT_STATES_INTERNAL_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/cluster_access_internal.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/device_range.h"
#include "actors/session/kept_states.h"

namespace penstock::actors {

class ClusterKeptStates final : public KeptStates {
 public:
  // `states` as in the plan of the session. The nodes are still to be told to keep them.
  ClusterKeptStates(std::shared_ptr<ClusterAccess> access, std::vector<planner::StatePlan> states,
                    const ClusterSession& session, absl::Duration timeout);
  ~ClusterKeptStates() override;

  // For the nodes: each of a cluster has another.
  uint64_t number() const { return number_; }
  // Of each process of the session that kept them.
  const std::vector<DeviceRange>& devices() const { return devices_; }
  bool IsOf(const ClusterAccess& access) const { return access_.get() == &access; }

  // Each node writes its share (write_shares.h), and this process the index. Where a node does not
  // see the folder, this process writes all.
  absl::Status Write(const std::string& folder, const Metadata& metadata) const override;

 private:
  absl::Status ReadInto(uint32_t state, Tensor* value) const override;
  // The files of the nodes. kNotFound: a node does not see the folder.
  absl::StatusOr<std::vector<CheckpointFile>> WriteFiles(const std::string& folder,
                                                         const Metadata& metadata) const;

  const std::shared_ptr<ClusterAccess> access_;
  const absl::Duration timeout_;
  uint64_t number_ = 0;
  std::vector<DeviceRange> devices_;
  std::vector<uint64_t> num_bytes_;  // that each process keeps
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_KEPT_STATES_INTERNAL_H_
