#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/node_session_internal.h"
#include "actors/cluster/wire_status_internal.h"
#include "actors/engine/check_plan.h"
#include "actors/engine/peers_of_device.h"
#include "actors/engine/stage_exchange.h"
#include "actors/engine/step_name.h"
#include "actors/engine/tile_copy.h"
#include "actors/session/state_tiles.h"
#include "base/format.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/plan_io.h"

namespace penstock::actors {
namespace {

constexpr size_t kTraceEventBytes = 48;  // in a message

}  // namespace

uint64_t MemoryLimit(const NodeOptions& options) {
  return options.max_memory_bytes > 0 ? options.max_memory_bytes : MachineMemoryBytes();
}

NodeSession::NodeSession(const NodeOptions& options, Tell tell,
                         std::shared_ptr<std::atomic<int64_t>> num_untold,
                         std::shared_ptr<std::atomic<uint64_t>> bytes_leaked)
    : options_(options),
      tell_(std::move(tell)),
      num_untold_(std::move(num_untold)),
      bytes_leaked_(std::move(bytes_leaked)) {}

NodeSession::~NodeSession() {
  if (engine_ != nullptr) engine_->Stop();
}

// --- Opening -------------------------------------------------------------------------------------

absl::StatusOr<std::string> NodeSession::Open(const SessionRequest& request, std::string_view plan,
                                              const TransportFactory& create_transport) {
  request_ = request;
  ASSIGN_OR_RETURN(plan_, planner::PlanFromBytes(plan));
  RETURN_IF_ERROR(CheckPlanSlice(plan_, request.first_device, request.num_devices));
  feed_tiles_.emplace(plan_, request.first_device, request.num_devices);
  fetch_tiles_.emplace(plan_);
  RETURN_IF_ERROR(CheckStepFits());
  transport::UcxOptions ucx;
  ucx.transport.num_devices = static_cast<uint32_t>(plan_.devices.size());
  ucx.transport.generation = request.generation;
  ucx.transport.num_channels = NumTransportChannels(plan_);
  ucx.first_device = request.first_device;
  ucx.num_local_devices = request.num_devices;
  for (uint32_t i = 0; i < request.num_devices; ++i) {
    ucx.peers.push_back(PeersOfDevice(plan_, request.first_device + i));
  }
  ucx.interfaces = options_.interfaces;
  ucx.request_timeout = std::chrono::seconds(
      std::clamp<int64_t>(absl::ToInt64Seconds(request.timeout), 1, 1'000'000));
  // Steps may hang from then on.
  ucx.on_unreleased = [this](const absl::Status& status) { OnFailure(status); };
  ucx.link_timeout = request.link_timeout;
  ucx.on_cut_link = [this](uint32_t device) { OnCutLink(device); };
  if (request.generation == 1) {  // the first session of the job speaks for all
    ucx.on_warning = [](const std::string& warning) {
      std::fprintf(stderr, "note: %s\n", warning.c_str());
    };
  }
  ucx.on_leak = [bytes_leaked = bytes_leaked_](uint64_t num_bytes, const std::string& why) {
    *bytes_leaked += num_bytes;
    std::fprintf(stderr, "%s\n", why.c_str());
  };
  ASSIGN_OR_RETURN(transport_, create_transport(ucx));
  return transport_->LocalAddress();
}

// The feeds and fetches of a step must fit into memory.
absl::Status NodeSession::CheckStepFits() const {
  uint64_t available = MemoryLimit(options_);
  const auto take = [&available](const TensorType& type) {
    const uint64_t needed = type.num_bytes();
    const bool fits = needed <= available;
    if (fits) available -= needed;
    return fits;
  };
  bool fits = std::all_of(plan_.fetches.begin(), plan_.fetches.end(),
                          [&](const auto& fetch) { return take(fetch.type); });
  for (uint32_t feed = 0; feed < plan_.feeds.size(); ++feed) {
    if (feed_tiles_->Reads(feed)) fits = fits && take(plan_.feeds[feed].type);
  }
  if (fits) return absl::OkStatus();
  return absl::ResourceExhaustedError("the feeds and fetches of a step do not fit the memory");
}

NodeCommunicators NodeSession::Communicators() const {
  return DescribeCommunicators(options_.communicators.get(), options_.no_communicators,
                               request_.first_device, request_.num_devices);
}

absl::Status NodeSession::Connect(const std::vector<std::pair<uint32_t, std::string>>& processes,
                                  std::optional<NodeCollectives> collectives,
                                  uint64_t bytes_in_use) {
  if (transport_ == nullptr) return absl::FailedPreconditionError("connected before");
  if (collectives.has_value() && options_.communicators == nullptr) {
    return absl::InvalidArgumentError("the devices of this node have no communicators");
  }
  for (const auto& [first_device, address] : processes) {
    if (first_device == request_.first_device) continue;
    RETURN_IF_ERROR(transport_->Connect(first_device, address));
  }
  LocalEngineOptions local;
  local.first_device = request_.first_device;
  local.num_devices = request_.num_devices;
  local.threads_per_device = request_.threads_per_device;
  local.seed = request_.seed;
  local.generation = request_.generation;
  local.timeout = request_.timeout;
  local.kernels = options_.kernels;
  local.kernels_by_kind = options_.kernels_by_kind;
  local.create_device = options_.create_device;
  local.policies = options_.policies;
  const uint64_t limit = MemoryLimit(options_);
  // At least 1, because 0 would stand for all memory of the machine.
  const uint64_t left = std::max<uint64_t>(limit - std::min(limit, bytes_in_use), 1);
  local.max_memory_bytes =
      request_.max_memory_bytes > 0 ? std::min(request_.max_memory_bytes, left) : left;
  local.trace_capacity = request_.trace_capacity;
  local.trace_every = request_.trace_every;
  local.check_results = request_.check_results;
  local.first_step = request_.first_step;
  local.init_states = request_.init_states;
  local.captures_graphs = request_.captures_graphs;
  local.shares_cores = request_.shares_cores;
  if (collectives.has_value()) {
    local.create_communicator = options_.communicators->CreateFactory(std::move(collectives->ids));
    local.stream_launches = std::move(collectives->launches);
  }
  std::unique_ptr<transport::Transport> transport = std::move(transport_);
  if (options_.wrap_transport) transport = options_.wrap_transport(std::move(transport));
  ASSIGN_OR_RETURN(engine_, LocalEngine::Start(plan_, std::move(transport), this, local));
  num_bytes_ = engine_->num_bytes();
  return absl::OkStatus();
}

absl::Status NodeSession::CheckLoaded() const {
  if (engine_ == nullptr) return absl::FailedPreconditionError("the session is not loaded");
  return absl::OkStatus();
}

// --- Steps ---------------------------------------------------------------------------------------

absl::Status NodeSession::Submit(int64_t step,
                                 const std::function<absl::Status(ByteTarget)>& fill_feeds) {
  RETURN_IF_ERROR(CheckLoaded());
  if (step != num_submitted_) {
    return absl::InvalidArgumentError(
        StrCat(StepName(step, request_.first_step), " was submitted where ",
               StepName(num_submitted_, request_.first_step), " is next"));
  }
  if (*num_untold_ >= 2 * kMaxStepsInFlight) {
    return absl::ResourceExhaustedError("the reports of too many steps have not been read");
  }
  auto buffers = std::make_shared<StepBuffers>();
  for (uint32_t feed = 0; feed < plan_.feeds.size(); ++feed) {
    buffers->feeds.push_back(feed_tiles_->Reads(feed) ? Tensor(plan_.feeds[feed].type) : Tensor());
  }
  RETURN_IF_ERROR(fill_feeds(feed_tiles_->To(buffers)));
  for (const planner::FetchPlan& fetch : plan_.fetches) buffers->fetches.emplace_back(fetch.type);
  {
    const absl::MutexLock lock(&mutex_);
    if (static_cast<int64_t>(steps_.size()) >= kMaxStepsInFlight) {
      return absl::ResourceExhaustedError("too many steps are under way");
    }
    steps_[step].buffers = buffers;
  }
  ++num_submitted_;
  engine_->Submit(step, buffers);
  return absl::OkStatus();
}

void NodeSession::OnStepDone(const DeviceStepReport& report) {
  StepState done;
  {
    const absl::MutexLock lock(&mutex_);
    StepState& state = steps_[report.step];
    state.reports.push_back(report);
    if (state.reports.size() < request_.num_devices) return;
    done = std::move(state);
    steps_.erase(report.step);
  }
  ++*num_untold_;
  tell_([request = request_, reports = std::move(done.reports), tiles = *fetch_tiles_,
         buffers = std::move(done.buffers),
         num_untold = num_untold_](control::Observer::Client& observer) {
    auto call = observer.stepDoneRequest();
    call.setGeneration(request.generation);
    call.setStep(reports[0].step);
    auto out = call.initReports(static_cast<unsigned>(reports.size()));
    for (unsigned i = 0; i < reports.size(); ++i) {
      out[i].setDevice(reports[i].device);
      out[i].setIsPoisoned(reports[i].is_poisoned);
      out[i].setWallNs(reports[i].wall_ns);
      out[i].setWaitNs(reports[i].wait_ns);
    }
    auto offered = control::Offer(tiles.From(request.first_device, request.num_devices, buffers),
                                  call.initFetches());
    call.send()
        .ignoreResult()
        .attach(std::move(offered), kj::defer([num_untold] { --*num_untold; }))
        .detach([](const kj::Exception&) {});  // the agent sees a closed connection
  });
}

void NodeSession::OnError(uint32_t device, int64_t step, const absl::Status& status) {
  tell_([generation = request_.generation, device, step,
         status](control::Observer::Client& observer) {
    auto call = observer.errorRequest();
    call.setGeneration(generation);
    call.setDevice(device);
    call.setStep(step);
    control::WriteStatus(status, call.initStatus());
    call.send().ignoreResult().detach([](const kj::Exception&) {});
  });
}

void NodeSession::OnFailure(const absl::Status& status) {
  tell_([generation = request_.generation, status](control::Observer::Client& observer) {
    auto call = observer.failureRequest();
    call.setGeneration(generation);
    control::WriteStatus(status, call.initStatus());
    call.send().ignoreResult().detach([](const kj::Exception&) {});
  });
}

void NodeSession::OnCutLink(uint32_t device) {
  tell_([generation = request_.generation, device](control::Observer::Client& observer) {
    auto call = observer.linkCutRequest();
    call.setGeneration(generation);
    call.setDevice(device);
    call.send().ignoreResult().detach([](const kj::Exception&) {});
  });
}

void NodeSession::OnDeclined() {
  tell_([generation = request_.generation](control::Observer::Client& observer) {
    auto call = observer.declinedRequest();
    call.setGeneration(generation);
    call.send().ignoreResult().detach([](const kj::Exception&) {});
  });
}

// --- States --------------------------------------------------------------------------------------

absl::Status NodeSession::CheckState(uint32_t state) const {
  RETURN_IF_ERROR(CheckLoaded());
  if (state >= plan_.states.size()) {
    return absl::InvalidArgumentError(StrCat("there is no state ", state));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> NodeSession::ReadState(uint32_t state, uint32_t placement,
                                                   uint64_t offset, uint32_t size) const {
  RETURN_IF_ERROR(CheckState(state));
  const auto& placements = plan_.states[state].placements;
  if (placement >= placements.size() || !engine_->Holds(placements[placement])) {
    return absl::InvalidArgumentError(
        StrCat("the state '", plan_.states[state].name, "' has no placement ", placement, " here"));
  }
  RETURN_IF_ERROR(control::CheckChunk(offset, size, placements[placement].tile.num_bytes()));
  std::string bytes(size, '\0');
  RETURN_IF_ERROR(engine_->ReadTile(placements[placement], offset, size,
                                    reinterpret_cast<std::byte*>(bytes.data())));
  return bytes;
}

absl::StatusOr<ByteTarget> NodeSession::StateTarget(uint32_t state,
                                                    const std::shared_ptr<absl::Status>& status) {
  RETURN_IF_ERROR(CheckState(state));
  const auto& placements = plan_.states[state].placements;
  ByteTarget target;
  for (const StateTile& tile :
       StateTiles(plan_.states[state], request_.first_device, request_.num_devices)) {
    target.Add(
        placements[tile[0]].tile.num_bytes(),
        [this, &placements, tile, status](uint64_t offset, size_t size, const std::byte* bytes) {
          for (const uint32_t placement : tile) {
            status->Update(engine_->WriteTile(placements[placement], offset, size, bytes));
          }
        });
  }
  return target;
}

absl::StatusOr<KeptTiles> NodeSession::KeepStates(const std::vector<uint32_t>& states,
                                                  uint64_t max_bytes) const {
  RETURN_IF_ERROR(CheckLoaded());
  std::vector<bool> is_named(plan_.states.size(), false);
  for (const uint32_t state : states) {
    RETURN_IF_ERROR(CheckState(state));
    if (is_named[state]) return absl::InvalidArgumentError("a state was named twice");
    is_named[state] = true;
  }
  const uint64_t needed =
      KeptTiles::BytesOf(plan_, states, request_.first_device, request_.num_devices);
  if (needed > max_bytes) {
    return absl::ResourceExhaustedError(StrCat("the states to keep need ", FormatBytes(needed),
                                               ", available are ", FormatBytes(max_bytes)));
  }
  return engine_->KeepTiles(states);
}

absl::StatusOr<std::vector<uint32_t>> NodeSession::TakeStates(const KeptTiles& kept) {
  RETURN_IF_ERROR(CheckLoaded());
  return engine_->TakeTiles(kept);
}

absl::Status NodeSession::AddBox(uint32_t state, const Box& box,
                                 const std::shared_ptr<absl::Status>& status, ByteTarget* target) {
  RETURN_IF_ERROR(CheckState(state));
  const auto& placements = plan_.states[state].placements;
  std::vector<std::pair<TileCopy, StateTile>> parts;
  uint64_t num_bytes = 0;
  for (StateTile& tile :
       StateTiles(plan_.states[state], request_.first_device, request_.num_devices)) {
    const absl::StatusOr<graph::TileDesc> part = BoxInTile(box, placements[tile[0]].tile);
    if (!part.ok()) continue;
    num_bytes = part->num_bytes();
    parts.emplace_back(TileCopy(*part), std::move(tile));
  }
  if (parts.empty()) {
    return absl::InvalidArgumentError(
        StrCat("no tile of the state '", plan_.states[state].name, "' here contains the box ",
               penstock::ToString(box.shape), " at ", penstock::ToString(box.offset)));
  }
  target->Add(num_bytes, [this, &placements, parts = std::move(parts), status](
                             uint64_t offset, size_t size, const std::byte* bytes) {
    for (const auto& [copy, tile] : parts) {
      copy.ForEachRunOf(
          0, static_cast<int64_t>(offset), static_cast<int64_t>(size),
          [&, &tile = tile](int64_t to, int64_t from, int64_t count) {
            for (const uint32_t placement : tile) {
              status->Update(engine_->WriteTile(placements[placement], static_cast<uint64_t>(to),
                                                static_cast<uint64_t>(count), bytes + from));
            }
          });
    }
  });
  return absl::OkStatus();
}

// --- Traces --------------------------------------------------------------------------------------

absl::StatusOr<std::vector<TraceEvent>> NodeSession::TakeTrace(bool* has_more) {
  RETURN_IF_ERROR(CheckLoaded());
  if (num_taken_ == trace_.size()) {
    ASSIGN_OR_RETURN(trace_, engine_->TakeTrace());
    num_taken_ = 0;
  }
  const size_t count =
      std::min(trace_.size() - num_taken_, control::kChunkBytes / kTraceEventBytes);
  const auto first = trace_.begin() + static_cast<std::ptrdiff_t>(num_taken_);
  num_taken_ += count;
  *has_more = num_taken_ < trace_.size();
  return std::vector<TraceEvent>(first, first + static_cast<std::ptrdiff_t>(count));
}

}  // namespace penstock::actors
