// Calls of several nodes of a cluster at once, from a thread that waits for them.
//
// Thread rule: CallAll on any thread but the loop's, all else on the loop's.
// Invariants: errors name the node; the loss of a node takes precedence over the errors that it
// causes.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_CALLS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_CALLS_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include <capnp/blob.h>

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node_supervisor_internal.h"

namespace penstock::actors {

class NodeCalls {
 public:
  using CallNode =
      std::function<control::StatusPromise(uint32_t rank, control::Node::Client& node)>;

  // Of the first `num_processes` nodes. The arguments outlive the result.
  NodeCalls(control::ControlLoop& loop, NodeSupervisor& supervisor, uint32_t num_processes)
      : loop_(loop), supervisor_(supervisor), num_processes_(num_processes) {}

  control::StatusPromise ForAll(const CallNode& call) const;
  absl::Status CallAll(const CallNode& call, std::string_view what, absl::Duration timeout) const;

 private:
  kj::Promise<void> AwaitLoss(kj::TimePoint deadline, absl::Status* status) const;

  control::ControlLoop& loop_;
  NodeSupervisor& supervisor_;
  const uint32_t num_processes_;
};

// Takes the address of a node's transport out of an answer. kInternal: it is too long.
absl::Status TakeAddress(capnp::Data::Reader answer, std::string* address);

// Lets a node of `supervisor` open exchange `number`, in which it has the rank of so many, for
// messages with `peers`; its transport's address goes to *address.
control::StatusPromise OpenExchange(const NodeSupervisor& supervisor, control::Node::Client& node,
                                    uint32_t number, uint32_t rank, uint32_t num_ranks,
                                    absl::Span<const uint32_t> peers, absl::Duration timeout,
                                    std::string* address);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_CALLS_INTERNAL_H_
