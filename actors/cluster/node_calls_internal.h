// Calls of several nodes of a cluster at once, from a thread that waits for them.
//
// Thread rule: CallAll on any thread but the loop's, all else on the loop's.
// Invariants: errors name the node, and the other one of an error between two; the loss of a node
// takes precedence over the errors that it causes.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_CALLS_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_CALLS_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
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
  // Where not all have answered in time, the error names those who have not, after the first error
  // of the others.
  absl::Status CallAll(const CallNode& call, std::string_view what, absl::Duration timeout) const;

 private:
  // What came of the calls so far.
  struct Answers {
    absl::Mutex mutex;
    std::vector<bool> have_come ABSL_GUARDED_BY(mutex);
    absl::Status first_error ABSL_GUARDED_BY(mutex);  // that is no consequence of another one
    void Take(uint32_t rank, const absl::Status& status);
  };

  control::StatusPromise ForAll(const CallNode& call, std::shared_ptr<Answers> answers) const;
  absl::Status Named(uint32_t rank, const absl::Status& status) const;
  absl::Status WhyLate(const absl::Status& late, Answers& answers) const;
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
