#include "tests/support/plans.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/strings.h"

namespace penstock::testing {

using planner::ActorKind;
using planner::ActorPlan;
using planner::ChannelPlan;
using planner::DevicePlan;
using planner::KernelPlan;
using planner::kNone;
using planner::Lane;
using planner::OperandPlan;
using planner::PhaseKind;
using planner::Plan;
using planner::RegisterClass;
using planner::RegisterPlan;
using planner::TilePlan;

namespace {

constexpr uint64_t kBytes = 64;  // of the registers of the plans made here
constexpr int64_t kElements = kBytes / 4;

TilePlan VectorTile(int64_t num_elements) {
  return {DType::kF32, {num_elements}, {num_elements}, {0}, {0}, true};
}

uint32_t FindOrAddKernel(Plan* plan, KernelPlan kernel) {
  // Plans made here have few kernels, the latest of which are the likely ones.
  const auto it = std::find(plan->kernels.rbegin(), plan->kernels.rend(), kernel);
  if (it != plan->kernels.rend()) return static_cast<uint32_t>(plan->kernels.rend() - it) - 1;
  plan->kernels.push_back(std::move(kernel));
  return static_cast<uint32_t>(plan->kernels.size()) - 1;
}

}  // namespace

uint32_t DeviceBuilder::AddRegister(RegisterClass register_class, uint64_t slot_bytes,
                                    uint32_t slots, bool per_microbatch) {
  DevicePlan& plan = device();
  plan.registers.push_back({register_class, per_microbatch, slots, plan.arena_bytes, slot_bytes});
  const uint64_t num_bytes = slot_bytes * slots;
  plan.arena_bytes += num_bytes;
  if (register_class == RegisterClass::kState) plan.state_bytes += num_bytes;
  if (register_class == RegisterClass::kChannel) plan.channel_bytes += num_bytes;
  if (register_class == RegisterClass::kWorkspace) plan.workspace_bytes += num_bytes;
  return static_cast<uint32_t>(plan.registers.size()) - 1;
}

uint32_t DeviceBuilder::AddHostRegister(RegisterClass register_class, uint64_t slot_bytes,
                                        uint32_t slots, bool per_microbatch) {
  DevicePlan& plan = device();
  plan.registers.push_back(
      {register_class, per_microbatch, slots, plan.arena_bytes + plan.host_bytes, slot_bytes});
  plan.host_bytes += slot_bytes * slots;
  return static_cast<uint32_t>(plan.registers.size()) - 1;
}

void DeviceBuilder::AddPhase(std::string name, PhaseKind kind, Lane lane, bool per_microbatch) {
  const auto first_actor = static_cast<uint32_t>(device().actors.size());
  device().phases.push_back({std::move(name), kind, lane, per_microbatch, first_actor, 0, 1e-3});
}

uint32_t DeviceBuilder::AddActor(ActorPlan actor) {
  device().actors.push_back(std::move(actor));
  ++device().phases.back().num_actors;
  return static_cast<uint32_t>(device().actors.size()) - 1;
}

uint32_t DeviceBuilder::AddKernel(std::string name, std::vector<uint32_t> inputs,
                                  std::vector<uint32_t> outputs) {
  KernelPlan kernel;
  kernel.op = "test";
  ActorPlan actor;
  actor.name = std::move(name);
  for (const uint32_t reg : inputs) {
    kernel.inputs.push_back(VectorTile(device().registers[reg].slot_bytes / 4));
    actor.inputs.push_back({reg, 0});
  }
  for (const uint32_t reg : outputs) {
    kernel.outputs.push_back(VectorTile(device().registers[reg].slot_bytes / 4));
    actor.outputs.push_back({reg, 0});
  }
  actor.kernel = FindOrAddKernel(plan_, std::move(kernel));
  return AddActor(std::move(actor));
}

uint32_t DeviceBuilder::AddCollective(std::string name, uint32_t collective, uint32_t input,
                                      uint32_t output) {
  ActorPlan actor;
  actor.name = std::move(name);
  actor.kind = ActorKind::kCollective;
  actor.target = collective;
  actor.inputs = {{input, 0}};
  actor.outputs = {{output, 0}};
  return AddActor(std::move(actor));
}

uint32_t DeviceBuilder::AddSend(std::string name, uint32_t transfer, uint32_t input) {
  ActorPlan actor;
  actor.name = std::move(name);
  actor.kind = ActorKind::kSend;
  actor.target = transfer;
  actor.inputs = {{input, 0}};
  return AddActor(std::move(actor));
}

uint32_t DeviceBuilder::AddRecv(std::string name, uint32_t transfer, uint32_t output) {
  ActorPlan actor;
  actor.name = std::move(name);
  actor.kind = ActorKind::kRecv;
  actor.target = transfer;
  actor.outputs = {{output, 0}};
  return AddActor(std::move(actor));
}

uint32_t DeviceBuilder::AddCopy(std::string name, uint32_t input, uint32_t output) {
  const uint32_t actor = AddKernel(std::move(name), {input}, {output});
  const bool is_to_host = IsOnHost(device(), device().registers[output]);
  const TilePlan tile = VectorTile(device().registers[input].slot_bytes / 4);
  device().actors[actor].kind = ActorKind::kCopy;
  device().actors[actor].kernel =
      FindOrAddKernel(plan_, {is_to_host ? "to_host" : "to_device", {}, {tile}, {tile}});
  return actor;
}

void DeviceBuilder::Join(uint32_t producer, uint32_t consumer, uint32_t reg) {
  AddChannel({.producer = producer, .consumer = consumer, .reg = reg});
}

void DeviceBuilder::AddChannel(ChannelPlan channel) { device().channels.push_back(channel); }

Plan EmptyPlan(uint32_t num_stages, uint32_t devices_per_stage, uint32_t num_microbatches) {
  Plan plan;
  plan.name = "test";
  plan.num_microbatches = num_microbatches;
  for (uint32_t s = 0; s < num_stages; ++s) {
    plan.stages.emplace_back();
    for (uint32_t i = 0; i < devices_per_stage; ++i) {
      plan.stages.back().devices.push_back(static_cast<uint32_t>(plan.devices.size()));
      plan.devices.emplace_back().stage = s;
    }
  }
  return plan;
}

uint32_t AddAllReduce(Plan* plan, std::vector<uint32_t> devices, int64_t num_elements,
                      bool per_microbatch) {
  CollectiveSpec spec;
  spec.channel = plan->num_channels++;
  for (size_t r = 0; r < devices.size(); ++r) {
    spec.counts.push_back(PartOf(num_elements, r, devices.size()).size());
  }
  spec.devices = std::move(devices);
  plan->collectives.push_back(std::move(spec));
  plan->collective_per_microbatch.push_back(per_microbatch);
  return static_cast<uint32_t>(plan->collectives.size()) - 1;
}

uint32_t AddTransfer(Plan* plan, uint32_t source, uint32_t destination, uint64_t num_bytes,
                     bool per_microbatch) {
  plan->transfers.push_back({plan->num_channels++, source, destination, num_bytes, per_microbatch});
  return static_cast<uint32_t>(plan->transfers.size()) - 1;
}

Plan TrainingPlan(uint32_t num_microbatches, uint32_t credits) {
  const uint32_t m = num_microbatches;
  Plan plan = EmptyPlan(2, 2, m);
  plan.name = "training";
  plan.strategy = "tp=2,pp=2";
  plan.graph_fingerprint = 0x0123456789abcdef;
  plan.settings = {{"batch", "16"}, {"rate", "0.001"}};
  plan.predicted_step_s = 0.0125;
  plan.feeds.push_back({"x", {DType::kF32, {kElements * m}}});
  plan.fetches.push_back({"loss", {DType::kF32, {2, kElements}}, 2});
  KernelPlan feed;
  feed.op = "feed";
  feed.outputs = {{DType::kF32, {kElements}, {kElements * m}, {0}, {kElements}, true}};
  plan.kernels.push_back(feed);
  plan.kernels.push_back({});
  plan.kernels[1].op = "spare";
  plan.kernels[1].attributes = {
      {"axis", 1},      {"eps", 1e-5},          {"flag", true},
      {"mode", "mean"}, {"type", DType::kBF16}, {"dims", graph::AttrValue::Ints({1, -2, 3})}};
  plan.kernels[1].accumulate = true;
  plan.kernels[1].outputs = {{DType::kI64, {}, {}, {}, {}, false}};

  for (uint32_t s = 0; s < 2; ++s) {
    const uint32_t d = 2 * s;
    AddAllReduce(&plan, {d, d + 1}, kElements, true);
  }
  for (uint32_t s = 0; s < 2; ++s) {
    const uint32_t d = 2 * s;
    AddAllReduce(&plan, {d, d + 1}, kElements, false);
  }
  for (uint32_t i = 0; i < 2; ++i) AddTransfer(&plan, i, 2 + i, kBytes, true);
  for (uint32_t i = 0; i < 2; ++i) AddTransfer(&plan, 2 + i, i, kBytes, true);

  const std::vector<std::string> state_names = {"w0", "w1"};
  for (uint32_t s = 0; s < 2; ++s) {
    plan.states.push_back({});
    plan.states.back().name = state_names[s];
    plan.states.back().type = {DType::kF32, {2 * kElements}};
    plan.states.back().init = "normal";
    plan.states.back().stream = s;
    plan.states.back().is_parameter = true;
  }

  for (uint32_t d = 0; d < 4; ++d) {
    const uint32_t s = d / 2;
    DeviceBuilder device(&plan, d);
    const uint32_t w = device.AddRegister(RegisterClass::kState, kBytes, 1, false);
    const uint32_t x = device.AddRegister(RegisterClass::kChannel, kBytes, credits);
    const uint32_t y = device.AddRegister(RegisterClass::kChannel, kBytes, credits);
    const uint32_t dy = device.AddRegister(RegisterClass::kChannel, kBytes, credits);
    const uint32_t dw = device.AddRegister(RegisterClass::kChannel, kBytes, 1, false);
    const uint32_t partial = device.AddRegister(RegisterClass::kWorkspace, kBytes);
    const uint32_t sum = device.AddRegister(RegisterClass::kWorkspace, kBytes, 1, false);
    plan.states[s].placements.push_back(
        {d, w, {DType::kF32, {kElements}, {2 * kElements}, {kElements * (d % 2)}, {0}, true}});
    const auto between = [&](uint32_t producer, uint32_t consumer, uint32_t reg) {
      device.AddChannel({producer, consumer, reg, 1, 1, credits, 0});
    };

    device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
    uint32_t feed_actor = kNone;
    if (s == 0) {
      feed_actor = device.AddKernel("x", {}, {x});
      ActorPlan& actor = plan.devices[d].actors[feed_actor];
      actor.kind = ActorKind::kFeed;
      actor.kernel = 0;
      actor.target = 0;
    }
    const uint32_t product = device.AddKernel("h.matmul", {x, w}, {partial});
    plan.devices[d].actors[product].workspace_bytes = 100;
    plan.devices[d].actors[product].workspace_offset = plan.devices[d].arena_bytes;
    plan.devices[d].arena_bytes += 2 * kBytes;
    plan.devices[d].workspace_bytes += 2 * kBytes;
    const uint32_t reduce = device.AddCollective("h.sum", s, partial, y);
    if (s == 0) device.Join(feed_actor, product, x);
    device.Join(product, reduce, partial);

    device.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
    const uint32_t gradient = s == 0 ? device.AddKernel("h.gradient", {x, dy, dw}, {dw})
                                     : device.AddKernel("h.gradient", {x, y, dw}, {dw, dy});

    device.AddPhase("update", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t reduce_gradient = device.AddCollective("w.sum", 2 + s, dw, sum);
    const uint32_t update = device.AddKernel("w.update", {w, sum}, {w});
    device.Join(reduce_gradient, update, sum);
    if (s == 1) {
      const uint32_t fetch = device.AddKernel("loss", {sum}, {});
      device.Join(reduce_gradient, fetch, sum);
      ActorPlan& actor = plan.devices[d].actors[fetch];
      actor.kind = ActorKind::kFetch;
      actor.target = 0;
      KernelPlan kernel;
      kernel.op = "fetch";
      kernel.inputs = {{DType::kF32, {1, kElements}, {2, kElements}, {d % 2, 0}, {0, 0}, true}};
      actor.kernel = FindOrAddKernel(&plan, kernel);
    }
    device.AddChannel({gradient, reduce_gradient, dw, 1, m, m, 0});
    device.AddChannel({update, product, w, m, 1, m, m});

    if (s == 0) {
      device.AddPhase("send y", PhaseKind::kTransfer, Lane::kFloating, true);
      const uint32_t send = device.AddSend("y.send", d, y);
      between(reduce, send, y);
      device.AddPhase("recv dy", PhaseKind::kTransfer, Lane::kFloating, true);
      const uint32_t recv = device.AddRecv("dy.recv", 2 + d, dy);
      between(recv, gradient, dy);
      between(feed_actor, gradient, x);
    } else {
      device.AddPhase("recv x", PhaseKind::kTransfer, Lane::kFloating, true);
      const uint32_t recv = device.AddRecv("x.recv", d - 2, x);
      between(recv, product, x);
      between(recv, gradient, x);
      between(reduce, gradient, y);
      device.AddPhase("send dy", PhaseKind::kTransfer, Lane::kFloating, true);
      const uint32_t send = device.AddSend("dy.send", d, dy);
      between(gradient, send, dy);
    }
    plan.predicted_peak_bytes.push_back(plan.devices[d].arena_bytes);
  }
  return plan;
}

Plan OffloadPlan(uint32_t num_microbatches) {
  Plan plan = EmptyPlan(1, 1, num_microbatches);
  DeviceBuilder device(&plan, 0);
  const uint32_t y = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t loaded = device.AddRegister(RegisterClass::kWorkspace, kBytes);
  const uint32_t grad = device.AddRegister(RegisterClass::kChannel, kBytes, 1, false);
  const uint32_t m = device.AddRegister(RegisterClass::kWorkspace, kBytes, 1, false);
  const uint32_t host_y = device.AddHostRegister(RegisterClass::kChannel, kBytes, num_microbatches);
  const uint32_t host_m = device.AddHostRegister(RegisterClass::kState, kBytes, 1, false);
  plan.states.push_back({.name = "m",
                         .type = {DType::kF32, {kBytes / 4}},
                         .init = "zeros",
                         .placements = {{0, host_m, VectorTile(kBytes / 4)}}});
  device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
  const uint32_t make = device.AddKernel("y", {}, {y});
  const uint32_t store = device.AddCopy("y.to_host", y, host_y);
  device.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
  const uint32_t load = device.AddCopy("y.to_device", host_y, loaded);
  const uint32_t sum = device.AddKernel("w.grad", {loaded}, {grad});
  device.AddPhase("update", PhaseKind::kAfterStep, Lane::kPerStep, false);
  const uint32_t load_m = device.AddCopy("m.to_device", host_m, m);
  const uint32_t update = device.AddKernel("m.new", {m, grad}, {m});
  const uint32_t store_m = device.AddCopy("m.to_host", m, host_m);
  device.Join(make, store, y);
  device.AddChannel({store, load, host_y, 1, 1, num_microbatches, 0});
  device.Join(load, sum, loaded);
  device.AddChannel({sum, update, grad, 1, num_microbatches, num_microbatches, 0});
  device.Join(load_m, update, m);
  device.Join(update, store_m, m);
  return plan;
}

Plan LargePlan(uint32_t num_devices, uint32_t actors_per_device, uint32_t num_microbatches) {
  const uint32_t m = num_microbatches;
  const uint32_t num_forwards = actors_per_device * 2 / 5;
  const uint32_t num_updates = actors_per_device - 2 * num_forwards;
  Plan plan = EmptyPlan(1, num_devices, m);
  plan.name = "large";
  std::vector<uint32_t> all(num_devices);
  std::iota(all.begin(), all.end(), 0);
  const auto is_collective = [](uint32_t i) { return i % 50 == 49; };
  for (uint32_t i = 0; i < num_forwards; ++i) {
    if (is_collective(i)) AddAllReduce(&plan, all, kElements, true);
  }

  for (uint32_t d = 0; d < num_devices; ++d) {
    DeviceBuilder device(&plan, d);
    DevicePlan& shown = plan.devices[d];
    std::vector<uint32_t> weights, stashes, gradients;
    for (uint32_t i = 0; i < num_updates; ++i) {
      weights.push_back(device.AddRegister(RegisterClass::kState, kBytes, 1, false));
    }
    for (uint32_t i = 0; i < num_forwards; ++i) {
      stashes.push_back(device.AddRegister(RegisterClass::kChannel, kBytes, 1));
    }
    for (uint32_t i = 0; i < num_updates; ++i) {
      gradients.push_back(device.AddRegister(RegisterClass::kChannel, kBytes, 1, false));
    }
    // Four places in turn for what lives inside a phase.
    const uint64_t workspace = shown.arena_bytes;
    const auto add_workspace = [&](uint32_t i) {
      const uint32_t reg = device.AddRegister(RegisterClass::kWorkspace, kBytes);
      shown.registers[reg].offset = workspace + i % 4 * kBytes;
      return reg;
    };

    device.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true);
    std::vector<uint32_t> values;
    const auto has_weight = [&](uint32_t i) { return i % 2 == 0 && i / 2 < num_updates; };
    for (uint32_t i = 0; i < num_forwards; ++i) {
      values.push_back(add_workspace(i));
      const std::string name = StrCat("layers.", i / 8, ".forward.", i % 8);
      if (is_collective(i)) {
        device.AddCollective(name, i / 50, values[i - 1], values[i]);
        device.Join(i - 1, i, values[i - 1]);
        continue;
      }
      std::vector<uint32_t> inputs;
      if (i > 0) inputs.push_back(values[i - 1]);
      if (i > 0) device.Join(i - 1, i, values[i - 1]);
      if (i > 1 && i % 2 == 0) {
        inputs.push_back(values[i - 2]);
        device.Join(i - 2, i, values[i - 2]);
      }
      if (has_weight(i)) inputs.push_back(weights[i / 2]);
      device.AddKernel(name, inputs, {values[i], stashes[i]});
    }
    device.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
    values.clear();
    for (uint32_t i = 0; i < num_forwards; ++i) {
      const uint32_t forward = num_forwards - 1 - i;
      const uint32_t a = num_forwards + i;
      values.push_back(add_workspace(i));
      std::vector<uint32_t> inputs;
      std::vector<uint32_t> outputs = {values[i]};
      if (i > 0) inputs.push_back(values[i - 1]);
      if (i > 0) device.Join(a - 1, a, values[i - 1]);
      if (i > 1) {
        inputs.push_back(values[i - 2]);
        device.Join(a - 2, a, values[i - 2]);
      }
      if (!is_collective(forward)) {
        inputs.push_back(stashes[forward]);
        device.AddChannel({forward, a, stashes[forward], 1, 1, 1, 0});
      }
      if (has_weight(forward)) outputs.push_back(gradients[forward / 2]);
      device.AddKernel(StrCat("layers.", forward / 8, ".backward.", forward % 8), inputs, outputs);
    }
    device.AddPhase("update", PhaseKind::kAfterStep, Lane::kPerStep, false);
    for (uint32_t i = 0; i < num_updates; ++i) {
      const uint32_t a = 2 * num_forwards + i;
      std::vector<uint32_t> inputs = {weights[i]};
      if (2 * i < num_forwards && has_weight(2 * i)) {
        inputs.push_back(gradients[i]);
        device.AddChannel({2 * num_forwards - 1 - 2 * i, a, gradients[i], 1, m, m, 0});
        device.AddChannel({a, 2 * i, weights[i], m, 1, m, m});
      }
      device.AddKernel(StrCat("weights.", i, ".update"), inputs, {weights[i]});
    }
    shown.workspace_bytes = 4 * kBytes;
    shown.arena_bytes = workspace + 4 * kBytes;
  }
  return plan;
}

}  // namespace penstock::testing
