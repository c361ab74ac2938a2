// One session over a cluster's nodes, as the coordinator sees it: what was submitted, and what the
// nodes tell about it, which is checked before anybody hears it.
//
// Errors that nodes report about their peers wait a moment, so that the death behind them is what
// is told. What has come since then waits with them, to keep its order.
//
// Results that are too long for a report are read from the node, those of one step at a time; the
// report is told after that, and behind those of the steps before.
//
// Where a node hears nothing from another one, both are asked for a sign of life. If both answer,
// the session fails: they cannot reach each other. If one does not, it is lost, and its loss is
// told.
//
// A node that reports a declining policy knows only its own part of the plan. All nodes are then
// asked twice for their activity, and if nothing can be under way anywhere the session fails
// (stall_detector.h).
//
// Thread rule: the loop's thread, but for the constructor, the destructor and what says so.
// Invariants: after End nothing is told. What a node makes this side keep is bounded by the steps
// under way and kMaxHeldErrors.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_SESSION_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_SESSION_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <kj/async.h>
#include <kj/timer.h>

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/device_range.h"
#include "actors/cluster/feed_tiles.h"
#include "actors/cluster/fetch_tiles.h"
#include "actors/cluster/node_traffic.h"
#include "actors/engine/stall_detector.h"
#include "actors/session/engine.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

class ClusterSession : public std::enable_shared_from_this<ClusterSession> {
 public:
  // How long an error about a peer, or a call that failed with one, waits for the peer's loss.
  static constexpr kj::Duration kPeerGrace = 1500 * kj::MILLISECONDS;
  // Between the two reports of activity: several times what an idle executor sleeps.
  static constexpr kj::Duration kActivityInterval = 400 * kj::MILLISECONDS;
  // Errors that are held at a time; more are dropped, as the first of a step is what counts.
  static constexpr size_t kMaxHeldErrors = 1024;

  // What a session needs of its cluster, which outlives its use.
  struct Context {
    kj::Timer& timer;
    kj::TaskSet& tasks;
    std::function<std::string(uint32_t rank)> name_of;
    // Null once the node is gone.
    std::function<kj::Maybe<control::Node::Client>(uint32_t rank)> node_of;
    // Where what comes from a node is counted; null: nowhere.
    std::function<std::shared_ptr<NodeTraffic>(uint32_t rank)> traffic_of = nullptr;
    absl::Duration link_timeout = absl::ZeroDuration();  // see NodeSupervisor::LinkTimeout
  };

  // `plan` outlives it, `observer` End. REQUIRES: CheckPlan(plan) is OK.
  // `process_devices`: see DevicesOfRank. `first_step`: what step 0 counts as in messages.
  ClusterSession(const planner::Plan& plan, uint32_t num_processes, EngineObserver* observer,
                 std::vector<uint32_t> process_devices = {}, int64_t first_step = 0);

  // Any thread.
  const planner::Plan& plan() const { return plan_; }
  uint32_t num_processes() const { return num_processes_; }
  int64_t first_step() const { return first_step_; }
  // The devices of a process: contiguous blocks in the order of the ranks.
  DeviceRange DevicesOf(uint32_t rank) const;

  // What the devices of a process read of a step's feeds. REQUIRES: each process has devices.
  ByteSource FeedsOf(uint32_t rank, const std::shared_ptr<const StepBuffers>& buffers) const {
    return feed_tiles_[rank].From(buffers);
  }

  void Begin(const Context& context, uint32_t generation);
  // What is reported from now on has no effect.
  void End();

  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers);
  // The same promise, broken off by End: what it offers to a node can be read no more.
  kj::Promise<void> UntilEnd(kj::Promise<void> call) { return calls_.wrap(kj::mv(call)); }

  // Receives what the node of `rank` tells.
  control::Observer::Client MakeObserver(uint32_t rank);

  void OnFailure(uint32_t rank, const absl::Status& status);
  // The session cannot go on: this is told at once, and nothing more.
  void Fail(const absl::Status& cause);

  uint32_t generation() const { return generation_; }
  bool is_over() const { return observer_ == nullptr; }
  int64_t last_step() const { return last_step_; }
  // The oldest step under way; -1 if there is none.
  int64_t oldest_step() const { return steps_.empty() ? -1 : steps_.begin()->first; }

 private:
  class ObserverServer;

  struct Step {
    std::shared_ptr<StepBuffers> buffers;
    std::vector<bool> has_reported;  // a process each
    uint32_t num_told = 0;           // of them
  };

  // Resolves when the results are read and the report was told; does not fail.
  absl::StatusOr<kj::Promise<void>> StepDone(uint32_t rank,
                                             control::Observer::StepDoneParams::Reader params);
  void TellStepDone(const std::vector<DeviceStepReport>& reports);
  absl::Status Error(uint32_t rank, control::Observer::ErrorParams::Reader params);
  // Two nodes are named once both have answered: a node that is dead is told of otherwise.
  absl::Status LinkCut(uint32_t rank, uint32_t device);
  void Declined();
  // Resolves to whether the plan has stalled, which was told then. An error: a node did not report.
  kj::Promise<absl::StatusOr<bool>> CheckStall();
  kj::Promise<absl::StatusOr<std::vector<ActivityReport>>> AskForActivity();
  absl::StatusOr<ActivityReport> GetActivity(
      uint32_t rank, control::Node::ReportActivityResults::Reader results) const;
  void Report(std::function<void()> report);
  // The error with the name of its node before it, and the node as its origin.
  absl::Status OfNode(uint32_t rank, const absl::Status& status) const;
  void ReportError(const absl::Status& status, std::function<void()> report);

  const planner::Plan& plan_;
  const uint32_t num_processes_;
  const std::vector<uint32_t> process_devices_;
  const int64_t first_step_;
  EngineObserver* observer_;           // null once the session is over
  std::vector<FeedTiles> feed_tiles_;  // a process each
  const FetchTiles fetch_tiles_;
  const StallDetector stall_detector_;
  std::unique_ptr<Context> context_;
  uint32_t generation_ = 0;
  int64_t last_step_ = -1;                     // submitted
  std::map<int64_t, Step> steps_;              // under way
  std::vector<kj::ForkedPromise<void>> told_;  // the last report of each process
  std::vector<std::function<void()>> held_;    // what came since a node's error about a peer
  size_t num_held_errors_ = 0;
  bool is_holding_ = false;
  bool is_checking_link_ = false;   // the first report counts
  bool is_checking_stall_ = false;  // one check at a time, and none after a stall
  kj::Canceler calls_;              // under way
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_SESSION_INTERNAL_H_
