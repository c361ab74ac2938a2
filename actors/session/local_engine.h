// The devices of a plan that live in this process, all of them or a contiguous range: each gets an
// executor, a transport endpoint and an arena; each stage that has devices here gets a controller.
//
// A stage's devices may lie in several processes. Each process then has a controller of its own,
// and all come to the same choices because the policy's order is planned; a policy that chooses as
// it goes is refused there.
//
// Thread rule and invariants: those of engine.h.

#ifndef PENSTOCK_ACTORS_SESSION_LOCAL_ENGINE_H_
#define PENSTOCK_ACTORS_SESSION_LOCAL_ENGINE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/engine/device_memory.h"
#include "actors/engine/host.h"
#include "actors/engine/stall_detector.h"
#include "actors/session/arena_access.h"
#include "actors/session/engine.h"
#include "actors/session/kept_tiles.h"
#include "actors/session/stream_launches.h"
#include "base/device.h"
#include "kernels/checked/checked_kernels.h"
#include "kernels/device_kernels.h"
#include "kernels/kernel.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "transport/stream_collective.h"
#include "transport/transport.h"

namespace penstock::actors {

class LocalEngine;

// Makes device `index` of a plan. Null: a CPU device, which the engine makes.
using DeviceFactory = std::function<absl::StatusOr<std::unique_ptr<Device>>(uint32_t index)>;

// Which devices of a plan an engine runs, and how.
struct LocalEngineOptions {
  uint32_t first_device = 0;                          // of the plan
  uint32_t num_devices = 0;                           // from it on
  int threads_per_device = 1;                         // of kernels
  bool shares_cores = false;                          // with devices of other processes
  uint64_t seed = 0;                                  // of random operators and initial values
  uint32_t generation = 0;                            // of the transport's tags
  absl::Duration timeout = absl::Minutes(10);         // of loading
  const kernels::KernelRegistry* kernels = nullptr;   // outlives the engine
  kernels::KernelsByKind kernels_by_kind = {};        // see SessionOptions
  const planner::PolicyRegistry* policies = nullptr;  // used by Start only
  DeviceFactory create_device = nullptr;              // null: CreateCpuDevice
  // Null: the host runs all collectives. Otherwise the devices do: all of them are asynchronous.
  transport::CommunicatorFactory create_communicator = nullptr;
  // With it, where devices of the plan are in other processes, which have been given the same.
  std::optional<StreamLaunches> stream_launches = std::nullopt;
  uint64_t max_memory_bytes = 0;  // of all arenas; 0: the machine's memory
  uint64_t reserved_bytes = 0;    // of that, for other uses
  size_t trace_capacity = 0;      // events a device; 0: no trace
  int64_t trace_every = 1;        // see SessionOptions
  kernels::ResultCheck check_results = kernels::ResultCheck::kNone;  // see SessionOptions
  int64_t first_step = 0;                                            // likewise
  uint64_t firing_seed = 0;                                          // likewise
  bool captures_graphs = true;                                       // likewise
  bool init_states = true;                 // false: the states will be set before the first step
  const LocalEngine* memory_of = nullptr;  // see SessionOptions; used by Start only
};

// An error unless the memory of `count` devices (device_memory.h), without the host staging of
// asynchronous ones, fits into what is left of `limit` bytes, of which *used are taken; adds what
// they take. It says how much all of them lack.
absl::Status CheckFits(const planner::Plan& plan, uint32_t first_device, uint32_t count,
                       uint64_t limit, const CanView& can_view, uint64_t* used);

// Runs devices of a plan in this process. See the top of this file.
class LocalEngine final : public Engine {
 public:
  // `plan` and `observer` outlive the result. REQUIRES: CheckPlan(plan) is OK.
  static absl::StatusOr<std::unique_ptr<LocalEngine>> Start(
      const planner::Plan& plan, std::unique_ptr<transport::Transport> transport,
      EngineObserver* observer, const LocalEngineOptions& options);
  ~LocalEngine() override;

  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) override;
  std::vector<WaitDescription> Describe(absl::Duration timeout) override;
  std::shared_ptr<Inspector> inspector() const override { return host_->inspector(); }
  // The same as inspector(), with what only the process of the devices can ask.
  std::shared_ptr<LocalInspector> local_inspector() const { return host_->inspector(); }
  absl::Status ReadState(const planner::StatePlan& state, Tensor* value) override;
  absl::Status WriteState(const planner::StatePlan& state, const Tensor& value) override;
  absl::StatusOr<std::shared_ptr<const KeptStates>> KeepStates(
      const std::vector<uint32_t>& states) override;
  absl::StatusOr<std::vector<uint32_t>> TakeStates(const KeptStates& kept) override;
  absl::StatusOr<std::vector<TraceEvent>> TakeTrace() override;
  void Stop() override;
  caf::actor_system& actor_system() override { return host_->actor_system(); }

  // See Host. One thread at a time, as Describe.
  absl::StatusOr<ActivityReport> ReportActivity(absl::Duration timeout);

  // As KeepStates, of the tiles that lie in this process alone.
  absl::StatusOr<KeptTiles> KeepTiles(const std::vector<uint32_t>& states);
  // As TakeStates, likewise.
  absl::StatusOr<std::vector<uint32_t>> TakeTiles(const KeptTiles& tiles);
  // Whether the arenas are those of options.memory_of.
  bool shares_memory() const { return memory_->owner != nullptr; }
  // What the devices take: their memory as CheckFits counts it, without arenas that are shared, and
  // host staging.
  uint64_t num_bytes() const { return num_bytes_.load(std::memory_order_relaxed); }
  // Whether a placement of a state is in this process.
  bool Holds(const planner::StatePlacement& placement) const {
    return placement.device - options_.first_device < options_.num_devices;
  }
  // Reads `size` bytes of a state's tile from `offset` on. As ReadState.
  // REQUIRES: Holds(placement), and the range lies in the tile.
  absl::Status ReadTile(const planner::StatePlacement& placement, uint64_t offset, uint64_t size,
                        std::byte* bytes);
  // Writes them. As WriteState, with the same requirements.
  absl::Status WriteTile(const planner::StatePlacement& placement, uint64_t offset, uint64_t size,
                         const std::byte* bytes);

 private:
  LocalEngine(const planner::Plan& plan, std::unique_ptr<transport::Transport> transport,
              EngineObserver* observer, const LocalEngineOptions& options);
  absl::Status Open();
  // Whether the arenas of another engine serve this one's plan, too.
  bool CanShareMemoryOf(const LocalEngine& other) const;
  // Takes the memory that the devices need from what the limit leaves, or that of another engine.
  absl::Status TakeMemory(const CanView& can_view);
  absl::Status OrderLaunches();
  absl::Status TakeStaging(uint32_t device_index);
  ArenaAccess& AccessTo(const planner::StatePlacement& placement) const {
    return *accesses_[placement.device - options_.first_device];
  }
  uint64_t OffsetOf(const planner::StatePlacement& placement) const {
    return plan_.devices[placement.device].registers[placement.reg].offset;
  }
  // Gives the states of a device, in its new arena, their first values.
  absl::Status InitStates(uint32_t index, Device& device);
  absl::StatusOr<std::unique_ptr<DeviceExecutor>> Load(uint32_t index,
                                                       transport::Endpoint* endpoint);

  const planner::Plan& plan_;
  EngineObserver* const observer_;
  const LocalEngineOptions options_;
  kernels::KernelRegistry checked_kernels_;  // of options_.kernels; empty without check_results
  const SteadyClock clock_;
  uint64_t max_bytes_ = 0;  // of num_bytes_
  std::atomic<uint64_t> num_bytes_{0};
  // The memory that the transport reads and writes for requests. The transport holds it, too, and
  // longer than this if need be (Transport::Hold): nothing in here depends on anything else.
  struct CommunicatedMemory {
    // An entry a device of this process in each; made on the device's thread while it loads.
    std::vector<std::unique_ptr<Device>> devices;
    std::vector<std::unique_ptr<Memory>> arenas;
    std::vector<std::unique_ptr<Memory>> host_arenas;  // null: the plan keeps nothing on the host
    std::vector<std::shared_ptr<const Memory>> stagings;  // null: a synchronous device has none
    // With the buffers of collectives.
    std::vector<std::unique_ptr<DeviceCommunication>> communications;
    std::shared_ptr<const CommunicatedMemory> owner;  // of the arenas, if it is not this
  };
  const std::shared_ptr<CommunicatedMemory> memory_ = std::make_shared<CommunicatedMemory>();
  bool is_oversubscribed_ = false;                      // see HostParts
  std::vector<std::vector<int>> processors_;            // of each device; empty: they share all
  std::vector<std::unique_ptr<ArenaAccess>> accesses_;  // likewise
  std::vector<std::unique_ptr<transport::Communicator>> communicators_;  // likewise
  std::optional<StreamLaunches> launches_;      // null: the host runs the collectives
  std::vector<transport::DeviceGroup> groups_;  // with launches, of all devices
  std::vector<std::unique_ptr<StageLink>> links_;
  std::vector<std::unique_ptr<StageLink>> remote_links_;  // of devices of other processes
  std::vector<std::vector<StagePeer>> stage_peers_;       // of each device
  std::vector<std::unique_ptr<Waker>> wakers_;
  Waker communication_waker_;
  std::optional<StallDetector> stall_detector_;  // of a plan that is here as a whole
  std::unique_ptr<Host> host_;  // its threads are joined by Stop, before anything goes
  // Goes first: it ends what it was moving when a step was abandoned.
  std::unique_ptr<transport::Transport> transport_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_LOCAL_ENGINE_H_
