#include "bench/messages_bench.h"

#include <algorithm>
#include <array>
#include <memory>

#include "actors/cluster/cluster.h"
#include "actors/session/session.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/plan.h"

namespace penstock::bench {
namespace {

using planner::ActorKind;
using planner::Lane;
using planner::PhaseKind;

// What `rest` works on: milliseconds.
constexpr uint64_t kRestBytes = uint64_t{32} << 20;

// Every micro-batch is one round trip; the next begins when it is back.
//
//   device 0   out: neg, send 0 ──────────┐        back: recv 1 ──► token for the next `out`
//   device 1                              └─► echo: recv 0, neg, send 1 ──┘
//
// With is_asleep, a long kernel `rest` of memory of its own comes first in `out`, and after the
// recv in `echo`.
planner::Plan PingPongPlan(const MessagesBenchOptions& options) {
  planner::Plan plan;
  plan.name = "ping-pong";
  plan.num_microbatches = static_cast<uint32_t>(options.round_trips);
  plan.num_channels = 2;
  plan.stages.push_back({{0, 1}});
  const auto count = static_cast<int64_t>(options.num_bytes / sizeof(float));
  const planner::TilePlan tile = {DType::kF32, {count}, {count}, {0}, {0}};
  planner::KernelPlan& kernel = plan.kernels.emplace_back();
  kernel.op = "neg";
  kernel.inputs = {tile};
  kernel.outputs = {tile};
  plan.transfers = {{0, 0, 1, options.num_bytes, true}, {1, 1, 0, options.num_bytes, true}};
  plan.devices.resize(2);
  const uint64_t slot_bytes = (options.num_bytes + 63) / 64 * 64;
  for (planner::DevicePlan& device : plan.devices) {
    for (uint64_t i = 0; i < 2; ++i) {
      device.registers.push_back(
          {planner::RegisterClass::kChannel, true, 1, i * slot_bytes, slot_bytes});
    }
    device.arena_bytes = 2 * slot_bytes;
    if (options.is_asleep) {
      device.registers.push_back(
          {planner::RegisterClass::kChannel, true, 1, device.arena_bytes, kRestBytes});
      device.arena_bytes += kRestBytes;
    }
    device.channel_bytes = device.arena_bytes;
  }
  if (options.is_asleep) {
    constexpr int64_t kRestCount = kRestBytes / sizeof(float);
    const planner::TilePlan rest = {DType::kF32, {kRestCount}, {kRestCount}, {0}, {0}};
    plan.kernels.push_back(plan.kernels[0]);
    plan.kernels[1].inputs = {rest};
    plan.kernels[1].outputs = {rest};
  }
  const auto actor = [](std::string name, ActorKind kind, uint32_t what) {
    planner::ActorPlan result;
    result.name = std::move(name);
    result.kind = kind;
    if (kind == ActorKind::kKernel) {
      result.kernel = what;
      result.inputs = {{0, 0}};
      result.outputs = {{1, 0}};
    } else {
      result.target = what;
      (kind == ActorKind::kSend ? result.inputs
                                : result.outputs) = {{kind == ActorKind::kSend ? 1u : 0u, 0}};
    }
    return result;
  };
  const auto phase = [&](std::string name, uint32_t first, uint32_t count) {
    planner::PhasePlan result;
    result.name = std::move(name);
    result.kind = PhaseKind::kTransfer;
    result.lane = Lane::kFloating;
    result.first_actor = first;
    result.num_actors = count;
    return result;
  };
  planner::DevicePlan& first = plan.devices[0];
  first.actors = {actor("out", ActorKind::kKernel, 0), actor("send", ActorKind::kSend, 0),
                  actor("recv", ActorKind::kRecv, 1)};
  first.phases = {phase("out", 0, 2), phase("back", 2, 1)};
  // The answer opens the way for the next; what `out` reads is written by it.
  first.channels = {{0, 1}, {2, 0, planner::kNone, 1, 1, 1, 1}};
  planner::DevicePlan& second = plan.devices[1];
  second.actors = {actor("recv", ActorKind::kRecv, 0), actor("echo", ActorKind::kKernel, 0),
                   actor("send", ActorKind::kSend, 1)};
  second.phases = {phase("echo", 0, 3)};
  second.channels = {{0, 1}, {1, 2}};
  if (options.is_asleep) {
    planner::ActorPlan rest = actor("rest", ActorKind::kKernel, 1);
    rest.inputs = rest.outputs = {{2, 0}};
    first.actors.insert(first.actors.begin(), rest);
    first.phases = {phase("out", 0, 3), phase("back", 3, 1)};
    first.channels = {{0, 1}, {1, 2}, {3, 0, planner::kNone, 1, 1, 1, 1}};
    second.actors.insert(second.actors.begin() + 1, rest);
    second.phases = {phase("echo", 0, 4)};
    second.channels = {{0, 1}, {1, 2}, {2, 3}};
  }
  return plan;
}

// The median of the hops from the kernel before a message to the kernel after it.
absl::StatusOr<double> MedianHopUs(const planner::Plan& plan,
                                   const std::vector<actors::TraceEvent>& events) {
  // By device: when the kernels that receive begin and those that send end, in order.
  std::array<std::vector<int64_t>, 2> begins, ends;
  for (const actors::TraceEvent& event : events) {
    if (event.actor == planner::kNone) continue;
    const std::string& name = plan.devices[event.device].actors[event.actor].name;
    if (name == "rest") begins[event.device].push_back(event.begin_ns);
    if (name == "out" || name == "echo") ends[event.device].push_back(event.end_ns);
  }
  std::vector<double> hops;
  for (const uint32_t to : {0u, 1u}) {
    // Device 0 begins, and hears of its message i when its kernel i + 1 begins.
    const size_t first = to == 0 ? 1 : 0;
    const size_t count = std::min(ends[1 - to].size(), std::max(begins[to].size(), first) - first);
    std::sort(ends[1 - to].begin(), ends[1 - to].end());
    std::sort(begins[to].begin(), begins[to].end());
    for (size_t i = 0; i < count; ++i) {
      hops.push_back(1e-3 * static_cast<double>(begins[to][i + first] - ends[1 - to][i]));
    }
  }
  if (hops.empty()) return absl::InternalError("the trace holds no messages");
  const auto middle = hops.begin() + static_cast<std::ptrdiff_t>(hops.size() / 2);
  std::nth_element(hops.begin(), middle, hops.end());
  return *middle;
}

}  // namespace

absl::StatusOr<double> MeasureMessages(const MessagesBenchOptions& options) {
  actors::SessionOptions session_options;
  session_options.kernels = options.kernels;
  session_options.trace = options.is_asleep;
  std::unique_ptr<actors::Cluster> cluster;
  if (options.placement != Placement::kThreads) {
    actors::ClusterOptions cluster_options;
    cluster_options.num_processes = 2;
    cluster_options.node_command = options.node_command;
    if (options.placement == Placement::kProcessesOneCore) cluster_options.max_cores = 1;
    ASSIGN_OR_RETURN(cluster, actors::Cluster::Start(cluster_options));
    session_options.start_engine = cluster->engine_factory();
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(PingPongPlan(options), session_options));
  if (options.is_asleep) {
    RETURN_IF_ERROR(session->Run({}).status());
    return MedianHopUs(session->plan(), session->TakeTrace());
  }
  double best_us = 0;
  for (int round = 0; round < options.rounds; ++round) {
    ASSIGN_OR_RETURN(const actors::StepResult step, session->Run({}));
    const double hop_us = 1e-3 * static_cast<double>(step.devices[0].wall_ns) /
                          (2.0 * static_cast<double>(options.round_trips));
    best_us = round == 0 ? hop_us : std::min(best_us, hop_us);
  }
  return best_us;
}

}  // namespace penstock::bench
