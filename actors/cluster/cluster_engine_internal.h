// The engine of a session whose devices are in the nodes of a cluster: every call becomes calls of
// all nodes at once.
//
// Thread rule: as Engine; the nodes are called on the thread of the event loop.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_ENGINE_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_ENGINE_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <kj/async.h>

#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node_description.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/engine.h"
#include "actors/session.h"
#include "planner/plan.h"

namespace penstock::actors {

class ClusterEngine final : public Engine {
 public:
  // `loop`, `supervisor` and `plan` outlive the result, `observer` Stop. `stop_timeout` limits how
  // long Stop waits for the nodes.
  ClusterEngine(control::ControlLoop& loop, NodeSupervisor& supervisor, const planner::Plan& plan,
                EngineObserver* observer, absl::Duration timeout, absl::Duration stop_timeout);
  ~ClusterEngine() override { Stop(); }

  // Loads the plan into `nodes`, which have all joined. Before any other call.
  absl::Status Open(const std::vector<NodeDescription>& nodes, const SessionOptions& options);

  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) override;
  std::vector<std::string> Describe(absl::Duration timeout) override;
  absl::Status ReadState(const planner::StatePlan& state, Tensor* value) override;
  absl::Status WriteState(const planner::StatePlan& state, const Tensor& value) override;
  absl::StatusOr<std::vector<TraceEvent>> TakeTrace() override;
  void Stop() override;

 private:
  using CallNode = std::function<kj::Promise<void>(uint32_t rank, control::Node::Client& node)>;
  struct StateReading;

  uint32_t num_processes() const { return supervisor_.ranks().size(); }
  uint32_t IndexOf(const planner::StatePlan& state) const {
    return static_cast<uint32_t>(&state - session_->plan().states.data());
  }

  absl::Status CheckFitsNodes(const std::vector<NodeDescription>& nodes,
                              uint64_t given_limit) const;
  kj::Promise<void> OpenNode(uint32_t rank, control::Node::Client& node,
                             const std::shared_ptr<const std::string>& slice,
                             const SessionOptions& options,
                             const std::shared_ptr<std::vector<std::string>>& addresses);
  kj::Promise<void> ReadTiles(const std::shared_ptr<StateReading>& reading, size_t next);
  kj::Promise<void> TakeEvents(control::Node::Client node, uint64_t max_events,
                               const std::shared_ptr<std::vector<TraceEvent>>& events);

  // Calls all nodes at once. Errors name the node.
  kj::Promise<void> ForAll(const CallNode& call);
  // The same from another thread, and waits. The loss of a node takes precedence over the errors
  // that it causes.
  absl::Status CallAll(const CallNode& call, std::string_view what) {
    return CallAll(call, what, timeout_);
  }
  absl::Status CallAll(const CallNode& call, std::string_view what, absl::Duration timeout);
  kj::Promise<void> AwaitLoss(kj::TimePoint deadline, absl::Status* status);

  control::ControlLoop& loop_;
  NodeSupervisor& supervisor_;
  const absl::Duration timeout_;
  const absl::Duration stop_timeout_;
  const std::shared_ptr<ClusterSession> session_;
  uint64_t trace_capacity_ = 0;  // events a device
  bool is_stopped_ = false;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_ENGINE_INTERNAL_H_
