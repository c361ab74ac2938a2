#include "bench/actors_bench.h"

#include <algorithm>
#include <chrono>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "actors/session/session.h"
#include "base/emulated_device.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/kernel.h"
#include "planner/plan/plan.h"

namespace penstock::bench {
namespace {

using planner::ActorKind;
using planner::Lane;
using planner::PhaseKind;

constexpr std::string_view kOp = "nothing";
// Specs that actors share: about the number of different operators in a large model.
constexpr uint32_t kNumKernels = 64;
constexpr uint64_t kSlotBytes = 64;
constexpr int64_t kSlotCount = kSlotBytes / sizeof(float);
// Registers that the kernels of a device write in turn; those of communication follow.
constexpr uint32_t kNumKernelRegisters = 1024;

int64_t NowNs() { return SteadyClock().NowNs(); }

planner::Plan EmptyPlan(uint32_t num_devices, uint32_t num_microbatches,
                        uint32_t num_communication_registers = 0) {
  const uint32_t num_registers = kNumKernelRegisters + num_communication_registers;
  planner::Plan plan;
  plan.name = "null";
  plan.num_microbatches = num_microbatches;
  const planner::TilePlan tile = {DType::kF32, {kSlotCount}, {kSlotCount}, {0}, {0}};
  for (uint32_t i = 0; i < kNumKernels; ++i) {
    planner::KernelPlan& kernel = plan.kernels.emplace_back();
    kernel.op = kOp;
    kernel.inputs = {tile, tile};
    kernel.outputs = {tile};
  }
  planner::DevicePlan device;
  device.arena_bytes = num_registers * kSlotBytes;
  for (uint32_t i = 0; i < num_registers; ++i) {
    device.registers.push_back(
        {planner::RegisterClass::kWorkspace, true, 1, i * kSlotBytes, kSlotBytes});
  }
  plan.devices.assign(num_devices, device);
  planner::StagePlan& stage = plan.stages.emplace_back();
  for (uint32_t i = 0; i < num_devices; ++i) stage.devices.push_back(i);
  return plan;
}

// The actors that follow are in it.
void BeginPhase(planner::DevicePlan& device, std::string name, PhaseKind kind, Lane lane) {
  planner::PhasePlan& phase = device.phases.emplace_back();
  phase.name = std::move(name);
  phase.kind = kind;
  phase.lane = lane;
  phase.first_actor = static_cast<uint32_t>(device.actors.size());
}

uint32_t AddActor(planner::DevicePlan& device, planner::ActorPlan actor) {
  device.actors.push_back(std::move(actor));
  ++device.phases.back().num_actors;
  return static_cast<uint32_t>(device.actors.size() - 1);
}

uint32_t AddKernel(planner::DevicePlan& device) {
  const auto i = static_cast<uint32_t>(device.actors.size());
  const auto reg = [i](uint32_t back) {
    return planner::OperandPlan{(i + kNumKernelRegisters - back) % kNumKernelRegisters, 0};
  };
  planner::ActorPlan actor;
  actor.name = StrCat("a", i);
  actor.kernel = i % kNumKernels;
  actor.inputs = {reg(1), reg(2)};
  actor.outputs = {reg(0)};
  return AddActor(device, std::move(actor));
}

// Kernel i reads what i - 1 and i - 2 wrote. Returns the last.
uint32_t AddKernels(planner::DevicePlan& device, uint32_t count) {
  const auto first = static_cast<uint32_t>(device.actors.size());
  for (uint32_t i = first; i < first + count; ++i) {
    AddKernel(device);
    for (uint32_t back = 1; back <= 2 && first + back <= i; ++back) {
      device.channels.push_back({i - back, i});
    }
  }
  return first + count - 1;
}

// A send, receive or collective of one register, after the actors given.
uint32_t AddCommunication(planner::DevicePlan& device, ActorKind kind, uint32_t target,
                          uint32_t reg, std::initializer_list<uint32_t> after) {
  planner::ActorPlan actor;
  actor.name = StrCat(planner::Name(kind), target);
  actor.kind = kind;
  actor.target = target;
  if (kind != ActorKind::kRecv) actor.inputs = {{kNumKernelRegisters + reg, 0}};
  if (kind != ActorKind::kSend) actor.outputs = {{kNumKernelRegisters + reg, 0}};
  const uint32_t added = AddActor(device, std::move(actor));
  for (const uint32_t producer : after) device.channels.push_back({producer, added});
  return added;
}

planner::Plan PhasePlan(uint32_t num_actors) {
  planner::Plan plan = EmptyPlan(1, 1);
  BeginPhase(plan.devices[0], "F", PhaseKind::kForward, Lane::kCompute);
  AddKernels(plan.devices[0], num_actors);
  return plan;
}

// Device 1 answers when device 0 has run its first kernel. The answers arrive while device 0 runs
// the others, or before its last one, which waits for them:
//
//   device 0   recv 1..n, all_reduce; kernel; send 0 ──┐  kernels ...          last kernel
//   device 1                                           └─► recv 0; send 1..n, all_reduce ─┘
planner::Plan CommunicationPlan(uint32_t num_actors, uint32_t num_transfers) {
  planner::Plan plan = EmptyPlan(2, 1, num_transfers + 2);
  for (uint32_t i = 0; i <= num_transfers; ++i) {
    plan.transfers.push_back({plan.num_channels++, i == 0 ? 0u : 1u, i == 0 ? 1u : 0u,  //
                              kSlotBytes, true});
  }
  CollectiveSpec& all_reduce = plan.collectives.emplace_back();
  all_reduce.channel = plan.num_channels++;
  all_reduce.devices = {0, 1};
  all_reduce.counts = {kSlotCount / 2, kSlotCount / 2};
  plan.collective_per_microbatch = {true};

  const uint32_t reduced = num_transfers + 1;  // its register
  planner::DevicePlan& first = plan.devices[0];
  BeginPhase(first, "F", PhaseKind::kForward, Lane::kCompute);
  for (uint32_t i = 1; i <= num_transfers; ++i) {
    AddCommunication(first, ActorKind::kRecv, i, i, {});
  }
  AddCommunication(first, ActorKind::kCollective, 0, reduced, {});
  const auto first_kernel = static_cast<uint32_t>(first.actors.size());
  const uint32_t last_kernel = AddKernels(first, num_actors);
  AddCommunication(first, ActorKind::kSend, 0, 0, {first_kernel});
  for (uint32_t i = 0; i < first_kernel; ++i) first.channels.push_back({i, last_kernel});

  planner::DevicePlan& second = plan.devices[1];
  BeginPhase(second, "answer", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t question = AddCommunication(second, ActorKind::kRecv, 0, 0, {});
  for (uint32_t i = 1; i <= num_transfers; ++i) {
    AddCommunication(second, ActorKind::kSend, i, i, {question});
  }
  AddCommunication(second, ActorKind::kCollective, 0, reduced, {question});
  return plan;
}

// The backward actors read activations in the reverse order.
planner::Plan CreditsPlan(uint32_t num_actors) {
  constexpr uint32_t kKept = 2;
  planner::Plan plan = EmptyPlan(1, 4);
  planner::DevicePlan& device = plan.devices[0];
  BeginPhase(device, "F", PhaseKind::kForward, Lane::kCompute);
  const uint32_t last = AddKernels(device, num_actors / 2);
  BeginPhase(device, "B", PhaseKind::kBackward, Lane::kCompute);
  AddKernels(device, num_actors / 2);
  for (uint32_t i = 0; i <= last; ++i) {
    planner::ChannelPlan& channel = device.channels.emplace_back();
    channel.producer = last - i;
    channel.consumer = last + 1 + i;
    channel.capacity = kKept;
  }
  return plan;
}

planner::Plan ChainPlan(uint32_t num_actors) {
  planner::Plan plan = EmptyPlan(1, 2);
  planner::DevicePlan& device = plan.devices[0];
  for (uint32_t i = 0; i < num_actors; ++i) {
    BeginPhase(device, StrCat("p", i), PhaseKind::kTransfer, Lane::kFloating);
    AddKernel(device);
    if (i > 0) device.channels.push_back({i - 1, i});
  }
  return plan;
}

absl::StatusOr<ActsBenchResult> MeasureSteps(const ActsBenchOptions& options) {
  const kernels::KernelRegistry kernels = ActsKernels();
  actors::SessionOptions session_options;
  session_options.kernels = &kernels;
  if (options.shape == ActsShape::kStream) {
    session_options.create_device = [](uint32_t) { return EmulatedDevice::Create({}); };
    session_options.captures_graphs = false;  // whose launches are not acts
  }
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(ActsPlan(options), session_options));
  constexpr int kWarmUps = 3;
  for (int i = 0; i < kWarmUps; ++i) RETURN_IF_ERROR(session->Run({}).status());

  ActsBenchResult result;
  result.acts_per_step = int64_t{options.num_actors} * session->plan().num_microbatches;
  const int64_t begin = NowNs();
  const uint64_t allocations_before = options.count_allocations ? options.count_allocations() : 0;
  int64_t fastest_busy_ns = INT64_MAX;
  int64_t fastest_ns = INT64_MAX;
  int64_t steps = 0;
  for (; static_cast<double>(NowNs() - begin) < options.seconds * 1e9 || steps == 0; ++steps) {
    const int64_t submitted_ns = NowNs();
    ASSIGN_OR_RETURN(const actors::StepResult step, session->Run({}));
    fastest_ns = std::min(fastest_ns, NowNs() - submitted_ns);
    const actors::DeviceStepReport& device = step.devices[0];
    fastest_busy_ns = std::min(fastest_busy_ns, device.wall_ns - device.wait_ns);
  }
  result.ns_per_act =
      static_cast<double>(fastest_busy_ns) / static_cast<double>(result.acts_per_step);
  result.step_us = static_cast<double>(fastest_ns) * 1e-3;
  result.allocations_per_step = -1;
  if (options.count_allocations) {
    result.allocations_per_step =
        static_cast<double>(options.count_allocations() - allocations_before) /
        static_cast<double>(steps);
  }
  return result;
}

}  // namespace

std::string_view Name(ActsShape shape) {
  switch (shape) {
    case ActsShape::kPhase:
      return "phase";
    case ActsShape::kCommunication:
      return "communication";
    case ActsShape::kStream:
      return "stream";
    case ActsShape::kCredits:
      return "credits";
    case ActsShape::kChain:
      return "chain";
  }
  return "";
}

planner::Plan ActsPlan(const ActsBenchOptions& options) {
  const uint32_t num_actors = options.num_actors;
  switch (options.shape) {
    case ActsShape::kPhase:
    case ActsShape::kStream:
      break;
    case ActsShape::kCommunication:
      return CommunicationPlan(num_actors, options.num_transfers);
    case ActsShape::kCredits:
      return CreditsPlan(num_actors);
    case ActsShape::kChain:
      return ChainPlan(num_actors);
  }
  return PhasePlan(num_actors);
}

kernels::KernelRegistry ActsKernels() {
  const std::string_view ops[] = {kOp};
  return kernels::NullKernels(ops);
}

absl::StatusOr<ActsBenchResult> MeasureActs(const ActsBenchOptions& options) {
  if (options.shape != ActsShape::kCommunication) return MeasureSteps(options);
  // The same communication with next to no kernels: what it costs by itself.
  ActsBenchOptions alone = options;
  alone.num_actors = 2;
  ASSIGN_OR_RETURN(const ActsBenchResult communication, MeasureSteps(alone));
  ASSIGN_OR_RETURN(ActsBenchResult result, MeasureSteps(options));
  result.communication_us =
      communication.ns_per_act * static_cast<double>(communication.acts_per_step) * 1e-3;
  return result;
}

absl::StatusOr<WakeLatency> MeasureWakeLatency(int rounds) {
  const kernels::KernelRegistry kernels = ActsKernels();
  actors::SessionOptions session_options;
  session_options.kernels = &kernels;
  ASSIGN_OR_RETURN(const std::unique_ptr<actors::Session> session,
                   actors::Session::Start(PhasePlan(1), session_options));
  // Several times as long as an executor polls before it sleeps.
  constexpr std::chrono::microseconds kRest{500};
  const auto measure = [&](bool rests) -> absl::StatusOr<Latency> {
    std::vector<int64_t> times;
    for (int i = 0; i < rounds; ++i) {
      if (rests) std::this_thread::sleep_for(kRest);
      ASSIGN_OR_RETURN(const actors::StepResult step, session->Run({}));
      times.push_back(step.wall_ns);
    }
    std::sort(times.begin(), times.end());
    return Latency{static_cast<double>(times[times.size() / 2]) * 1e-3,
                   static_cast<double>(times[0]) * 1e-3};
  };
  WakeLatency latency;
  ASSIGN_OR_RETURN(latency.polling, measure(false));
  ASSIGN_OR_RETURN(latency.sleeping, measure(true));
  return latency;
}

}  // namespace penstock::bench
