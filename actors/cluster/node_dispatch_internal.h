// Has calls of a node done by its threads, and answers them on the loop's thread.
//
//   loop:         Do(work) ─► queue          promise ends with the status of `work` ─► Answer
//   work thread:             work, after ────┘
//
// Thread rule: the loop's thread.
// Invariants: what throws on another thread ends its call with kInternal, and not the node; a call
// that finds its queue full ends at once with kResourceExhausted.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_DISPATCH_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_DISPATCH_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node_sessions_internal.h"
#include "actors/cluster/work_queue_internal.h"

namespace penstock::actors {

class NodeDispatch {
 public:
  using Work = std::function<absl::Status()>;
  using After = std::function<void(const absl::Status&)>;

  // The arguments outlive the result and the work that it has queued.
  NodeDispatch(control::ControlLoop& loop, WorkQueue& work, NodeSessions& sessions)
      : loop_(loop), work_(work), sessions_(sessions) {}

  // Has the work thread run `work`, and ends with its status. The work thread then goes on with
  // `after`.
  control::StatusPromise Do(Work work, After after = nullptr) const {
    return DoOn(work_, std::move(work), std::move(after));
  }
  // The same on the thread of another queue.
  control::StatusPromise DoOn(WorkQueue& queue, Work work, After after = nullptr,
                              WorkQueue::Kind kind = WorkQueue::Kind::kCall) const;
  // Do for what ends something, for which there is room among many calls.
  control::StatusPromise Close(std::function<void()> work) const;
  // Do with the session of that generation; an error if there is none.
  control::StatusPromise InSession(uint32_t generation,
                                   std::function<absl::Status(NodeSession&)> work) const;

 private:
  control::ControlLoop& loop_;
  WorkQueue& work_;
  NodeSessions& sessions_;
};

// Answers a call whose result is a status alone.
template <typename Context>
kj::Promise<void> Answer(Context context, control::StatusPromise promise) {
  return promise.then([context](absl::Status&& status) mutable {
    control::WriteStatus(status, context.getResults().initStatus());
  });
}

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_DISPATCH_INTERNAL_H_
