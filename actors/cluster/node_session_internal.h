// The part of a session that one node runs: its slice of the plan, its transport, and the engine of
// its devices.
//
// Thread rule: the node's work thread, but for the functions of EngineObserver, which the engine
// calls.
// Invariants: what the session makes fits into the memory that it was told; what the coordinator
// does not read is bounded.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_SESSION_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_SESSION_INTERNAL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/feed_tiles.h"
#include "actors/cluster/fetch_tiles.h"
#include "actors/cluster/node.h"
#include "actors/cluster/scattered_bytes.h"
#include "actors/session/kept_tiles.h"
#include "actors/session/local_engine.h"
#include "planner/plan/plan.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::actors {

// What a session asks for.
struct SessionRequest {
  uint32_t generation = 0;
  uint32_t first_device = 0;
  uint32_t num_devices = 0;
  int threads_per_device = 1;
  uint64_t seed = 0;
  absl::Duration timeout;
  uint64_t trace_capacity = 0;
  uint64_t max_memory_bytes = 0;
  kernels::ResultCheck check_results = kernels::ResultCheck::kNone;
  int64_t first_step = 0;
  bool init_states = true;
};

// What the sessions of a process may have of its memory.
uint64_t MemoryLimit(const NodeOptions& options);

class NodeSession : public EngineObserver {
 public:
  using TransportFactory = std::function<absl::StatusOr<std::unique_ptr<transport::UcxTransport>>(
      const transport::UcxOptions& options)>;
  // Sends to the coordinator's observer: called with it on the loop's thread.
  using Tell = std::function<void(std::function<void(control::Observer::Client&)>)>;

  // `options` outlives it. `num_untold` counts, over all sessions, the steps that are done here and
  // that the coordinator has not taken note of.
  NodeSession(const NodeOptions& options, Tell tell,
              std::shared_ptr<std::atomic<int64_t>> num_untold);
  ~NodeSession() override;

  // Makes the transport; its address.
  absl::StatusOr<std::string> Open(const SessionRequest& request, std::string_view plan,
                                   const TransportFactory& create_transport);

  // Connects to the devices of the other processes and loads the executors, into what others have
  // left of the memory.
  absl::Status Connect(const std::vector<std::pair<uint32_t, std::string>>& processes,
                       uint64_t bytes_in_use);

  // Makes place for the next step, where `fill_feeds` puts the feeds that are read here, and
  // submits it.
  absl::Status Submit(int64_t step, const std::function<absl::Status(ByteTarget)>& fill_feeds);

  // Bytes of a state's tile.
  absl::StatusOr<std::string> ReadState(uint32_t state, uint32_t placement, uint64_t offset,
                                        uint32_t size) const;
  // Where the tiles of a state are to go: to all places that hold them.
  // `status` gets the first error of a device.
  absl::StatusOr<ByteTarget> StateTarget(uint32_t state,
                                         const std::shared_ptr<absl::Status>& status);
  // A copy of states, of at most `max_bytes`.
  absl::StatusOr<KeptTiles> KeepStates(const std::vector<uint32_t>& states,
                                       uint64_t max_bytes) const;
  // Fills the states from a copy. Returns those with a tile here that was not in it.
  absl::StatusOr<std::vector<uint32_t>> TakeStates(const KeptTiles& kept);

  // Events that were not taken yet, a message's worth of them, and whether there are more.
  absl::StatusOr<std::vector<TraceEvent>> TakeTrace(bool* has_more);

  const SessionRequest& request() const { return request_; }
  // REQUIRES: CheckLoaded() is OK.
  LocalEngine& engine() { return *engine_; }
  absl::Status CheckLoaded() const;
  // That the devices take, once they are loaded.
  uint64_t num_bytes() const { return num_bytes_; }

  void OnStepDone(const DeviceStepReport& report) override;
  void OnError(uint32_t device, int64_t step, const absl::Status& status) override;
  void OnFailure(const absl::Status& status) override;
  void OnDeclined() override;

 private:
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
  std::unique_ptr<transport::UcxTransport> transport_;  // until it is the engine's
  uint64_t num_bytes_ = 0;
  int64_t num_submitted_ = 0;
  const std::shared_ptr<std::atomic<int64_t>> num_untold_;
  std::vector<TraceEvent> trace_;  // of which num_taken_ were told
  size_t num_taken_ = 0;

  std::mutex mutex_;
  std::map<int64_t, StepState> steps_;  // guarded by mutex_

  std::unique_ptr<LocalEngine> engine_;  // last: its threads use all of the above
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_SESSION_INTERNAL_H_
