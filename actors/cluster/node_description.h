// What is known of one process of a job: as the coordinator and the node itself report it.
//
// Thread rule: values.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_DESCRIPTION_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_DESCRIPTION_H_

#include <cstdint>
#include <string>

#include "base/process_cores.h"

namespace penstock::actors {

// A process that has joined.
struct NodeDescription {
  uint32_t rank = 0;          // among the processes of the cluster
  int pid = 0;                // on its host; 0: not known
  std::string host;           // its name, as it calls itself
  ProcessCores cores;         // that it may use
  std::string interface;      // that carries its data
  uint64_t memory_bytes = 0;  // that it may use
  uint32_t first_device = 0;  // of those that it will run
  uint32_t num_devices = 0;   // 0: not known yet
  std::string given_host;     // as the user calls its host, if otherwise; empty: as itself
};

// The host as messages call it.
inline const std::string& ShownHost(const NodeDescription& node) {
  return node.given_host.empty() ? node.host : node.given_host;
}

// "rank 1 on host-b: devices 2 to 3, 2 cores, interface eth0".
std::string ToString(const NodeDescription& node);

// "node 1 (pid 4711 on host-b)", as far as known: for messages about the node. One that was started
// on another host and has not joined has no pid: "node 1 (on host-b)".
std::string NameOf(const NodeDescription& node);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_DESCRIPTION_H_
