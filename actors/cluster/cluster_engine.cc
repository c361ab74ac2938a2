#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "actors/cluster/bulk_transfer_internal.h"
#include "actors/cluster/cluster_engine_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/plan_slice.h"
#include "actors/cluster/state_tiles.h"
#include "actors/tile_copy.h"
#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan_io.h"

namespace penstock::actors {
namespace {

using control::AsData;
using control::AsText;

// For the orderly end of a session in its nodes; the end of the job does not wait for more.
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
constexpr kj::Duration kPollInterval = 10 * kj::MILLISECONDS;
// What is taken from a node: the address of its transport, and lines of its description.
constexpr size_t kMaxAddressBytes = size_t{1} << 20;
constexpr size_t kMaxDescribeLines = 16384;

}  // namespace

ClusterEngine::ClusterEngine(control::ControlLoop& loop, NodeSupervisor& supervisor,
                             const planner::Plan& plan, EngineObserver* observer,
                             absl::Duration timeout, absl::Duration stop_timeout)
    : loop_(loop),
      supervisor_(supervisor),
      timeout_(timeout),
      stop_timeout_(stop_timeout),
      session_(std::make_shared<ClusterSession>(plan, num_processes(), observer)) {}

// --- Opening and stopping ------------------------------------------------------------------------

absl::Status ClusterEngine::Open(const std::vector<NodeDescription>& nodes,
                                 const SessionOptions& options) {
  const planner::Plan& plan = session_->plan();
  if (plan.devices.size() < num_processes()) {
    return absl::InvalidArgumentError(StrCat("a plan for ", Counted(plan.devices.size(), "device"),
                                             " cannot run in ",
                                             Counted(num_processes(), "process", "es")));
  }
  RETURN_IF_ERROR(CheckFitsNodes(nodes, options.max_memory_bytes));
  std::vector<std::shared_ptr<const std::string>> slices;
  uint64_t plan_bytes = 0;
  for (uint32_t rank = 0; rank < num_processes(); ++rank) {
    const DeviceRange devices = session_->DevicesOf(rank);
    ASSIGN_OR_RETURN(std::string slice,
                     planner::PlanToBytes(SlicePlan(plan, devices.first, devices.count)));
    plan_bytes += slice.size();
    slices.push_back(std::make_shared<const std::string>(std::move(slice)));
  }
  trace_capacity_ = options.trace ? options.trace_capacity : 0;
  RETURN_IF_ERROR(loop_.Await(
      [&]() -> kj::Promise<void> {
        const absl::Status begun = supervisor_.BeginSession(session_);
        if (!begun.ok()) return control::ToException(begun);
        return kj::READY_NOW;
      },
      timeout_, "the start of the session"));
  const auto addresses = std::make_shared<std::vector<std::string>>(num_processes());
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        return OpenNode(rank, node, slices[rank], options, addresses);
      },
      "the loading of the plan", control::BoundOf(timeout_, plan_bytes)));
  return CallAll(
      [&](uint32_t, control::Node::Client& node) {
        auto call = node.connectRequest();
        call.setGeneration(session_->generation());
        auto processes = call.initProcesses(num_processes());
        for (uint32_t rank = 0; rank < num_processes(); ++rank) {
          processes[rank].setFirstDevice(session_->DevicesOf(rank).first);
          processes[rank].setAddress(AsData((*addresses)[rank].data(), (*addresses)[rank].size()));
        }
        return call.send().ignoreResult();
      },
      "the loading of the devices");
}

// The processes of a host share its memory; a limit that was given is for all of them.
absl::Status ClusterEngine::CheckFitsNodes(const std::vector<NodeDescription>& nodes,
                                           uint64_t given_limit) const {
  const planner::Plan& plan = session_->plan();
  std::map<std::string, uint64_t> used;
  for (const NodeDescription& node : nodes) {
    const DeviceRange devices = session_->DevicesOf(node.rank);
    RETURN_IF_ERROR(CheckFits(plan, devices.first, devices.count,
                              given_limit > 0 ? given_limit : node.memory_bytes,
                              &used[given_limit > 0 ? "" : node.host]));
  }
  return absl::OkStatus();
}

kj::Promise<void> ClusterEngine::OpenNode(
    uint32_t rank, control::Node::Client& node, const std::shared_ptr<const std::string>& slice,
    const SessionOptions& options, const std::shared_ptr<std::vector<std::string>>& addresses) {
  auto call = node.openRequest();
  auto spec = call.initSession();
  spec.setGeneration(session_->generation());
  BulkSource source;
  source.Add(slice->size(), [slice](uint64_t offset, size_t size, std::byte* to) {
    memcpy(to, slice->data() + offset, size);
  });
  spec.setPlanBytes(source.num_bytes());
  auto offered = control::Offer(std::move(source), spec.initPlan());
  spec.setFirstDevice(session_->DevicesOf(rank).first);
  spec.setNumDevices(session_->DevicesOf(rank).count);
  spec.setThreadsPerDevice(static_cast<uint32_t>(std::max(options.threads_per_device, 1)));
  spec.setSeed(options.seed);
  spec.setTimeoutMs(static_cast<uint64_t>(absl::ToInt64Milliseconds(options.timeout)));
  spec.setTraceCapacity(trace_capacity_);
  spec.setMaxMemoryBytes(options.max_memory_bytes);
  spec.setCheckResults(static_cast<uint8_t>(options.check_results));
  spec.setFirstStep(options.first_step);
  call.setObserver(session_->MakeObserver(rank));
  return call.send().attach(std::move(offered)).then([addresses, rank](auto&& response) {
    const auto address = response.getAddress();
    if (address.size() > kMaxAddressBytes) {
      kj::throwFatalException(control::ToException(absl::InternalError(
          StrCat("node ", rank, " has sent an address of ", address.size(), " bytes"))));
    }
    (*addresses)[rank] = AsText(address);
  });
}

void ClusterEngine::Stop() {
  if (is_stopped_) return;
  is_stopped_ = true;
  // Whether or not the nodes answer, the session is over for this side.
  (void)loop_.Await(
      [&]() -> kj::Promise<void> {
        session_->End();
        supervisor_.EndSession(session_);
        if (!supervisor_.loss().ok()) return kj::READY_NOW;
        return ForAll([&](uint32_t, control::Node::Client& node) {
          auto call = node.closeRequest();
          call.setGeneration(session_->generation());
          return call.send().ignoreResult();
        });
      },
      std::min(stop_timeout_, kCloseTimeout), "the end of the session");
}

// --- Steps ---------------------------------------------------------------------------------------

void ClusterEngine::Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
  loop_.Post([&supervisor = supervisor_, session = session_, step, buffers] {
    if (session->is_over() || !supervisor.loss().ok()) return;
    session->Submit(step, buffers);
    for (uint32_t rank = 0; rank < supervisor.ranks().size(); ++rank) {
      KJ_IF_MAYBE (node, supervisor.NodeOf(rank)) {
        auto call = node->submitRequest();
        call.setGeneration(session->generation());
        call.setStep(step);
        BulkSource feeds;
        for (const Tensor& feed : buffers->feeds) {
          feeds.Add(feed.num_bytes(), [feed](uint64_t offset, size_t size, std::byte* bytes) {
            memcpy(bytes, static_cast<const std::byte*>(feed.data()) + offset, size);
          });
        }
        auto offered = control::Offer(std::move(feeds), call.initFeeds());
        supervisor.tasks().add(
            session->UntilEnd(call.send().ignoreResult().attach(std::move(offered)))
                .catch_([session, rank](const kj::Exception& exception) {
                  session->OnFailure(rank, control::FromException(exception));
                }));
      }
    }
  });
}

std::vector<std::string> ClusterEngine::Describe(absl::Duration timeout) {
  const auto lines = std::make_shared<std::vector<std::string>>();
  const absl::Status status = CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        auto call = node.describeRequest();
        call.setGeneration(session_->generation());
        call.setTimeoutMs(static_cast<uint32_t>(absl::ToInt64Milliseconds(timeout)));
        const std::string late = StrCat(supervisor_.ranks().NameOf(rank), ": does not answer");
        return call.send()
            .then([lines](auto&& response) {
              for (const auto line : response.getLines()) {
                if (lines->size() >= kMaxDescribeLines) break;
                lines->emplace_back(line.begin(), std::min(line.size(), control::kMaxTextBytes));
              }
            })
            .exclusiveJoin(loop_.timer()
                               .afterDelay(control::ToKj(timeout + absl::Seconds(1)))
                               .then([lines, late] { lines->push_back(late); }));
      },
      "the description of the devices", timeout + absl::Seconds(2));
  if (!status.ok()) lines->emplace_back(ToStd(status.message()));
  return *lines;
}

// --- States --------------------------------------------------------------------------------------

// What ReadTiles reads from one node.
struct ClusterEngine::StateReading {
  control::Node::Client node;
  const planner::StatePlan& state;
  Tensor value;
  const std::vector<uint32_t> placements;
};

// Each tile is read once, from the first process that has it.
absl::Status ClusterEngine::ReadState(const planner::StatePlan& state, Tensor* value) {
  uint64_t num_bytes = 0;
  const auto num_devices = static_cast<uint32_t>(session_->plan().devices.size());
  std::vector<std::vector<uint32_t>> placements(num_processes());  // of each process
  for (const StateTile& tile : StateTiles(state, 0, num_devices)) {
    uint32_t owner = 0;
    while (!session_->DevicesOf(owner).Has(state.placements[tile[0]].device)) ++owner;
    placements[owner].push_back(tile[0]);
    num_bytes += state.placements[tile[0]].tile.num_bytes();
  }
  return CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        const auto reading = std::make_shared<StateReading>(
            StateReading{node, state, *value, std::move(placements[rank])});
        return ReadTiles(reading, 0);
      },
      StrCat("reading the state '", state.name, "'"), control::BoundOf(timeout_, num_bytes));
}

absl::Status ClusterEngine::WriteState(const planner::StatePlan& state, const Tensor& value) {
  const uint64_t most_bytes = num_processes() * value.num_bytes();
  return CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        const DeviceRange devices = session_->DevicesOf(rank);
        BulkSource source;
        for (const StateTile& placements : StateTiles(state, devices.first, devices.count)) {
          const graph::TileDesc& tile = state.placements[placements[0]].tile;
          source.Add(tile.num_bytes(), [copy = TileCopy(tile), value](uint64_t offset, size_t size,
                                                                      std::byte* bytes) {
            copy.RangeFromGlobal(value.data(), 0, static_cast<int64_t>(offset),
                                 static_cast<int64_t>(size), bytes);
          });
        }
        auto call = node.writeStateRequest();
        call.setGeneration(session_->generation());
        call.setState(IndexOf(state));
        auto offered = control::Offer(std::move(source), call.initTiles());
        return call.send().ignoreResult().attach(std::move(offered));
      },
      StrCat("writing the state '", state.name, "'"), control::BoundOf(timeout_, most_bytes));
}

// Reads the placements from `next` on, one after the other.
kj::Promise<void> ClusterEngine::ReadTiles(const std::shared_ptr<StateReading>& reading,
                                           size_t next) {
  if (next == reading->placements.size()) return kj::READY_NOW;
  const uint32_t placement = reading->placements[next];
  const graph::TileDesc& tile = reading->state.placements[placement].tile;
  BulkTarget target;
  target.Add(tile.num_bytes(), [copy = TileCopy(tile), reading](uint64_t offset, size_t size,
                                                                const std::byte* bytes) {
    copy.RangeToGlobal(bytes, 0, static_cast<int64_t>(offset), static_cast<int64_t>(size),
                       reading->value.data());
  });
  return control::ReadPieces(
             [this, reading, placement](uint64_t offset, uint32_t size) {
               auto call = reading->node.readStateRequest();
               call.setGeneration(session_->generation());
               call.setState(IndexOf(reading->state));
               call.setPlacement(placement);
               call.setOffset(offset);
               call.setSize(size);
               return call.send();
             },
             std::move(target))
      .then([this, reading, next] { return ReadTiles(reading, next + 1); });
}

// --- Traces --------------------------------------------------------------------------------------

absl::StatusOr<std::vector<TraceEvent>> ClusterEngine::TakeTrace() {
  if (is_stopped_) return absl::FailedPreconditionError("the session was stopped");
  const auto events = std::make_shared<std::vector<TraceEvent>>();
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        const uint64_t max_events = session_->DevicesOf(rank).count * trace_capacity_;
        return TakeEvents(node, max_events, events);
      },
      "reading the trace"));
  return *std::move(events);
}

// At most `max_events` events, until there are no more.
kj::Promise<void> ClusterEngine::TakeEvents(
    control::Node::Client node, uint64_t max_events,
    const std::shared_ptr<std::vector<TraceEvent>>& events) {
  auto call = node.takeTraceRequest();
  call.setGeneration(session_->generation());
  return call.send().then([this, node = kj::mv(node), max_events,
                           events](auto&& response) mutable -> kj::Promise<void> {
    const planner::Plan& plan = session_->plan();
    const auto received = response.getEvents();
    const uint64_t count = std::min<uint64_t>(received.size(), max_events);
    for (uint64_t i = 0; i < count; ++i) {
      const auto event = received[static_cast<unsigned>(i)];
      if (event.getDevice() >= plan.devices.size()) continue;
      const planner::DevicePlan& device = plan.devices[event.getDevice()];
      const bool is_phase = event.getActor() == planner::kNone;
      if (event.getPhase() >= device.phases.size()) continue;
      if (!is_phase && event.getActor() >= device.actors.size()) continue;
      events->push_back({event.getDevice(), event.getActor(), event.getPhase(),
                         event.getMicrobatch(), event.getStep(), event.getBeginNs(),
                         event.getEndNs()});
    }
    if (!response.getHasMore() || count == 0) return kj::READY_NOW;
    return TakeEvents(kj::mv(node), max_events - count, events);
  });
}

// --- Calls ---------------------------------------------------------------------------------------

kj::Promise<void> ClusterEngine::ForAll(const CallNode& call) {
  auto calls = kj::heapArrayBuilder<kj::Promise<void>>(num_processes());
  for (uint32_t rank = 0; rank < num_processes(); ++rank) {
    KJ_IF_MAYBE (node, supervisor_.NodeOf(rank)) {
      calls.add(call(rank, *node).catch_([this, rank](const kj::Exception& exception) {
        const absl::Status status = control::FromException(exception);
        kj::throwFatalException(control::ToException(
            absl::Status(status.code(),
                         StrCat(supervisor_.ranks().NameOf(rank), ": ", ToStd(status.message())))));
      }));
    } else {
      calls.add(control::ToException(
          absl::UnavailableError(StrCat(supervisor_.ranks().NameOf(rank), " is gone"))));
    }
  }
  return kj::joinPromises(calls.finish());
}

absl::Status ClusterEngine::CallAll(const CallNode& call, std::string_view what,
                                    absl::Duration timeout) {
  absl::Status status = loop_.Await([&] { return ForAll(call); }, timeout, what);
  if (!absl::IsUnavailable(status)) return status;
  (void)loop_.Await(
      [&] { return AwaitLoss(loop_.timer().now() + ClusterSession::kPeerGrace, &status); },
      absl::Seconds(5), "the cause");
  return status;
}

// Sets `status` to the loss of a node, if there is one by `deadline`.
kj::Promise<void> ClusterEngine::AwaitLoss(kj::TimePoint deadline, absl::Status* status) {
  if (!supervisor_.loss().ok()) {
    *status = supervisor_.loss();
    return kj::READY_NOW;
  }
  if (loop_.timer().now() >= deadline) return kj::READY_NOW;
  return loop_.timer().afterDelay(kPollInterval).then([this, deadline, status] {
    return AwaitLoss(deadline, status);
  });
}

}  // namespace penstock::actors
