// How the nodes of a session agree to let their devices run the collectives and messages
// themselves, as GPUs do through NCCL, and what they are told then.
//
//   coordinator                          nodes
//   open()                        ---->  what each can use, and on which hardware
//     all can use the same, and the plan has an order of launches; otherwise the host runs them
//   createGroupIds()              ---->  asked of the node of each group's first device
//   connect(launches, ids)        ---->  each gets the ids of the groups of its own devices
//
// Ids travel over the control plane, which is authenticated, and are kept by nobody else.
//
// Thread rule: the loop's thread, what takes no messages on any.

#ifndef PENSTOCK_ACTORS_CLUSTER_STREAM_COLLECTIVES_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_STREAM_COLLECTIVES_INTERNAL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/device_range.h"
#include "actors/session/stream_launches.h"
#include "transport/stream_collective.h"

namespace penstock::actors {

// What a node can use.
struct NodeCommunicators {
  std::string name;                   // empty: nothing
  std::string why_not;                // likewise
  std::vector<std::string> hardware;  // of each device
};

// `source` may be null, and `why_not` says why then.
NodeCommunicators DescribeCommunicators(const transport::CommunicatorSource* source,
                                        std::string_view why_not, uint32_t first_device,
                                        uint32_t num_devices);

// What all nodes use, or why they use nothing: kFailedPrecondition. `node_names` are for that.
absl::StatusOr<std::string> AgreeOnCommunicators(absl::Span<const NodeCommunicators> nodes,
                                                 absl::Span<const std::string> node_names);

// What a node is told.
struct NodeCollectives {
  StreamLaunches launches;  // of its own devices alone
  transport::GroupIds ids;
};

// The part of a node that has some devices of the plan.
NodeCollectives PartOf(const NodeCollectives& all, DeviceRange devices);

void WriteCommunicators(const NodeCommunicators& communicators,
                        control::Communicators::Builder builder);
// kInternal: not those of `num_devices` devices.
absl::StatusOr<NodeCommunicators> ReadCommunicators(control::Communicators::Reader reader,
                                                    uint32_t num_devices);

// `devices` are those of the node.
void WriteCollectives(const NodeCollectives& collectives, DeviceRange devices,
                      control::StreamCollectives::Builder builder);
// For a plan with `num_devices`. kInvalidArgument: it does not fit the sizes. What the launches are
// is left to CheckStreamLaunches.
absl::StatusOr<NodeCollectives> ReadCollectives(control::StreamCollectives::Reader reader,
                                                DeviceRange devices, uint32_t num_devices);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_STREAM_COLLECTIVES_INTERNAL_H_
