// The calls that a coordinator makes of a node. They arrive on the event loop's thread and are
// executed by the work thread, which may block.
//
// Thread rule: the loop's thread.
// Invariants: the limits of the connection and WorkQueue::kMaxWork bound the calls that a hostile
// coordinator can queue; a call of another generation has no effect.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_SERVER_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_SERVER_INTERNAL_H_

#include <functional>

#include "absl/status/status.h"
#include <kj/memory.h>

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node.h"
#include "actors/cluster/node_exchanges_internal.h"
#include "actors/cluster/node_sessions_internal.h"
#include "actors/cluster/received_bytes_internal.h"
#include "actors/cluster/work_queue_internal.h"

namespace penstock::actors {

// The parts of a node that calls use.
struct NodeParts {
  const NodeOptions& options;
  control::ControlLoop& loop;
  WorkQueue& work;
  WorkQueue& files;  // calls that write files, for the thread of the file writer
  NodeSessions& sessions;
  NodeExchanges& exchanges;
  ByteReceiver& receiver;
  // Told the bound that a ping has come with: see control.capnp.
  std::function<void(uint32_t silence_ms)> on_ping;
  // The coordinator ends the node, which may be to join again.
  std::function<void(const absl::Status& cause, bool joins_again)> on_exit;
};

// The parts outlive the server and the work that it has queued.
kj::Own<control::Node::Server> CreateNodeServer(NodeParts node);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_SERVER_INTERNAL_H_
