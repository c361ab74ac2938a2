// A node: the agent of one process in a job over several. It joins a coordinator (cluster.h), loads
// the part of a plan that it is given, and runs it until told to exit.
//
//   int main() {                                     // an application's own node
//     ...build the kernels and policies...
//     return RunNode(options).ok() ? 0 : 1;
//   }
//
// Thread rule: RunNode blocks its caller, and makes threads of its own that end with it.
// Invariants: the agent ends when the coordinator says so or is gone. If the work of a session does
// not end within `exit_timeout` of that, the process does (with _exit, status 1): whatever hangs, a
// node leaves nothing behind. No wait is unbounded.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"

#include "actors/cluster/node_description.h"
#include "base/device.h"
#include "kernels/device_kernels.h"
#include "kernels/kernel.h"
#include "planner/policy/policy.h"
#include "transport/stream_collective.h"
#include "transport/transport.h"

namespace penstock::actors {

// How a node joins its job, and what it computes with.
struct NodeOptions {
  std::string coordinator;  // address: "HOST:PORT", "unix:PATH" or "unix-abstract:NAME"
  std::string key;          // the job's, 64 hexadecimal digits
  int rank = -1;            // the one to have, or -1: any that is free
  bool insecure = false;    // as the coordinator's (ClusterOptions), whose address is loopback
  // That carry the data between hosts, separated by commas. Empty: that of the route to the
  // coordinator.
  std::string interfaces;
  uint64_t max_memory_bytes = 0;  // that a session may have of this process; 0: the machine's
  // Wraps the transport of each session, and of each exchange of states: to delay, count or fail
  // messages. Empty: nothing does.
  std::function<std::unique_ptr<transport::Transport>(std::unique_ptr<transport::Transport>)>
      wrap_transport;
  // Makes the devices, by their index in the plan, as DeviceFactory; null: CPU devices.
  std::function<absl::StatusOr<std::unique_ptr<Device>>(uint32_t index)> create_device;
  // The process that has started this one reports its end (end_report.h), should it die.
  bool is_watched = false;
  // By which the devices run collectives themselves, also with those of other nodes, if all nodes
  // of a session have the same and each device has hardware of its own. Null: the host runs them,
  // and `no_communicators` says why.
  std::shared_ptr<transport::CommunicatorSource> communicators;
  std::string no_communicators;  // why there are none, for the user
  // Told once the coordinator has admitted the node.
  std::function<void(const NodeDescription& node)> on_joined;
  // Told where the coordinator ends the node in order, so that it joins again with another RunNode,
  // and the same address and key (Cluster::StopToRejoin). Null: the job is over for it.
  std::function<void()> on_rejoin;
  // A file, as of StatusPort, where the node passes questions about the job on to the coordinator;
  // empty: nowhere. Told if it cannot be opened, which the node survives.
  std::string status_socket;
  std::function<void(const absl::Status& status)> on_no_status_socket;  // see above
  absl::Duration join_timeout = absl::Seconds(30);                      // to be admitted
  // How long a coordinator that nobody has started yet is waited for.
  absl::Duration connect_timeout = absl::ZeroDuration();
  absl::Duration exit_timeout = absl::Seconds(2);  // to end in order
  // REQUIRES: outlive the call.
  const kernels::KernelRegistry* kernels = nullptr;
  kernels::KernelsByKind kernels_by_kind = {};        // see SessionOptions
  const planner::PolicyRegistry* policies = nullptr;  // likewise
};

// OK when the coordinator has ended it in order. kUnavailable where it is gone. A node that was not
// started by the coordinator is also told how the job ended: kUnavailable with the node that it
// lost, kCancelled, or kAborted with the reason.
absl::Status RunNode(const NodeOptions& options);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_H_
