#include "actors/session/local_engine.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "actors/engine/tile_copy.h"
#include "actors/session/local_kept_states.h"
#include "actors/session/state_init.h"
#include "base/cpu_topology.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "base/thread_pool.h"

namespace penstock::actors {

absl::Status CheckFits(const planner::Plan& plan, uint32_t first_device, uint32_t count,
                       uint64_t limit, const CanView& can_view, uint64_t* used) {
  const uint64_t available = limit - std::min(*used, limit);
  uint64_t needed = 0;
  uint32_t largest = first_device;
  DeviceMemory most;
  for (uint32_t d = first_device; d < first_device + count; ++d) {
    const DeviceMemory memory = MemoryOf(plan, d, can_view, /*is_synchronous=*/true);
    needed += memory.total();
    if (memory.total() > most.total()) {
      most = memory;
      largest = d;
    }
  }
  if (needed > available) {
    const std::string devices =
        count == 1 ? StrCat("device ", first_device, " needs ", ToString(most))
                   : StrCat("devices ", first_device, " to ", first_device + count - 1, " need ",
                            FormatBytes(needed), " (the most: device ", largest, " with ",
                            ToString(most), ")");
    const std::string taken =
        *used == 0 ? std::string()
                   : StrCat(" (", FormatBytes(limit), " without ", FormatBytes(*used), " in use)");
    return absl::ResourceExhaustedError(StrCat(
        "the plan does not fit into memory: ", devices, ", available are ", FormatBytes(available),
        taken, ": ", FormatBytes(needed - available), " are missing"));
  }
  *used += needed;
  return absl::OkStatus();
}

namespace {

// The processors of each device, so that neighbours share no core and each stays close to its
// memory. None, so that the system decides, for one device; where the devices have more threads
// than there are processors; and where a control group limits the share of time on all of them,
// because other groups may use the same ones.
std::vector<std::vector<int>> PlaceDevices(uint32_t num_devices, int threads_per_device) {
  if (num_devices < 2) return {};
  const CpuTopology topology = CpuTopology::Load();
  if (UsableCores() < topology.num_processors()) return {};
  std::vector<std::vector<int>> processors = topology.Distribute(static_cast<int>(num_devices));
  std::set<int> used;
  for (const std::vector<int>& of_device : processors) {
    if (of_device.size() < static_cast<size_t>(std::max(threads_per_device, 1))) return {};
    for (const int processor : of_device) {
      if (!used.insert(processor).second) return {};  // shared
    }
  }
  return processors;
}

}  // namespace

absl::StatusOr<std::unique_ptr<LocalEngine>> LocalEngine::Start(
    const planner::Plan& plan, std::unique_ptr<transport::Transport> transport,
    EngineObserver* observer, const LocalEngineOptions& options) {
  std::unique_ptr<LocalEngine> engine(
      new LocalEngine(plan, std::move(transport), observer, options));
  RETURN_IF_ERROR(engine->Open());
  return engine;
}

LocalEngine::LocalEngine(const planner::Plan& plan, std::unique_ptr<transport::Transport> transport,
                         EngineObserver* observer, const LocalEngineOptions& options)
    : plan_(plan), observer_(observer), options_(options), transport_(std::move(transport)) {}

LocalEngine::~LocalEngine() {
  Stop();
  // Streams and memory that go later may wait for work of theirs, and that for other devices.
  communicators_.clear();
}

absl::Status LocalEngine::Open() {
  if (options_.kernels == nullptr) return absl::InvalidArgumentError("an engine needs kernels");
  if (options_.check_results != kernels::ResultCheck::kNone) {
    checked_kernels_ = kernels::CheckedKernels(*options_.kernels, options_.check_results);
  }
  max_bytes_ = options_.max_memory_bytes > 0 ? options_.max_memory_bytes : MachineMemoryBytes();
  std::vector<transport::Endpoint*> endpoints;
  for (uint32_t i = 0; i < options_.num_devices; ++i) {
    ASSIGN_OR_RETURN(endpoints.emplace_back(), transport_->OpenEndpoint(options_.first_device + i));
  }
  RETURN_IF_ERROR(TakeMemory([&](uint32_t reader, uint32_t owner) {
    return endpoints[reader - options_.first_device]->CanView(owner);
  }));
  transport_->Hold(memory_, num_bytes());
  memory_->devices.resize(options_.num_devices);
  memory_->arenas.resize(options_.num_devices);
  memory_->host_arenas.resize(options_.num_devices);
  memory_->stagings.resize(options_.num_devices);
  processors_ = PlaceDevices(options_.num_devices, options_.threads_per_device);
  accesses_.resize(options_.num_devices);
  communicators_.resize(options_.num_devices);
  RETURN_IF_ERROR(OrderLaunches());
  stage_peers_.resize(options_.num_devices);
  HostParts parts;
  parts.transport = transport_.get();
  parts.communication_waker = &communication_waker_;
  is_oversubscribed_ = options_.shares_cores || static_cast<int64_t>(options_.num_devices) *
                                                        std::max(options_.threads_per_device, 1) >
                                                    UsableCores();
  parts.is_oversubscribed = is_oversubscribed_;
  parts.first_device = options_.first_device;
  if (options_.num_devices == plan_.devices.size()) {
    stall_detector_.emplace(plan_);
    parts.stall_detector = &*stall_detector_;
  }
  parts.on_failure = [observer = observer_](const absl::Status& status) {
    observer->OnFailure(status);
  };
  parts.on_declined = [observer = observer_] { observer->OnDeclined(); };
  for (uint32_t i = 0; i < options_.num_devices; ++i) {
    links_.push_back(std::make_unique<StageLink>());
    wakers_.push_back(std::make_unique<Waker>());
    parts.links.push_back(links_[i].get());
    parts.wakers.push_back(wakers_[i].get());
    transport::Endpoint* const endpoint = endpoints[i];
    memory_->communications.push_back(
        std::make_unique<DeviceCommunication>(endpoint, wakers_[i].get(), &communication_waker_));
    parts.communications.push_back(memory_->communications[i].get());
    endpoint->SetWakeup(
        [communication = memory_->communications[i].get()] { communication->OnArrival(); });
    parts.executors.push_back([this, i, endpoint] { return Load(i, endpoint); });
  }
  for (uint32_t stage = 0; stage < plan_.stages.size(); ++stage) {
    std::vector<StageLink*> links;
    std::vector<uint32_t> local;
    for (const uint32_t device : plan_.stages[stage].devices) {
      if (device - options_.first_device >= options_.num_devices) continue;
      local.push_back(device - options_.first_device);
      links.push_back(links_[local.back()].get());
    }
    if (links.empty()) continue;
    const bool is_whole = links.size() == plan_.stages[stage].devices.size();
    ASSIGN_OR_RETURN(std::unique_ptr<StageController> controller,
                     StageController::Create(plan_, stage, *options_.policies, std::move(links),
                                             options_.first_step));
    if (!is_whole && !controller->is_planned()) {
      const uint32_t deciding = DecidingDevice(plan_.stages[stage]) - options_.first_device;
      if (deciding >= options_.num_devices) {
        // The controller of another process decides; this one has made the links ready.
        for (const uint32_t device : local) {
          stage_peers_[device].push_back({options_.first_device + deciding, nullptr});
        }
        continue;
      }
      for (const uint32_t device : plan_.stages[stage].devices) {
        if (device - options_.first_device < options_.num_devices) continue;
        StageLink* link = remote_links_.emplace_back(std::make_unique<StageLink>()).get();
        controller->AddLink(link);
        stage_peers_[deciding].push_back({device, link});
        parts.remote_links.push_back({parts.stages.size(), deciding, link});
      }
    }
    parts.stages.push_back(std::move(controller));
    parts.stage_devices.push_back(std::move(local));
  }
  ASSIGN_OR_RETURN(host_, Host::Start(std::move(parts), options_.timeout));
  return absl::OkStatus();
}

bool LocalEngine::CanShareMemoryOf(const LocalEngine& other) const {
  const auto uses_cpus = [](const LocalEngineOptions& options) {
    return options.create_device == nullptr;
  };
  if (!uses_cpus(options_) || !uses_cpus(other.options_) || other.shares_memory() ||
      options_.first_device != other.options_.first_device ||
      options_.num_devices != other.options_.num_devices ||
      plan_.states.size() != other.plan_.states.size()) {
    return false;
  }
  for (uint32_t d = 0; d < options_.num_devices; ++d) {
    const planner::DevicePlan& ours = plan_.devices[options_.first_device + d];
    const planner::DevicePlan& theirs = other.plan_.devices[options_.first_device + d];
    if (ours.host_bytes > 0 || theirs.host_bytes > 0 || ours.arena_bytes > theirs.arena_bytes) {
      return false;
    }
  }
  // Nothing else of a plan lies where one of its states does, so neither plan overwrites a state of
  // the other.
  absl::flat_hash_map<std::string_view, const planner::StatePlan*> others;
  for (const planner::StatePlan& state : other.plan_.states) others[state.name] = &state;
  const auto in_the_same_place = [&](const planner::StatePlacement& a,
                                     const planner::StatePlacement& b) {
    if (a.device != b.device || !(a.tile == b.tile)) return false;
    const planner::RegisterPlan& ours = plan_.devices[a.device].registers[a.reg];
    const planner::RegisterPlan& theirs = other.plan_.devices[b.device].registers[b.reg];
    return ours.offset == theirs.offset && ours.slots == theirs.slots &&
           ours.slot_bytes == theirs.slot_bytes;
  };
  return std::all_of(plan_.states.begin(), plan_.states.end(),
                     [&](const planner::StatePlan& state) {
                       const auto found = others.find(state.name);
                       return found != others.end() && found->second->type == state.type &&
                              std::equal(state.placements.begin(), state.placements.end(),
                                         found->second->placements.begin(),
                                         found->second->placements.end(), in_the_same_place);
                     });
}

absl::Status LocalEngine::TakeMemory(const CanView& can_view) {
  uint64_t in_use = options_.reserved_bytes;
  uint64_t shared = 0;
  if (const LocalEngine* const other = options_.memory_of; other != nullptr) {
    in_use += other->num_bytes();
    if (CanShareMemoryOf(*other)) {
      memory_->owner = other->memory_;
      for (uint32_t d = 0; d < options_.num_devices; ++d) {
        shared += plan_.devices[options_.first_device + d].arena_bytes;
      }
    }
  }
  in_use -= shared;
  uint64_t used = in_use;
  RETURN_IF_ERROR(
      CheckFits(plan_, options_.first_device, options_.num_devices, max_bytes_, can_view, &used));
  num_bytes_ = used - in_use - shared;
  return absl::OkStatus();
}

// Without an order, the host runs the collectives and messages: members that launch in different
// orders might wait for each other, even with a communicator for each collective. An order needs
// all devices.
absl::Status LocalEngine::OrderLaunches() {
  if (options_.create_communicator == nullptr) return absl::OkStatus();
  if (options_.stream_launches.has_value()) {
    RETURN_IF_ERROR(CheckStreamLaunches(plan_, options_.first_device, options_.num_devices,
                                        *options_.stream_launches));
    launches_ = options_.stream_launches;
  } else if (options_.num_devices == plan_.devices.size()) {
    absl::StatusOr<StreamLaunches> launches = PlanStreamLaunches(plan_, *options_.policies);
    if (launches.ok()) launches_ = *std::move(launches);
  }
  if (launches_.has_value()) groups_ = GroupsOf(plan_, launches_->launched);
  return absl::OkStatus();
}

// An asynchronous device copies through the host's memory, of which several devices take at a time.
absl::Status LocalEngine::TakeStaging(uint32_t device_index) {
  const uint64_t needed =
      MemoryOf(plan_, device_index, nullptr, /*is_synchronous=*/false).staging_bytes;
  const uint64_t used = num_bytes_.fetch_add(needed);
  const uint64_t available = max_bytes_ - std::min(used, max_bytes_);
  if (needed <= available) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      StrCat("the plan does not fit into memory: the host staging of device ", device_index,
             " needs ", FormatBytes(needed), ", available are ", FormatBytes(available), ": ",
             FormatBytes(needed - available), " are missing"));
}

absl::Status LocalEngine::InitStates(uint32_t index, Device& device) {
  std::optional<ThreadPool> own_pool;
  ThreadPool* pool = device.thread_pool();
  if (pool == nullptr) {
    pool = &own_pool.emplace(std::max(options_.threads_per_device, 1));
    pool->set_spins(false);
  }
  constexpr int64_t kGrain = 1 << 14;  // elements of a thread
  for (const planner::StatePlan& state : plan_.states) {
    // As a new arena is: not worth copies to the device.
    if (state.init == "zeros" && !device.is_synchronous()) continue;
    const auto element_bytes = static_cast<int64_t>(ByteSize(state.type.dtype));
    for (const planner::StatePlacement& placement : state.placements) {
      if (placement.device != options_.first_device + index) continue;
      const auto fill = [&](uint64_t offset, size_t size, std::byte* bytes) {
        pool->ParallelFor(static_cast<int64_t>(size) / element_bytes, kGrain,
                          [&](int64_t begin, int64_t end, int) {
                            InitState(state, placement, options_.seed,
                                      offset + static_cast<uint64_t>(begin * element_bytes),
                                      static_cast<size_t>((end - begin) * element_bytes),
                                      bytes + begin * element_bytes);
                          });
      };
      RETURN_IF_ERROR(
          accesses_[index]->Write(OffsetOf(placement), placement.tile.num_bytes(), fill));
    }
  }
  return absl::OkStatus();
}

// On the device's own thread: memory is touched and kernels are made where they are used.
absl::StatusOr<std::unique_ptr<DeviceExecutor>> LocalEngine::Load(uint32_t index,
                                                                  transport::Endpoint* endpoint) {
  const uint32_t device_index = options_.first_device + index;
  // The threads that the device starts inherit this one's processors.
  if (!processors_.empty()) RETURN_IF_ERROR(PinThisThread(processors_[index]));
  if (options_.create_device != nullptr) {
    ASSIGN_OR_RETURN(memory_->devices[index], options_.create_device(device_index));
  }
  if (memory_->devices[index] == nullptr) {
    const int num_threads = std::max(options_.threads_per_device, 1);
    memory_->devices[index] = CreateCpuDevice(num_threads);
    if (const int got = memory_->devices[index]->thread_pool()->size(); got < num_threads) {
      return absl::ResourceExhaustedError(StrCat("device ", device_index, " needs ", num_threads,
                                                 " threads; the system gives ", got,
                                                 " and no more"));
    }
  }
  Device& device = *memory_->devices[index];
  if (is_oversubscribed_ && device.thread_pool() != nullptr) device.thread_pool()->set_spins(false);
  if (!shares_memory()) {
    ASSIGN_OR_RETURN(memory_->arenas[index],
                     device.Allocate(plan_.devices[device_index].arena_bytes, MemoryKind::kDevice));
  }
  Memory& arena = *(shares_memory() ? memory_->owner->arenas : memory_->arenas)[index];
  std::byte* host_arena = nullptr;
  if (const uint64_t num_bytes = plan_.devices[device_index].host_bytes; num_bytes > 0) {
    ASSIGN_OR_RETURN(memory_->host_arenas[index], device.Allocate(num_bytes, MemoryKind::kPinned));
    host_arena = memory_->host_arenas[index]->data();
  }
  if (!device.is_synchronous()) RETURN_IF_ERROR(TakeStaging(device_index));
  if (device.is_synchronous()) {
    RETURN_IF_ERROR(transport_->RegisterMemory(arena.data(), arena.num_bytes()));
  }
  ASSIGN_OR_RETURN(accesses_[index],
                   ArenaAccess::Create(device, arena, host_arena, options_.timeout));
  if (options_.init_states && !shares_memory()) RETURN_IF_ERROR(InitStates(index, device));
  ExecutorParts parts;
  parts.plan = &plan_;
  parts.device_index = device_index;
  const bool is_checked = options_.check_results != kernels::ResultCheck::kNone;
  if (is_checked && !device.is_synchronous()) {
    return absl::UnimplementedError(StrCat("the results of kernels on devices of kind '",
                                           device.kind(),
                                           "' cannot be checked: the host cannot read them"));
  }
  const auto of_kind = options_.kernels_by_kind.find(device.kind());
  const auto* kernels = is_checked                                  ? &checked_kernels_
                        : of_kind != options_.kernels_by_kind.end() ? of_kind->second.get()
                                                                    : options_.kernels;
  if (launches_.has_value()) {
    if (device.is_synchronous()) {
      return absl::InvalidArgumentError(
          StrCat("device ", device_index, " of kind '", device.kind(),
                 "' cannot run collectives on streams, so no device of the plan may: the other ",
                 "members would wait for it; leave out create_communicator"));
    }
    ASSIGN_OR_RETURN(
        communicators_[index],
        options_.create_communicator(device_index, device, GroupsWith(groups_, device_index, 1)));
  }
  parts.target = {&device,
                  kernels,
                  arena.data(),
                  host_arena,
                  endpoint,
                  communicators_[index].get(),
                  launches_.has_value() ? &launches_->order : nullptr,
                  launches_.has_value() ? &launches_->tells_failures : nullptr,
                  {},
                  launches_.has_value() ? launches_->launched : planner::Launched::kCollectives};
  parts.communication = memory_->communications[index].get();
  parts.stage = links_[index].get();
  parts.stage_peers = stage_peers_[index];
  parts.observer = observer_;
  parts.clock = &clock_;
  ExecutorOptions executor_options;
  executor_options.seed = options_.seed;
  executor_options.generation = options_.generation;
  executor_options.trace_capacity = options_.trace_capacity;
  executor_options.trace_every = options_.trace_every;
  executor_options.first_step = options_.first_step;
  executor_options.captures_graphs = options_.captures_graphs;
  if (options_.firing_seed != 0) executor_options.firing_seed = options_.firing_seed + index;
  ASSIGN_OR_RETURN(std::unique_ptr<DeviceExecutor> executor,
                   DeviceExecutor::Create(parts, executor_options));
  memory_->stagings[index] = executor->staging_memory();
  return executor;
}

absl::Status LocalEngine::ReadTile(const planner::StatePlacement& placement, uint64_t offset,
                                   uint64_t size, std::byte* bytes) {
  return AccessTo(placement).Read(OffsetOf(placement) + offset, size,
                                  [bytes](uint64_t at, size_t count, const std::byte* from) {
                                    std::memcpy(bytes + at, from, count);
                                  });
}

absl::Status LocalEngine::WriteTile(const planner::StatePlacement& placement, uint64_t offset,
                                    uint64_t size, const std::byte* bytes) {
  return AccessTo(placement).Write(
      OffsetOf(placement) + offset, size,
      [bytes](uint64_t at, size_t count, std::byte* to) { std::memcpy(to, bytes + at, count); });
}

void LocalEngine::Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
  host_->Submit(step, buffers);
}

std::vector<WaitDescription> LocalEngine::Describe(absl::Duration timeout) {
  return host_->Describe(timeout);
}

absl::StatusOr<ActivityReport> LocalEngine::ReportActivity(absl::Duration timeout) {
  return host_->ReportActivity(timeout);
}

absl::Status LocalEngine::ReadState(const planner::StatePlan& state, Tensor* value) {
  for (const planner::StatePlacement& placement : state.placements) {
    if (!Holds(placement)) continue;
    const TileCopy copy(placement.tile);
    RETURN_IF_ERROR(
        AccessTo(placement).Read(OffsetOf(placement), placement.tile.num_bytes(),
                                 [&](uint64_t offset, size_t size, const std::byte* bytes) {
                                   copy.RangeToGlobal(bytes, 0, static_cast<int64_t>(offset),
                                                      static_cast<int64_t>(size), value->data());
                                 }));
  }
  return absl::OkStatus();
}

absl::Status LocalEngine::WriteState(const planner::StatePlan& state, const Tensor& value) {
  for (const planner::StatePlacement& placement : state.placements) {
    if (!Holds(placement)) continue;
    const TileCopy copy(placement.tile);
    RETURN_IF_ERROR(AccessTo(placement).Write(OffsetOf(placement), placement.tile.num_bytes(),
                                              [&](uint64_t offset, size_t size, std::byte* bytes) {
                                                copy.RangeFromGlobal(
                                                    value.data(), 0, static_cast<int64_t>(offset),
                                                    static_cast<int64_t>(size), bytes);
                                              }));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const KeptStates>> LocalEngine::KeepStates(
    const std::vector<uint32_t>& states) {
  ASSIGN_OR_RETURN(KeptTiles tiles, KeepTiles(states));
  std::vector<planner::StatePlan> plans;
  for (const uint32_t state : states) plans.push_back(plan_.states[state]);
  return std::make_shared<LocalKeptStates>(std::move(plans), std::move(tiles));
}

absl::StatusOr<std::vector<uint32_t>> LocalEngine::TakeStates(const KeptStates& kept) {
  if (const auto* local = dynamic_cast<const LocalKeptStates*>(&kept)) {
    return TakeTiles(local->tiles());
  }
  std::vector<uint32_t> all(plan_.states.size());
  std::iota(all.begin(), all.end(), 0);
  return all;
}

absl::StatusOr<KeptTiles> LocalEngine::KeepTiles(const std::vector<uint32_t>& states) {
  return KeptTiles::Copy(plan_, states, options_.first_device, options_.num_devices,
                         [this](const planner::StatePlacement& placement, std::byte* bytes) {
                           return ReadTile(placement, 0, placement.tile.num_bytes(), bytes);
                         });
}

absl::StatusOr<std::vector<uint32_t>> LocalEngine::TakeTiles(const KeptTiles& tiles) {
  return tiles.Fill(plan_, options_.first_device, options_.num_devices,
                    [this](const planner::StatePlacement& placement, const std::byte* bytes) {
                      return WriteTile(placement, 0, placement.tile.num_bytes(), bytes);
                    });
}

absl::StatusOr<std::vector<TraceEvent>> LocalEngine::TakeTrace() {
  std::vector<std::vector<TraceEvent>> taken;
  size_t num_events = 0;
  for (uint32_t i = 0; i < options_.num_devices; ++i) {
    num_events += taken.emplace_back(host_->TakeTrace(i)).size();
  }
  std::vector<TraceEvent> events;
  events.reserve(num_events);
  for (std::vector<TraceEvent>& of_device : taken) {
    events.insert(events.end(), of_device.begin(), of_device.end());
    of_device = {};
  }
  return events;
}

void LocalEngine::Stop() {
  // Members that have failed will not come.
  for (const auto& communicator : communicators_) {
    if (communicator != nullptr) communicator->Cancel();
  }
  if (host_ != nullptr) host_->Stop();
}

}  // namespace penstock::actors
