// What has passed between the coordinator and a node, and between nodes where the coordinator had
// them exchange states, in bytes of tensors: what tests and reports hold placements against.
//
// Thread rule: a value.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_TRAFFIC_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_TRAFFIC_H_

#include <cstdint>
#include <memory>

namespace penstock::actors {

// Counters of one node. They only grow.
struct NodeTraffic {
  uint64_t feed_bytes = 0;           // to the node
  uint64_t fetch_bytes = 0;          // from the node
  uint64_t state_bytes_written = 0;  // to the node
  uint64_t state_bytes_read = 0;     // from the node
  // From other nodes to the node, not through the coordinator.
  uint64_t state_bytes_from_nodes = 0;
};

// One of the counters, kept by all of them; null where they are.
inline std::shared_ptr<uint64_t> CounterOf(const std::shared_ptr<NodeTraffic>& traffic,
                                           uint64_t NodeTraffic::*counter) {
  if (traffic == nullptr) return nullptr;
  return {traffic, &(traffic.get()->*counter)};
}

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_TRAFFIC_H_
