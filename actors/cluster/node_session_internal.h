// The part of a session that one node runs: its slice of the plan, its transport, and the engine of
// its devices.
//
// Thread rule: called by the node's work thread; the functions of EngineObserver are called by the
// engine's threads.
// Invariants: the session's allocations fit the memory limit of its request; the number of reports
// that the coordinator has not read is bounded.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_SESSION_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_SESSION_INTERNAL_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/feed_tiles.h"
#include "actors/cluster/fetch_tiles.h"
#include "actors/cluster/node.h"
#include "actors/cluster/scattered_bytes.h"
#include "actors/cluster/state_moves.h"
#include "actors/cluster/stream_collectives_internal.h"
#include "actors/session/kept_tiles.h"
#include "actors/session/local_engine.h"
#include "planner/plan/plan.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::actors {

// The parameters of a session.
struct SessionRequest {
  uint32_t generation = 0;
  uint32_t first_device = 0;
  uint32_t num_devices = 0;
  int threads_per_device = 1;
  bool shares_cores = false;  // with devices of other processes
  uint64_t seed = 0;
  absl::Duration timeout;
  uint64_t trace_capacity = 0;
  int64_t trace_every = 1;
  uint64_t max_memory_bytes = 0;
  kernels::ResultCheck check_results = kernels::ResultCheck::kNone;
  int64_t first_step = 0;
  bool init_states = true;
  bool captures_graphs = true;
  std::chrono::milliseconds link_timeout{0};  // see UcxOptions
};

// The bytes of memory that all sessions of a process may use.
uint64_t MemoryLimit(const NodeOptions& options);

class NodeSession : public EngineObserver {
 public:
  using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<transport::UcxTransport>>(
      const transport::UcxOptions& options)>;
  // Calls the given function with the coordinator's observer, on the loop's thread.
  using Tell = std::function<void(std::function<void(control::Observer::Client&)>)>;

  // `options` must outlive the session. `num_untold` counts the steps of all sessions that are done
  // here and whose report the coordinator has not acknowledged; `bytes_leaked` adds up the memory
  // that the transports of sessions have leaked (UcxOptions::on_leak).
  NodeSession(const NodeOptions& options, Tell tell,
              std::shared_ptr<std::atomic<int64_t>> num_untold,
              std::shared_ptr<std::atomic<uint64_t>> bytes_leaked);
  ~NodeSession() override;

  // Checks the plan and creates the transport. Returns the transport's address.
  absl::StatusOr<std::string> Open(const SessionRequest& request, std::string_view plan,
                                   const TransportFactory& create_transport);

  // How its devices can run collectives themselves.
  NodeCommunicators Communicators() const;

  // Connects to the devices of the other processes and loads the executors. `bytes_in_use` is the
  // memory that other sessions and kept states use. Without `collectives`, the host runs them.
  absl::Status Connect(const std::vector<std::pair<uint32_t, std::string>>& processes,
                       std::optional<NodeCollectives> collectives, uint64_t bytes_in_use);

  // Allocates the buffers of the next step, has `fill_feeds` write the feeds that are read here,
  // and submits the step.
  absl::Status Submit(int64_t step, const std::function<absl::Status(ByteTarget)>& fill_feeds);

  // Reads bytes of a state's tile.
  absl::StatusOr<std::string> ReadState(uint32_t state, uint32_t placement, uint64_t offset,
                                        uint32_t size) const;
  // The target for a state's tiles: writes each tile to all devices here that hold it. The first
  // error of a device is stored in `status`.
  absl::StatusOr<ByteTarget> StateTarget(uint32_t state,
                                         const std::shared_ptr<absl::Status>& status);
  // Copies states. Fails if the copy would need more than `max_bytes`.
  absl::StatusOr<KeptTiles> KeepStates(const std::vector<uint32_t>& states,
                                       uint64_t max_bytes) const;
  // Restores states from a copy. Returns the states of which a tile held here is not in the copy.
  absl::StatusOr<std::vector<uint32_t>> TakeStates(const KeptTiles& kept);

  // Appends the target for the elements of a box of a state, in row-major order: writes them to all
  // tiles here that contain the box. The first error of a device is stored in `status`.
  absl::Status AddBox(uint32_t state, const Box& box, const std::shared_ptr<absl::Status>& status,
                      ByteTarget* target);

  // Takes at most one message of trace events; `has_more` says whether more are left.
  absl::StatusOr<std::vector<TraceEvent>> TakeTrace(bool* has_more);

  const SessionRequest& request() const { return request_; }
  DeviceRange devices() const { return {request_.first_device, request_.num_devices}; }
  // Of the whole plan.
  uint32_t num_plan_devices() const { return static_cast<uint32_t>(plan_.devices.size()); }
  // REQUIRES: CheckLoaded() is OK.
  LocalEngine& engine() { return *engine_; }
  absl::Status CheckLoaded() const;
  // The memory of the devices, once they are loaded.
  uint64_t num_bytes() const { return num_bytes_; }

  void OnStepDone(const DeviceStepReport& report) override;
  void OnError(uint32_t device, int64_t step, const absl::Status& status) override;
  void OnFailure(const absl::Status& status) override;
  void OnDeclined() override;

 private:
  void OnCutLink(uint32_t device);
  absl::Status CheckStepFits() const;
  absl::Status CheckState(uint32_t state) const;

  struct StepState {
    std::shared_ptr<StepBuffers> buffers;
    std::vector<DeviceStepReport> reports;
  };

  const NodeOptions& options_;
  const Tell tell_;
  SessionRequest request_;
  planner::Plan plan_;
  std::optional<FeedTiles> feed_tiles_;
  std::optional<FetchTiles> fetch_tiles_;
  std::unique_ptr<transport::UcxTransport> transport_;  // until Connect, which passes it on
  uint64_t num_bytes_ = 0;
  int64_t num_submitted_ = 0;
  const std::shared_ptr<std::atomic<int64_t>> num_untold_;
  const std::shared_ptr<std::atomic<uint64_t>> bytes_leaked_;
  std::vector<TraceEvent> trace_;  // num_taken_ of them have been taken
  size_t num_taken_ = 0;

  absl::Mutex mutex_;
  std::map<int64_t, StepState> steps_ ABSL_GUARDED_BY(mutex_);  // submitted and not done

  std::unique_ptr<LocalEngine> engine_;  // last: its threads use all of the above
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_SESSION_INTERNAL_H_
