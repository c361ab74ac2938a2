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
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <kj/async.h>

#include "actors/cluster/clock_alignment.h"
#include "actors/cluster/cluster_access_internal.h"
#include "actors/cluster/cluster_inspector_internal.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node_calls_internal.h"
#include "actors/cluster/node_description.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/cluster/stream_collectives_internal.h"
#include "actors/session/engine.h"
#include "actors/session/session.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

class ClusterEngine final : public Engine {
 public:
  using OnCollectives = std::function<void(const absl::StatusOr<std::string>& communicators,
                                           const std::string& why_not_messages)>;

  // `loop`, `supervisor` and `plan` outlive the result, `observer` Stop. `stop_timeout` limits how
  // long Stop waits for the nodes. `access` is that of the cluster, for what outlives the engine;
  // `system` is the cluster's; `on_collectives` as in ClusterOptions.
  ClusterEngine(std::shared_ptr<ClusterAccess> access, control::ControlLoop& loop,
                NodeSupervisor& supervisor, caf::actor_system& system, const planner::Plan& plan,
                EngineObserver* observer, const SessionOptions& options,
                absl::Duration stop_timeout, OnCollectives on_collectives);
  ~ClusterEngine() override { Stop(); }

  // Loads the plan into `nodes`, which have all joined. Before any other call.
  absl::Status Open(const std::vector<NodeDescription>& nodes, const SessionOptions& options);

  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) override;
  std::vector<WaitDescription> Describe(absl::Duration timeout) override;
  // The same each time.
  std::shared_ptr<Inspector> inspector() const override { return inspector_; }
  absl::Status ReadState(const planner::StatePlan& state, Tensor* value) override;
  absl::Status WriteState(const planner::StatePlan& state, const Tensor& value) override;
  absl::StatusOr<std::shared_ptr<const KeptStates>> KeepStates(
      const std::vector<uint32_t>& states) override;
  absl::StatusOr<std::vector<uint32_t>> TakeStates(const KeptStates& kept) override;
  absl::StatusOr<std::vector<TraceEvent>> TakeTrace() override;
  void Stop() override;
  caf::actor_system& actor_system() override { return system_; }

 private:
  using CallNode = NodeCalls::CallNode;

  uint32_t num_processes() const { return session_->num_processes(); }
  uint32_t IndexOf(const planner::StatePlan& state) const {
    return static_cast<uint32_t>(&state - session_->plan().states.data());
  }

  absl::Status CheckFitsNodes(const std::vector<NodeDescription>& nodes,
                              const SessionOptions& options) const;
  void FindOversubscribedNodes(const std::vector<NodeDescription>& nodes,
                               const SessionOptions& options);
  // What nodes answer to open().
  struct OpenedNode {
    std::string address;
    NodeCommunicators communicators;
  };
  control::StatusPromise OpenNode(uint32_t rank, control::Node::Client& node,
                                  const std::shared_ptr<const std::string>& slice,
                                  const SessionOptions& options,
                                  const std::shared_ptr<std::vector<OpenedNode>>& opened);
  // How the devices run the collectives themselves; null: the host runs them.
  absl::StatusOr<std::optional<NodeCollectives>> OpenCollectives(
      const std::vector<OpenedNode>& opened, const std::vector<NodeDescription>& nodes,
      const SessionOptions& options);
  absl::StatusOr<transport::GroupIds> CreateGroupIds(planner::Launched launched);
  control::StatusPromise TakeEvents(
      control::Node::Client node, uint64_t max_events, uint32_t rank,
      const std::shared_ptr<std::vector<std::vector<TraceEvent>>>& events);
  absl::Status ReadClocks();
  control::StatusPromise ReadClock(control::Node::Client node, int count, uint32_t rank,
                                   const std::shared_ptr<std::vector<ClockAnchor>>& anchors);

  absl::Status CallAll(const CallNode& call, std::string_view what) {
    return calls_.CallAll(call, what, timeout_);
  }
  absl::Status CallAll(const CallNode& call, std::string_view what, absl::Duration timeout) {
    return calls_.CallAll(call, what, timeout);
  }

  const std::shared_ptr<ClusterAccess> access_;
  control::ControlLoop& loop_;
  NodeSupervisor& supervisor_;
  caf::actor_system& system_;
  const absl::Duration timeout_;
  const absl::Duration stop_timeout_;
  const OnCollectives on_collectives_;
  const std::shared_ptr<ClusterSession> session_;
  const std::shared_ptr<ClusterInspector> inspector_;
  const NodeCalls calls_;
  uint64_t trace_capacity_ = 0;         // events a device
  std::vector<ClockAlignment> clocks_;  // of each node of the session, with a trace
  std::vector<std::string> hosts_;      // of each node of the cluster
  // Of each node of the session: whether its cores have more threads of devices than there are
  // cores.
  std::vector<bool> is_oversubscribed_;
  bool is_stopped_ = false;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_ENGINE_INTERNAL_H_
