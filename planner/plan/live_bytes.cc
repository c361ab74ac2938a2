#include "planner/plan/live_bytes.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "planner/plan/lifetimes.h"
#include "planner/plan/memory.h"

namespace penstock::planner {
namespace {

// At which sets of buffers are looked for.
constexpr size_t kPositions = 2048;

// A phase of one micro-batch, or of the step.
struct Instance {
  uint32_t phase = 0;
  uint32_t microbatch = 0;
  int64_t begin = 0;  // position of its first actor in the step
};

std::vector<Instance> OrderOfStep(const Plan& plan, const DevicePlan& device,
                                  const std::vector<PhaseSpan>& spans) {
  const auto phase_of = [&](uint32_t actor) { return spans[actor].phase; };
  std::vector<uint32_t> computing;
  std::vector<uint32_t> per_step;
  for (uint32_t p = 0; p < device.phases.size(); ++p) {
    if (device.phases[p].lane == Lane::kCompute) computing.push_back(p);
    if (device.phases[p].lane == Lane::kPerStep) per_step.push_back(p);
  }
  size_t num_heads = 0;
  for (const ChannelPlan& channel : device.channels) {
    const uint32_t from = phase_of(channel.producer);
    if (channel.initial > 0 || device.phases[from].lane != Lane::kPerStep) continue;
    if (device.phases[phase_of(channel.consumer)].lane != Lane::kCompute) continue;
    const auto it = std::find(per_step.begin(), per_step.end(), from);
    num_heads = std::max(num_heads, static_cast<size_t>(it - per_step.begin()) + 1);
  }
  std::vector<Instance> instances;
  const auto add_per_step = [&](size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) {
      const bool repeats = device.phases[per_step[i]].per_microbatch;
      for (uint32_t m = 0; m < (repeats ? plan.num_microbatches : 1); ++m) {
        instances.push_back({per_step[i], m});
      }
    }
  };
  add_per_step(0, num_heads);
  const std::vector<PhaseChoice>& order = plan.stages[device.stage].order;
  for (const PhaseChoice& choice : order) {
    for (const uint32_t p : computing) {
      if (device.phases[p].kind != choice.kind) continue;
      if (static_cast<int>(device.phases[p].chunk) != choice.chunk) continue;
      instances.push_back({p, static_cast<uint32_t>(choice.microbatch)});
    }
  }
  if (order.empty() && !computing.empty()) {
    for (uint32_t m = 0; m < plan.num_microbatches; ++m) instances.push_back({computing[0], m});
  }
  add_per_step(num_heads, per_step.size());
  int64_t position = 0;
  for (Instance& instance : instances) {
    instance.begin = position;
    position += device.phases[instance.phase].num_actors;
  }
  return instances;
}

// Of each register: whether a message arrives in it, or is sent from it.
std::vector<bool> FindTransferred(const DevicePlan& device) {
  std::vector<bool> is_transferred(device.registers.size(), false);
  for (const ActorPlan& actor : device.actors) {
    if (actor.kind == ActorKind::kSend) is_transferred[actor.inputs[0].reg] = true;
    if (actor.kind == ActorKind::kRecv) is_transferred[actor.outputs[0].reg] = true;
  }
  return is_transferred;
}

// In order, those that meet as one.
std::vector<LiveSpan> Joined(std::vector<LiveSpan> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const LiveSpan& a, const LiveSpan& b) { return a.first < b.first; });
  std::vector<LiveSpan> joined;
  for (const LiveSpan& span : spans) {
    if (joined.empty() || joined.back().last < span.first) {
      joined.push_back(span);
    } else {
      joined.back().last = std::max(joined.back().last, span.last);
    }
  }
  return joined;
}

// The bytes that buffers need which pairwise are once live at the same time: from those that live
// at a position of the most on, each that meets all so far, the largest first.
uint64_t LeastBytesApart(std::vector<Lifetime> lifetimes) {
  std::stable_sort(lifetimes.begin(), lifetimes.end(),
                   [](const Lifetime& a, const Lifetime& b) { return a.bytes > b.bytes; });
  std::map<int64_t, int64_t> changes;  // of the bytes that live, at positions
  for (const Lifetime& lifetime : lifetimes) {
    for (const LiveSpan& span : lifetime.spans) {
      changes[span.first] += static_cast<int64_t>(AlignUp(lifetime.bytes));
      changes[span.last + 1] -= static_cast<int64_t>(AlignUp(lifetime.bytes));
    }
  }
  std::vector<std::pair<int64_t, int64_t>> positions;  // bytes that live there, and position
  int64_t bytes = 0;
  for (const auto& [position, change] : changes) positions.push_back({bytes += change, position});
  std::sort(positions.rbegin(), positions.rend());
  if (positions.size() > kPositions) positions.resize(kPositions);
  uint64_t most = 0;
  for (const auto& [live_bytes, position] : positions) {
    const Lifetime here = {0, {{position, position}}};
    std::vector<const Lifetime*> apart;
    for (const Lifetime& lifetime : lifetimes) {
      if (Meet(lifetime, here)) apart.push_back(&lifetime);
    }
    for (const Lifetime& lifetime : lifetimes) {
      if (Meet(lifetime, here)) continue;
      const bool meets_all = std::all_of(apart.begin(), apart.end(), [&](const Lifetime* other) {
        return Meet(lifetime, *other);
      });
      if (meets_all) apart.push_back(&lifetime);
    }
    uint64_t sum = 0;
    for (const Lifetime* lifetime : apart) sum += AlignUp(lifetime->bytes);
    most = std::max(most, sum);
  }
  return most;
}

}  // namespace

uint64_t LeastArenaBytes(const Plan& plan, uint32_t d) {
  const DevicePlan& device = plan.devices[d];
  const std::vector<PhaseSpan> spans = FindActorSpans(device);
  const std::vector<bool> is_transferred = FindTransferred(device);
  // State and registers of the host are counted elsewhere.
  const auto is_in_arena = [&](uint32_t r) {
    const RegisterPlan& reg = device.registers[r];
    return reg.register_class != RegisterClass::kState && !IsOnHost(device, reg);
  };
  uint64_t transferred_bytes = 0;
  for (uint32_t r = 0; r < device.registers.size(); ++r) {
    const RegisterPlan& reg = device.registers[r];
    if (is_transferred[r] && is_in_arena(r)) transferred_bytes += reg.slots * reg.slot_bytes;
  }
  // Of each other register and micro-batch: the positions at which it is live.
  std::map<std::pair<uint32_t, uint32_t>, LiveSpan> live;
  std::vector<Lifetime> lifetimes;
  for (const Instance& instance : OrderOfStep(plan, device, spans)) {
    const PhasePlan& phase = device.phases[instance.phase];
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      const ActorPlan& actor = device.actors[a];
      const int64_t first = instance.begin + spans[a].first;
      const int64_t last = instance.begin + spans[a].last;
      if (actor.workspace_bytes > 0) {
        lifetimes.push_back({actor.workspace_bytes, {{first, first}}});
      }
      for (const auto* operands : {&actor.inputs, &actor.outputs}) {
        for (const OperandPlan& operand : *operands) {
          if (operand.reg == kNone || !is_in_arena(operand.reg) || is_transferred[operand.reg]) {
            continue;
          }
          const RegisterPlan& reg = device.registers[operand.reg];
          const uint32_t m = reg.per_microbatch ? instance.microbatch : 0;
          const auto [it, is_new] = live.insert({{operand.reg, m}, {first, last}});
          it->second.first = std::min(it->second.first, first);
          it->second.last = std::max(it->second.last, last);
        }
      }
    }
  }
  // Of each slot, when any micro-batch that has it lives.
  std::map<std::pair<uint32_t, uint32_t>, Lifetime> slots;
  for (const auto& [key, span] : live) {
    const auto& [r, m] = key;
    const RegisterPlan& reg = device.registers[r];
    const bool is_dealt_out = plan.num_microbatches % reg.slots == 0;
    for (uint32_t s = 0; s < (reg.per_microbatch ? reg.slots : 1); ++s) {
      if (reg.per_microbatch && is_dealt_out && m % reg.slots != s) continue;
      Lifetime& lifetime = slots[{r, s}];
      lifetime.bytes = reg.slot_bytes;
      lifetime.spans.push_back(span);
    }
  }
  for (auto& [slot, lifetime] : slots) {
    lifetime.spans = Joined(std::move(lifetime.spans));
    lifetimes.push_back(std::move(lifetime));
  }
  return device.state_bytes + transferred_bytes + LeastBytesApart(lifetimes);
}

}  // namespace penstock::planner
