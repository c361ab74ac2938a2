#include <algorithm>
#include <cstring>
#include <map>
#include <numeric>
#include <optional>
#include <utility>

#include "actors/cluster/chunked_transfer_internal.h"
#include "actors/cluster/cluster_engine_internal.h"
#include "actors/cluster/cluster_kept_states_internal.h"
#include "actors/cluster/connection_internal.h"
#include "actors/cluster/core_groups.h"
#include "actors/cluster/node_calls_internal.h"
#include "actors/cluster/plan_slice.h"
#include "actors/cluster/read_tiles_internal.h"
#include "actors/cluster/state_exchange_internal.h"
#include "actors/engine/tile_copy.h"
#include "actors/session/kept_tiles.h"
#include "actors/session/state_tiles.h"
#include "base/counted.h"
#include "base/device.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/plan_io.h"

namespace penstock::actors {
namespace {

using control::AsData;

// For the orderly end of a session in its nodes; the end of the job does not wait for more.
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
// Limit of the lines that are taken from a node's description.
constexpr size_t kMaxWaits = 16384;
constexpr int kClockReadings = 16;  // for one anchor

size_t TextSize(capnp::Text::Reader text) { return std::min(text.size(), control::kMaxTextBytes); }

}  // namespace

ClusterEngine::ClusterEngine(std::shared_ptr<ClusterAccess> access, control::ControlLoop& loop,
                             NodeSupervisor& supervisor, caf::actor_system& system,
                             const planner::Plan& plan, EngineObserver* observer,
                             const SessionOptions& options, absl::Duration stop_timeout,
                             OnCollectives on_collectives)
    : access_(std::move(access)),
      loop_(loop),
      supervisor_(supervisor),
      system_(system),
      timeout_(options.timeout),
      stop_timeout_(stop_timeout),
      on_collectives_(std::move(on_collectives)),
      session_(std::make_shared<ClusterSession>(
          plan,
          options.num_processes > 0 ? std::min(options.num_processes, supervisor.num_processes())
                                    : supervisor.num_processes(),
          observer, supervisor.process_devices(), options.first_step)),
      inspector_(std::make_shared<ClusterInspector>(access_, session_)),
      calls_(loop, supervisor, session_->num_processes()) {}

// --- Opening and stopping ------------------------------------------------------------------------

absl::Status ClusterEngine::Open(const std::vector<NodeDescription>& nodes,
                                 const SessionOptions& options) {
  const planner::Plan& plan = session_->plan();
  if (plan.devices.size() < num_processes()) {
    return absl::InvalidArgumentError(StrCat("a plan for ", Counted(plan.devices.size(), "device"),
                                             " cannot run in ",
                                             Counted(num_processes(), "process", "es")));
  }
  RETURN_IF_ERROR(CheckFitsNodes(nodes, options));
  hosts_.resize(supervisor_.num_processes());
  for (const NodeDescription& node : nodes) hosts_[node.rank] = node.host;
  FindOversubscribedNodes(nodes, options);
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
  RETURN_IF_ERROR(
      loop_.Await([&]() -> control::StatusPromise { return supervisor_.BeginSession(session_); },
                  timeout_, "the start of the session"));
  const auto opened = std::make_shared<std::vector<OpenedNode>>(num_processes());
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        return OpenNode(rank, node, slices[rank], options, opened);
      },
      "the loading of the plan", control::BoundOf(timeout_, plan_bytes)));
  ASSIGN_OR_RETURN(const std::optional<NodeCollectives> collectives,
                   OpenCollectives(*opened, nodes, options));
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        auto call = node.connectRequest();
        call.setGeneration(session_->generation());
        auto processes = call.initProcesses(num_processes());
        for (uint32_t other = 0; other < num_processes(); ++other) {
          const std::string& address = (*opened)[other].address;
          processes[other].setFirstDevice(session_->DevicesOf(other).first);
          processes[other].setAddress(AsData(address.data(), address.size()));
        }
        if (collectives.has_value()) {
          const DeviceRange devices = session_->DevicesOf(rank);
          WriteCollectives(PartOf(*collectives, devices), devices, call.initCollectives());
        }
        return control::StatusOf(call.send());
      },
      "the loading of the devices"));
  return trace_capacity_ > 0 ? ReadClocks() : absl::OkStatus();
}

// The processes of a host share its memory; a limit that was given is for all of them.
absl::Status ClusterEngine::CheckFitsNodes(const std::vector<NodeDescription>& nodes,
                                           const SessionOptions& options) const {
  const planner::Plan& plan = session_->plan();
  const uint64_t given_limit = options.max_memory_bytes;
  std::map<std::string, uint64_t> used;
  if (given_limit == 0) {
    RETURN_IF_ERROR(loop_.Await(
        [&]() -> kj::Promise<void> {
          for (const NodeDescription& node : nodes) {
            used[node.host] += supervisor_.BytesInUse(node.rank);
          }
          return kj::READY_NOW;
        },
        timeout_, "the memory in use"));
  }
  // As if memory were shared on each host; where it is not, the node finds out.
  std::vector<std::string> hosts(plan.devices.size());
  for (const NodeDescription& node : nodes) {
    if (node.rank >= num_processes()) continue;
    const DeviceRange devices = session_->DevicesOf(node.rank);
    std::fill_n(hosts.begin() + devices.first, devices.count, node.host);
  }
  const CanView can_view = [&hosts](uint32_t reader, uint32_t owner) {
    return hosts[reader] == hosts[owner];
  };
  if (options.reserves_state_copy) {
    for (const NodeDescription& node : nodes) {
      if (node.rank >= num_processes()) continue;
      const DeviceRange devices = session_->DevicesOf(node.rank);
      used[given_limit > 0 ? "" : node.host] +=
          KeptTiles::BytesOfAll(plan, devices.first, devices.count);
    }
  }
  // Neighbours that share memory are checked together, so that the error says what all of them
  // lack.
  for (size_t i = 0; i < nodes.size();) {
    const NodeDescription& node = nodes[i++];
    if (node.rank >= num_processes()) continue;
    DeviceRange devices = session_->DevicesOf(node.rank);
    for (; i < nodes.size() && nodes[i].rank < num_processes(); ++i) {
      const DeviceRange next = session_->DevicesOf(nodes[i].rank);
      const bool is_shared = given_limit > 0 || nodes[i].host == node.host;
      if (!is_shared || next.first != devices.first + devices.count) break;
      devices.count += next.count;
    }
    RETURN_IF_ERROR(CheckFits(plan, devices.first, devices.count,
                              given_limit > 0 ? given_limit : node.memory_bytes, can_view,
                              &used[given_limit > 0 ? "" : node.host]));
  }
  return absl::OkStatus();
}

void ClusterEngine::FindOversubscribedNodes(const std::vector<NodeDescription>& nodes,
                                            const SessionOptions& options) {
  is_oversubscribed_.resize(num_processes());
  std::vector<NodeDescription> used;
  for (const NodeDescription& node : nodes) {
    if (node.rank >= num_processes()) continue;
    used.push_back(node);
    used.back().num_devices = session_->DevicesOf(node.rank).count;
  }
  for (const CoreGroup& group : FindCoreGroups(used)) {
    const int64_t num_threads = group.num_devices * std::max(options.threads_per_device, 1);
    for (const size_t i : group.nodes) {
      is_oversubscribed_[used[i].rank] = num_threads > group.num_cores;
    }
  }
}

control::StatusPromise ClusterEngine::OpenNode(
    uint32_t rank, control::Node::Client& node, const std::shared_ptr<const std::string>& slice,
    const SessionOptions& options, const std::shared_ptr<std::vector<OpenedNode>>& opened) {
  auto call = node.openRequest();
  auto spec = call.initSession();
  spec.setGeneration(session_->generation());
  ByteSource source;
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
  spec.setTraceEvery(options.trace_every);
  spec.setMaxMemoryBytes(options.max_memory_bytes);
  spec.setCheckResults(static_cast<uint8_t>(options.check_results));
  spec.setFirstStep(options.first_step);
  spec.setInitStates(options.states == nullptr);
  spec.setCapturesGraphs(options.captures_graphs);
  spec.setLinkTimeoutMs(supervisor_.LinkTimeoutMs());
  spec.setSharesCores(is_oversubscribed_[rank]);
  call.setObserver(session_->MakeObserver(rank));
  return control::StatusOf(
             call.send(),
             [opened, rank,
              count = session_->DevicesOf(rank).count](auto&& response) -> absl::Status {
               OpenedNode& node = (*opened)[rank];
               RETURN_IF_ERROR(TakeAddress(response.getAddress(), &node.address));
               ASSIGN_OR_RETURN(node.communicators,
                                ReadCommunicators(response.getCommunicators(), count));
               return absl::OkStatus();
             })
      .attach(std::move(offered));
}

absl::StatusOr<std::optional<NodeCollectives>> ClusterEngine::OpenCollectives(
    const std::vector<OpenedNode>& opened, const std::vector<NodeDescription>& nodes,
    const SessionOptions& options) {
  const planner::Plan& plan = session_->plan();
  if (plan.collectives.empty() && plan.transfers.empty()) return std::nullopt;
  std::vector<NodeCommunicators> communicators;
  std::vector<std::string> names(num_processes());
  for (const OpenedNode& node : opened) communicators.push_back(node.communicators);
  for (const NodeDescription& node : nodes) {
    if (node.rank < num_processes()) names[node.rank] = NameOf(node);
  }
  absl::StatusOr<std::string> agreed = AgreeOnCommunicators(communicators, names);
  NodeCollectives collectives;
  if (agreed.ok()) {
    const planner::PolicyRegistry builtin_policies = planner::BuiltinPolicies();
    absl::StatusOr<StreamLaunches> launches = PlanStreamLaunches(
        plan, options.policies == nullptr ? builtin_policies : *options.policies);
    if (launches.ok()) {
      collectives.launches = *std::move(launches);
    } else {
      agreed = launches.status();
    }
  }
  if (on_collectives_ != nullptr) on_collectives_(agreed, collectives.launches.why_not_messages);
  if (!agreed.ok()) return std::nullopt;
  ASSIGN_OR_RETURN(collectives.ids, CreateGroupIds(collectives.launches.launched));
  return collectives;
}

// The node of a group's first device makes its id.
absl::StatusOr<transport::GroupIds> ClusterEngine::CreateGroupIds(planner::Launched launched) {
  const auto groups =
      std::make_shared<std::vector<std::vector<transport::DeviceGroup>>>(num_processes());
  for (transport::DeviceGroup& group : GroupsOf(session_->plan(), launched)) {
    uint32_t rank = 0;
    while (!session_->DevicesOf(rank).Has(group.devices.front())) ++rank;
    (*groups)[rank].push_back(std::move(group));
  }
  const auto ids = std::make_shared<transport::GroupIds>();
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t rank, control::Node::Client& node) -> control::StatusPromise {
        if ((*groups)[rank].empty()) return absl::OkStatus();
        auto call = node.createGroupIdsRequest();
        call.setGeneration(session_->generation());
        call.setCount(static_cast<uint32_t>((*groups)[rank].size()));
        return control::StatusOf(call.send(), [groups, ids, rank](auto&& response) -> absl::Status {
          const std::vector<transport::DeviceGroup>& of_node = (*groups)[rank];
          const auto made = response.getIds();
          if (made.size() != of_node.size()) {
            return absl::InternalError("made ids of other groups than was asked for");
          }
          for (unsigned i = 0; i < made.size(); ++i) {
            if (made[i].size() > transport::kMaxGroupIdBytes) {
              return absl::InternalError("made the id of a group that is too long");
            }
            (*ids)[of_node[i]] = control::AsText(made[i]);
          }
          return absl::OkStatus();
        });
      },
      "the ids of the groups of devices"));
  return std::move(*ids);
}

void ClusterEngine::Stop() {
  if (is_stopped_) return;
  is_stopped_ = true;
  // Whether or not the nodes answer, the session is over for this side.
  (void)loop_.Await(
      [&]() -> control::StatusPromise {
        session_->End();
        supervisor_.EndSession(session_);
        if (supervisor_.has_ended()) return absl::OkStatus();
        return calls_.ForAll([&](uint32_t, control::Node::Client& node) {
          auto call = node.closeRequest();
          call.setGeneration(session_->generation());
          return control::StatusOf(call.send());
        });
      },
      std::min(stop_timeout_, kCloseTimeout), "the end of the session");
}

// --- Steps ---------------------------------------------------------------------------------------

void ClusterEngine::Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) {
  loop_.Post([&supervisor = supervisor_, session = session_, step, buffers] {
    if (session->is_over() || supervisor.has_ended()) return;
    session->Submit(step, buffers);
    for (uint32_t rank = 0; rank < session->num_processes(); ++rank) {
      KJ_IF_MAYBE (node, supervisor.NodeOf(rank)) {
        auto call = node->submitRequest();
        call.setGeneration(session->generation());
        call.setStep(step);
        auto offered =
            control::Offer(session->FeedsOf(rank, buffers), call.initFeeds(),
                           CounterOf(supervisor.TrafficOf(rank), &NodeTraffic::feed_bytes));
        supervisor.tasks().add(session
                                   ->UntilEnd(control::StatusOf(call.send())
                                                  .attach(std::move(offered))
                                                  .then([session, rank](absl::Status&& status) {
                                                    if (!status.ok())
                                                      session->OnFailure(rank, status);
                                                  }))
                                   .catch_([](const kj::Exception&) {}));  // the session is over
      }
    }
  });
}

std::vector<WaitDescription> ClusterEngine::Describe(absl::Duration timeout) {
  const auto waits = std::make_shared<std::vector<WaitDescription>>();
  const absl::Status status = CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        auto call = node.describeRequest();
        call.setGeneration(session_->generation());
        call.setTimeoutMs(static_cast<uint32_t>(absl::ToInt64Milliseconds(timeout)));
        const std::string late = StrCat(supervisor_.NameOf(rank), ": does not answer");
        return control::StatusOf(call.send(),
                                 [waits](auto&& response) {
                                   for (const auto wait : response.getWaits()) {
                                     if (waits->size() >= kMaxWaits) break;
                                     const auto text = wait.getText();
                                     waits->push_back({std::string(text.begin(), TextSize(text)),
                                                       wait.getMayBeCause()});
                                   }
                                   return absl::OkStatus();
                                 })
            .exclusiveJoin(loop_.timer()
                               .afterDelay(control::ToKj(timeout + absl::Seconds(1)))
                               .then([waits, late] {
                                 waits->push_back({late});
                                 return absl::OkStatus();
                               }));
      },
      "the description of the devices", timeout + absl::Seconds(2));
  if (!status.ok()) waits->push_back({std::string(ToStd(status.message()))});
  return *waits;
}

// --- States --------------------------------------------------------------------------------------

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
        const auto client = std::make_shared<control::Node::Client>(node);
        auto tiles = std::make_shared<std::vector<TileToRead>>();
        for (const uint32_t placement : placements[rank]) {
          tiles->push_back({[client, generation = session_->generation(), index = IndexOf(state),
                             placement](uint64_t offset, uint32_t size) {
                              auto call = client->readStateRequest();
                              call.setGeneration(generation);
                              call.setState(index);
                              call.setPlacement(placement);
                              call.setOffset(offset);
                              call.setSize(size);
                              return call.send();
                            },
                            state.placements[placement].tile});
        }
        return ReadTiles(std::move(tiles), *value,
                         CounterOf(supervisor_.TrafficOf(rank), &NodeTraffic::state_bytes_read));
      },
      StrCat("reading the state '", state.name, "'"), control::BoundOf(timeout_, num_bytes));
}

absl::Status ClusterEngine::WriteState(const planner::StatePlan& state, const Tensor& value) {
  const uint64_t most_bytes = num_processes() * value.num_bytes();
  return CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        const DeviceRange devices = session_->DevicesOf(rank);
        ByteSource source;
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
        auto offered = control::Offer(
            std::move(source), call.initTiles(),
            CounterOf(supervisor_.TrafficOf(rank), &NodeTraffic::state_bytes_written));
        return control::StatusOf(call.send()).attach(std::move(offered));
      },
      StrCat("writing the state '", state.name, "'"), control::BoundOf(timeout_, most_bytes));
}

absl::StatusOr<std::shared_ptr<const KeptStates>> ClusterEngine::KeepStates(
    const std::vector<uint32_t>& states) {
  std::vector<planner::StatePlan> plans;
  for (const uint32_t state : states) plans.push_back(session_->plan().states[state]);
  // From here on, whatever some nodes have kept goes with it.
  auto kept = std::make_shared<ClusterKeptStates>(access_, std::move(plans), *session_, timeout_);
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t, control::Node::Client& node) {
        auto call = node.keepStatesRequest();
        call.setGeneration(session_->generation());
        call.setKept(kept->number());
        call.setStates(kj::ArrayPtr<const uint32_t>(states.data(), states.size()));
        return control::StatusOf(call.send());
      },
      "keeping the states"));
  return kept;
}

absl::StatusOr<std::vector<uint32_t>> ClusterEngine::TakeStates(const KeptStates& kept) {
  const size_t num_states = session_->plan().states.size();
  const auto* here = dynamic_cast<const ClusterKeptStates*>(&kept);
  if (here == nullptr || !here->IsOf(*access_)) {
    std::vector<uint32_t> all(num_states);
    std::iota(all.begin(), all.end(), 0);
    return all;
  }
  std::vector<std::vector<uint32_t>> missing(num_processes());  // of each node
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        auto call = node.takeStatesRequest();
        call.setGeneration(session_->generation());
        call.setKept(here->number());
        return control::StatusOf(
            call.send(), [&of_node = missing[rank], num_states](auto&& response) -> absl::Status {
              const auto states = response.getMissing();
              if (states.size() > num_states) {
                return absl::InternalError("named more states than the plan has");
              }
              for (const uint32_t state : states) {
                if (state >= num_states || (!of_node.empty() && state <= of_node.back())) {
                  return absl::InternalError("named a state twice, or one that the plan lacks");
                }
                of_node.push_back(state);
              }
              return absl::OkStatus();
            });
      },
      "taking over the states"));
  return StateExchange(loop_, supervisor_, *session_, *here, hosts_, timeout_).Move(missing);
}

// --- Traces --------------------------------------------------------------------------------------

absl::StatusOr<std::vector<TraceEvent>> ClusterEngine::TakeTrace() {
  if (is_stopped_) return absl::FailedPreconditionError("the session was stopped");
  if (trace_capacity_ == 0) return std::vector<TraceEvent>();
  RETURN_IF_ERROR(ReadClocks());
  const auto events = std::make_shared<std::vector<std::vector<TraceEvent>>>(num_processes());
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        const uint64_t max_events = session_->DevicesOf(rank).count * trace_capacity_;
        return TakeEvents(node, max_events, rank, events);
      },
      "reading the trace"));
  std::vector<TraceEvent> all;
  for (uint32_t rank = 0; rank < num_processes(); ++rank) {
    for (TraceEvent& event : (*events)[rank]) {
      event.begin_ns = clocks_[rank].ToLocal(event.begin_ns);
      event.end_ns = clocks_[rank].ToLocal(event.end_ns);
      all.push_back(event);
    }
  }
  return all;
}

// Adds an anchor to the clock of each node, the best of several.
absl::Status ClusterEngine::ReadClocks() {
  clocks_.resize(num_processes());
  const auto anchors = std::make_shared<std::vector<ClockAnchor>>(num_processes());
  RETURN_IF_ERROR(CallAll(
      [&](uint32_t rank, control::Node::Client& node) {
        (*anchors)[rank].error_ns = INT64_MAX;
        return ReadClock(node, kClockReadings, rank, anchors);
      },
      "reading the clocks"));
  for (uint32_t rank = 0; rank < num_processes(); ++rank) clocks_[rank].Add((*anchors)[rank]);
  return absl::OkStatus();
}

// Reads a node's clock `count` times and keeps the most exact reading.
control::StatusPromise ClusterEngine::ReadClock(
    control::Node::Client node, int count, uint32_t rank,
    const std::shared_ptr<std::vector<ClockAnchor>>& anchors) {
  const int64_t asked_ns = SteadyClock().NowNs();
  return node.readClockRequest().send().then(
      [this, node = kj::mv(node), count, rank, anchors,
       asked_ns](auto&& response) mutable -> control::StatusPromise {
        const ClockAnchor anchor =
            ClockAnchor::Of(asked_ns, response.getNowNs(), SteadyClock().NowNs());
        if (anchor.error_ns < (*anchors)[rank].error_ns) (*anchors)[rank] = anchor;
        if (count == 1) return absl::OkStatus();
        return ReadClock(kj::mv(node), count - 1, rank, anchors);
      });
}

// At most `max_events` events, until there are no more.
control::StatusPromise ClusterEngine::TakeEvents(
    control::Node::Client node, uint64_t max_events, uint32_t rank,
    const std::shared_ptr<std::vector<std::vector<TraceEvent>>>& events) {
  auto call = node.takeTraceRequest();
  call.setGeneration(session_->generation());
  return call.send().then([this, node = kj::mv(node), max_events, rank,
                           events](auto&& response) mutable -> control::StatusPromise {
    absl::Status status = control::ReadStatus(response.getStatus());
    if (!status.ok()) return status;
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
      (*events)[rank].push_back({event.getDevice(), event.getActor(), event.getPhase(),
                                 event.getMicrobatch(), event.getStep(), event.getBeginNs(),
                                 event.getEndNs()});
    }
    if (!response.getHasMore() || count == 0) return absl::OkStatus();
    return TakeEvents(kj::mv(node), max_events - count, rank, events);
  });
}

}  // namespace penstock::actors
