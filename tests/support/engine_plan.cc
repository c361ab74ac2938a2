#include "tests/support/engine_plan.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>
#include <utility>

#include "planner/plan/access_order.h"

namespace penstock::testing {

using planner::ActorKind;
using planner::ActorPlan;

EnginePlanBuilder::EnginePlanBuilder(uint32_t num_microbatches, std::string policy) {
  plan_.name = "test";
  plan_.num_microbatches = num_microbatches;
  plan_.policy = std::move(policy);
}

uint32_t EnginePlanBuilder::AddDevice(uint32_t stage) {
  const auto device = static_cast<uint32_t>(plan_.devices.size());
  plan_.devices.emplace_back().stage = stage;
  if (plan_.stages.size() <= stage) plan_.stages.resize(stage + 1);
  plan_.stages[stage].devices.push_back(device);
  return device;
}

uint32_t EnginePlanBuilder::AddRegister(uint32_t device, uint32_t slots, bool per_microbatch,
                                        int64_t width) {
  planner::DevicePlan& plan = plan_.devices[device];
  planner::RegisterPlan reg;
  reg.register_class = planner::RegisterClass::kChannel;
  reg.per_microbatch = per_microbatch;
  reg.slots = slots;
  reg.offset = plan.arena_bytes;
  reg.slot_bytes = (width * sizeof(double) + 63) / 64 * 64;
  plan.arena_bytes += reg.slots * reg.slot_bytes;
  plan.registers.push_back(reg);
  return static_cast<uint32_t>(plan.registers.size()) - 1;
}

uint32_t EnginePlanBuilder::AddHostRegister(uint32_t device, uint32_t slots, bool per_microbatch) {
  planner::DevicePlan& plan = plan_.devices[device];
  const uint64_t arena_bytes = plan.arena_bytes;
  plan.arena_bytes += plan.host_bytes;
  const uint32_t reg = AddRegister(device, slots, per_microbatch);
  plan.host_bytes = plan.arena_bytes - arena_bytes;
  plan.arena_bytes = arena_bytes;
  return reg;
}

uint32_t EnginePlanBuilder::AddState(uint32_t device, std::string name, std::string init) {
  return MakeState(device, AddRegister(device, 1, false), std::move(name), std::move(init));
}

uint32_t EnginePlanBuilder::AddHostState(uint32_t device, std::string name, std::string init) {
  return MakeState(device, AddHostRegister(device, 1, false), std::move(name), std::move(init));
}

uint32_t EnginePlanBuilder::MakeState(uint32_t device, uint32_t reg, std::string name,
                                      std::string init) {
  planner::RegisterPlan& entry = plan_.devices[device].registers[reg];
  entry.register_class = planner::RegisterClass::kState;
  planner::StatePlan& state = plan_.states.emplace_back();
  state.name = std::move(name);
  state.type = {DType::kF64, {kWidth}};
  state.init = std::move(init);
  state.placements.push_back({device, reg, {DType::kF64, {kWidth}, {kWidth}, {0}, {0}}});
  return reg;
}

void EnginePlanBuilder::BeginPhase(uint32_t device, std::string name, planner::PhaseKind kind,
                                   planner::Lane lane, bool per_microbatch) {
  planner::DevicePlan& plan = plan_.devices[device];
  planner::PhasePlan& phase = plan.phases.emplace_back();
  phase.name = std::move(name);
  phase.kind = kind;
  phase.lane = lane;
  phase.per_microbatch = per_microbatch;
  phase.first_actor = static_cast<uint32_t>(plan.actors.size());
}

bool EnginePlanBuilder::IsPerMicrobatch(uint32_t device) const {
  return plan_.devices[device].phases.back().per_microbatch;
}

uint64_t EnginePlanBuilder::SlotBytes(uint32_t device, uint32_t reg) const {
  return plan_.devices[device].registers[reg].slot_bytes;
}

uint32_t EnginePlanBuilder::AddActor(uint32_t device, ActorPlan actor) {
  planner::DevicePlan& plan = plan_.devices[device];
  plan.actors.push_back(std::move(actor));
  ++plan.phases.back().num_actors;
  return static_cast<uint32_t>(plan.actors.size()) - 1;
}

uint32_t EnginePlanBuilder::AddKernel(uint32_t device, std::string name, std::string op,
                                      std::vector<uint32_t> inputs, std::vector<uint32_t> outputs,
                                      graph::Attributes attributes, bool accumulate) {
  ActorPlan actor;
  actor.name = std::move(name);
  actor.kernel = static_cast<uint32_t>(plan_.kernels.size());
  planner::KernelPlan& kernel = plan_.kernels.emplace_back();
  kernel.op = std::move(op);
  kernel.attributes = std::move(attributes);
  kernel.accumulate = accumulate;
  const planner::TilePlan tile = {DType::kF64, {kWidth}, {kWidth}, {0}, {0}};
  for (const uint32_t reg : inputs) {
    actor.inputs.push_back({reg, 0});
    kernel.inputs.push_back(tile);
  }
  for (const uint32_t reg : outputs) {
    actor.outputs.push_back({reg, 0});
    kernel.outputs.push_back(tile);
  }
  return AddActor(device, std::move(actor));
}

uint32_t EnginePlanBuilder::AddFeed(uint32_t device, std::string name, uint32_t reg) {
  const auto microbatches = static_cast<int64_t>(plan_.num_microbatches);
  auto it = std::find_if(plan_.feeds.begin(), plan_.feeds.end(),
                         [&](const planner::FeedPlan& feed) { return feed.name == name; });
  if (it == plan_.feeds.end()) {
    plan_.feeds.push_back({name, {DType::kF64, {microbatches, kWidth}}});
    it = plan_.feeds.end() - 1;
  }
  ActorPlan actor;
  actor.name = name;
  actor.kind = ActorKind::kFeed;
  actor.target = static_cast<uint32_t>(it - plan_.feeds.begin());
  actor.kernel = static_cast<uint32_t>(plan_.kernels.size());
  actor.outputs.push_back({reg, 0});
  planner::KernelPlan& kernel = plan_.kernels.emplace_back();
  kernel.op = "feed";
  kernel.outputs.push_back({DType::kF64, {1, kWidth}, {microbatches, kWidth}, {0, 0}, {1, 0}});
  return AddActor(device, std::move(actor));
}

uint32_t EnginePlanBuilder::AddFetch(uint32_t device, std::string name, uint32_t reg) {
  const bool per_microbatch = IsPerMicrobatch(device);
  const int64_t rows = per_microbatch ? plan_.num_microbatches : 1;
  ActorPlan actor;
  actor.name = name;
  actor.kind = ActorKind::kFetch;
  actor.target = static_cast<uint32_t>(plan_.fetches.size());
  actor.kernel = static_cast<uint32_t>(plan_.kernels.size());
  actor.inputs.push_back({reg, 0});
  planner::KernelPlan& kernel = plan_.kernels.emplace_back();
  kernel.op = "fetch";
  kernel.inputs.push_back({DType::kF64, {1, kWidth}, {rows, kWidth}, {0, 0}, {1, 0}});
  plan_.fetches.push_back(
      {std::move(name), {DType::kF64, {rows, kWidth}}, static_cast<uint32_t>(rows)});
  return AddActor(device, std::move(actor));
}

uint32_t EnginePlanBuilder::AddCopy(uint32_t device, std::string name, uint32_t from, uint32_t to) {
  const planner::DevicePlan& plan = plan_.devices[device];
  const bool is_to_host = planner::IsOnHost(plan, plan.registers[to]);
  const uint32_t actor =
      AddKernel(device, std::move(name), is_to_host ? "to_host" : "to_device", {from}, {to});
  plan_.devices[device].actors[actor].kind = ActorKind::kCopy;
  return actor;
}

uint32_t EnginePlanBuilder::AddSend(uint32_t device, std::string name, uint32_t reg,
                                    uint32_t destination) {
  plan_.transfers.push_back(
      {plan_.num_channels++, device, destination, SlotBytes(device, reg), IsPerMicrobatch(device)});
  ActorPlan actor;
  actor.name = std::move(name);
  actor.kind = ActorKind::kSend;
  actor.target = last_transfer();
  actor.inputs.push_back({reg, 0});
  return AddActor(device, std::move(actor));
}

uint32_t EnginePlanBuilder::AddRecv(uint32_t device, std::string name, uint32_t reg,
                                    uint32_t transfer) {
  ActorPlan actor;
  actor.name = std::move(name);
  actor.kind = ActorKind::kRecv;
  actor.target = transfer;
  actor.outputs.push_back({reg, 0});
  return AddActor(device, std::move(actor));
}

uint32_t EnginePlanBuilder::AddCollectiveSpec(CollectiveKind kind, std::vector<uint32_t> devices,
                                              std::vector<int64_t> counts, bool per_microbatch) {
  CollectiveSpec& spec = plan_.collectives.emplace_back();
  spec.kind = kind;
  spec.dtype = DType::kF64;
  spec.channel = plan_.num_channels++;
  spec.devices = std::move(devices);
  spec.counts = std::move(counts);
  plan_.collective_per_microbatch.push_back(per_microbatch);
  return static_cast<uint32_t>(plan_.collectives.size()) - 1;
}

uint32_t EnginePlanBuilder::AddCollective(uint32_t device, std::string name, uint32_t collective,
                                          uint32_t input, uint32_t output) {
  ActorPlan actor;
  actor.name = std::move(name);
  actor.kind = ActorKind::kCollective;
  actor.target = collective;
  actor.inputs.push_back({input, 0});
  actor.outputs.push_back({output, 0});
  return AddActor(device, std::move(actor));
}

void EnginePlanBuilder::AddChannel(uint32_t device, uint32_t producer, uint32_t consumer,
                                   uint32_t produce, uint32_t consume, uint32_t capacity,
                                   uint32_t initial) {
  plan_.devices[device].channels.push_back(
      {producer, consumer, planner::kNone, produce, consume, capacity, initial});
}

planner::Plan EnginePlanBuilder::Build() {
  planner::Plan plan = plan_;
  for (planner::DevicePlan& device : plan.devices) {
    // The channels added so far do not say which register they are about.
    planner::DevicePlan with_registers = device;
    for (planner::ChannelPlan& channel : with_registers.channels) {
      for (const planner::OperandPlan& made : device.actors[channel.producer].outputs) {
        for (const planner::OperandPlan& used : device.actors[channel.consumer].inputs) {
          if (made.reg == used.reg) channel.reg = made.reg;
        }
      }
    }
    planner::AddOrderChannels(plan.kernels, &with_registers);
    device.channels.insert(
        device.channels.end(),
        with_registers.channels.begin() + static_cast<std::ptrdiff_t>(device.channels.size()),
        with_registers.channels.end());
  }
  return plan;
}

namespace {

using kernels::Kernel;
using kernels::KernelArgs;
using kernels::KernelDef;
using kernels::KernelSpec;

using RunFunction = absl::Status (*)(const KernelSpec& spec, const KernelArgs& args);

class FunctionKernel : public Kernel {
 public:
  FunctionKernel(KernelSpec spec, RunFunction run) : spec_(std::move(spec)), run_(run) {}
  absl::Status Run(const KernelArgs& args) override { return run_(spec_, args); }

 private:
  const KernelSpec spec_;
  const RunFunction run_;
};

KernelDef Function(RunFunction run) {
  KernelDef def;
  def.create = [run](const KernelSpec& spec, Device&,
                     Stream&) -> absl::StatusOr<std::unique_ptr<Kernel>> {
    for (const auto* tiles : {&spec.inputs, &spec.outputs}) {
      for (const graph::TileDesc& tile : *tiles) {
        if (tile.dtype != DType::kF64 || tile.num_elements() != kWidth) {
          return absl::InvalidArgumentError("test kernels work on four f64");
        }
      }
    }
    return std::make_unique<FunctionKernel>(spec, run);
  };
  def.supports_accumulate = true;
  return def;
}

const double* In(const KernelArgs& args, size_t i) {
  return static_cast<const double*>(args.inputs[i]);
}
double* Out(const KernelArgs& args) { return static_cast<double*>(args.outputs[0]); }

absl::Status Sum(const KernelSpec& spec, const KernelArgs& args) {
  const bool adds = spec.accumulate && args.microbatch > 0;
  for (int64_t i = 0; i < kWidth; ++i) {
    double sum = adds ? Out(args)[i] : 0;
    for (size_t k = 0; k < args.inputs.size(); ++k) sum += In(args, k)[i];
    Out(args)[i] = sum;
  }
  return absl::OkStatus();
}

absl::Status Affine(const KernelSpec& spec, const KernelArgs& args) {
  const double scale = spec.attributes.GetDouble("scale", 1);
  const double shift = spec.attributes.GetDouble("shift", 0);
  for (int64_t i = 0; i < kWidth; ++i) Out(args)[i] = scale * In(args, 0)[i] + shift;
  return absl::OkStatus();
}

absl::Status Iota(const KernelSpec&, const KernelArgs& args) {
  for (int64_t i = 0; i < kWidth; ++i) {
    Out(args)[i] = static_cast<double>(100 * args.step + 10 * args.microbatch + i);
  }
  return absl::OkStatus();
}

absl::Status Bump(const KernelSpec&, const KernelArgs& args) {
  for (int64_t i = 0; i < kWidth; ++i) Out(args)[i] = In(args, 0)[i] + In(args, 1)[i];
  return absl::OkStatus();
}

bool IsChosen(const KernelSpec& spec, const KernelArgs& args) {
  return args.step == spec.attributes.GetInt("step", 0) &&
         args.microbatch == spec.attributes.GetInt("microbatch", 0);
}

absl::Status FailSometimes(const KernelSpec& spec, const KernelArgs& args) {
  if (IsChosen(spec, args)) return absl::DataLossError("the disk is on fire");
  return Affine(spec, args);
}

absl::Status ThrowSometimes(const KernelSpec& spec, const KernelArgs& args) {
  if (IsChosen(spec, args)) throw std::runtime_error("out of luck");
  return Affine(spec, args);
}

absl::Status ThrowIntSometimes(const KernelSpec& spec, const KernelArgs& args) {
  if (IsChosen(spec, args)) throw 1;
  return Affine(spec, args);
}

}  // namespace

planner::Plan SendingPlan(const std::string& op) {
  EnginePlanBuilder b;
  for (int i = 0; i < 2; ++i) b.AddDevice();
  const uint32_t made = b.AddRegister(0);
  b.BeginPhase(0, "F", planner::PhaseKind::kForward);
  const uint32_t make = b.AddKernel(0, "make", op, {}, {made});
  const uint32_t send = b.AddSend(0, "send", made, 1);
  b.AddChannel(0, make, send);
  const uint32_t got = b.AddRegister(1);
  const uint32_t used = b.AddRegister(1);
  b.BeginPhase(1, "F", planner::PhaseKind::kForward);
  const uint32_t recv = b.AddRecv(1, "recv", got, b.last_transfer());
  b.AddChannel(1, recv, b.AddKernel(1, "use", "t.affine", {got}, {used}));
  return b.Build();
}

kernels::KernelRegistry EngineTestKernels() {
  kernels::KernelRegistry registry;
  const std::pair<const char*, RunFunction> functions[] = {{"t.sum", Sum},
                                                           {"t.affine", Affine},
                                                           {"t.iota", Iota},
                                                           {"t.bump", Bump},
                                                           {"t.fail", FailSometimes},
                                                           {"t.throw", ThrowSometimes},
                                                           {"t.throw_int", ThrowIntSometimes}};
  for (const auto& [op, run] : functions) registry.Add(op, Function(run)).IgnoreError();
  KernelDef refuse;
  refuse.create = [](const KernelSpec&, Device&,
                     Stream&) -> absl::StatusOr<std::unique_ptr<Kernel>> {
    return absl::UnimplementedError("no such thing in f64");
  };
  registry.Add("t.refuse", refuse).IgnoreError();
  return registry;
}

}  // namespace penstock::testing
