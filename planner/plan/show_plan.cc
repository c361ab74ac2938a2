#include "planner/plan/show_plan.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "fmt/format.h"

#include "base/counted.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::planner {
namespace {

std::string_view Rate(bool per_microbatch) { return per_microbatch ? "micro-batch" : "step"; }

uint64_t RunsPerStep(const Plan& plan, bool per_microbatch) {
  return per_microbatch ? plan.num_microbatches : 1;
}

// "0-2 5 7-8". REQUIRES: increasing.
std::string ShowRanges(const std::vector<uint32_t>& numbers) {
  std::string text;
  for (size_t begin = 0; begin < numbers.size();) {
    size_t end = begin + 1;
    while (end < numbers.size() && numbers[end] == numbers[end - 1] + 1) ++end;
    if (begin > 0) text += ' ';
    text += fmt::format("{}", numbers[begin]);
    if (end - begin > 1) text += fmt::format("-{}", numbers[end - 1]);
    begin = end;
  }
  return text;
}

std::string ShowMemory(const Plan& plan, uint32_t d) {
  const DevicePlan& device = plan.devices[d];
  std::string text =
      fmt::format("arena {} = state {} + channels {} + workspace {}",
                  FormatBytes(device.arena_bytes), FormatBytes(device.state_bytes),
                  FormatBytes(device.channel_bytes), FormatBytes(device.workspace_bytes));
  if (device.host_bytes > 0) text += fmt::format(", on host {}", FormatBytes(device.host_bytes));
  if (!plan.predicted_peak_bytes.empty()) {
    text += fmt::format("; predicted peak {}", FormatBytes(plan.predicted_peak_bytes[d]));
  }
  return text;
}

std::string ShowPhase(const PhasePlan& phase) {
  return fmt::format("{:<24} {:<8} {:<9} once a {:<12} {:>8} {:<6}  {:>9}", phase.name,
                     Name(phase.kind), Name(phase.lane), Rate(phase.per_microbatch),
                     phase.num_actors, phase.num_actors == 1 ? "actor" : "actors",
                     FormatSeconds(phase.predicted_s));
}

std::string ShowDeviceSummary(const Plan& plan, uint32_t d) {
  std::string text = fmt::format("    {}\n", ShowMemory(plan, d));
  for (const PhasePlan& phase : plan.devices[d].phases) {
    text += fmt::format("    {}\n", ShowPhase(phase));
  }
  return text;
}

// "F0 F1 B0 F2 B1 B2", of which a long one shows its beginning.
std::string ShowOrder(const Plan& plan, uint32_t stage) {
  constexpr size_t kMostShown = 24;
  const std::vector<PhaseChoice>& order = plan.stages[stage].order;
  if (order.empty()) {
    if (!StageContextOf(plan, stage).has_choices()) return "";
    return fmt::format("  order chosen by policy '{}' as the plan runs\n", plan.policy);
  }
  const int num_chunks = StageContextOf(plan, stage).num_chunks();
  std::string text = "  order";
  for (size_t i = 0; i < std::min(order.size(), kMostShown); ++i) {
    // With chunks, the virtual stage first.
    if (num_chunks > 1) {
      text += fmt::format(" {}", order[i].chunk * plan.stages.size() + stage);
    } else {
      text += " ";
    }
    text += fmt::format("{}{}", Name(order[i].kind), order[i].microbatch);
  }
  if (order.size() > kMostShown) text += fmt::format(" ... ({} phases)", order.size());
  return text + "\n";
}

// `shown_as`: of each device, one of the same program that the plan has in full.
std::string ShowStages(const Plan& plan, const std::vector<uint32_t>& shown_as) {
  std::string text;
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    text += fmt::format("\nstage {}\n{}", s, ShowOrder(plan, s));
    std::vector<std::pair<std::string, std::vector<uint32_t>>> groups;  // in order of first device
    std::map<std::string, size_t> group_of;
    std::vector<uint32_t> devices = plan.stages[s].devices;
    std::sort(devices.begin(), devices.end());
    for (const uint32_t d : devices) {
      std::string summary = ShowDeviceSummary(plan, shown_as[d]);
      const auto [it, is_new] = group_of.try_emplace(summary, groups.size());
      if (is_new) groups.push_back({std::move(summary), {}});
      groups[it->second].second.push_back(d);
    }
    for (const auto& [summary, members] : groups) {
      text += fmt::format("  device{} {}\n{}", members.size() > 1 ? "s" : "", ShowRanges(members),
                          summary);
    }
  }
  return text;
}

std::string ShowCollectives(const Plan& plan) {
  struct Sum {
    uint64_t count = 0;
    uint64_t bytes = 0;
  };
  std::map<std::tuple<CollectiveKind, CollectiveAlgorithm, size_t>, Sum> sums;
  for (size_t c = 0; c < plan.collectives.size(); ++c) {
    const CollectiveSpec& spec = plan.collectives[c];
    const auto elements =
        static_cast<uint64_t>(std::accumulate(spec.counts.begin(), spec.counts.end(), int64_t{0}));
    Sum& sum = sums[{spec.kind, spec.algorithm, spec.devices.size()}];
    ++sum.count;
    sum.bytes +=
        elements * ByteSize(spec.dtype) * RunsPerStep(plan, plan.collective_per_microbatch[c]);
  }
  std::string text;
  if (!sums.empty()) text += "\ncollectives\n";
  for (const auto& [key, sum] : sums) {
    const auto& [kind, algorithm, num_devices] = key;
    text += fmt::format("  {:<14} {:<12} over {:>4} devices {:>8}  {} a step\n", Name(kind),
                        Name(algorithm), num_devices, sum.count, FormatBytes(sum.bytes));
  }
  return text;
}

std::string ShowTransfers(const Plan& plan) {
  struct Sum {
    uint64_t count = 0;
    uint64_t bytes = 0;
  };
  std::map<std::pair<uint32_t, uint32_t>, Sum> sums;
  for (const TransferPlan& transfer : plan.transfers) {
    Sum& sum = sums[{transfer.source, transfer.destination}];
    ++sum.count;
    sum.bytes += transfer.num_bytes * RunsPerStep(plan, transfer.per_microbatch);
  }
  std::string text;
  if (!sums.empty()) text += "\ntransfers\n";
  for (const auto& [ends, sum] : sums) {
    text += fmt::format("  device {} -> device {} {:>8}  {} a step\n", ends.first, ends.second,
                        sum.count, FormatBytes(sum.bytes));
  }
  return text;
}

// A name for each register: of its state, or of the first actor that writes to it.
std::vector<std::string> RegisterNames(const Plan& plan, uint32_t device) {
  const DevicePlan& owner = plan.devices[device];
  std::vector<std::string> names(owner.registers.size());
  for (const StatePlan& state : plan.states) {
    for (const StatePlacement& placement : state.placements) {
      if (placement.device == device && placement.reg < names.size()) {
        names[placement.reg] = state.name;
      }
    }
  }
  for (const ActorPlan& actor : owner.actors) {
    for (const OperandPlan& output : actor.outputs) {
      if (output.reg < names.size() && names[output.reg].empty()) names[output.reg] = actor.name;
    }
  }
  return names;
}

std::string ShowOperands(const std::vector<OperandPlan>& operands,
                         const std::vector<std::string>& names) {
  std::string text;
  for (const OperandPlan& operand : operands) {
    if (!text.empty()) text += ' ';
    text += operand.reg == kNone ? std::string("-")
                                 : fmt::format("r{}:{}", operand.reg, names[operand.reg]);
    if (operand.offset != 0) text += fmt::format("+{}", operand.offset);
  }
  return fmt::format("({})", text);
}

std::string ShowCollective(const CollectiveSpec& spec, uint32_t index) {
  const size_t num_tensors = NumTensors(spec);
  return fmt::format("{} #{}{}", Name(spec.kind), index,
                     num_tensors > 1 ? fmt::format(" of {} tensors", num_tensors) : "");
}

std::string ShowAction(const Plan& plan, const ActorPlan& actor) {
  switch (actor.kind) {
    case ActorKind::kKernel:
      return plan.kernels[actor.kernel].op;
    case ActorKind::kFeed:
      return fmt::format("feed {}", plan.feeds[actor.target].name);
    case ActorKind::kFetch:
      return fmt::format("fetch {}", plan.fetches[actor.target].name);
    case ActorKind::kCollective:
      return ShowCollective(plan.collectives[actor.target], actor.target);
    case ActorKind::kSend:
      return fmt::format("send #{} to device {}", actor.target,
                         plan.transfers[actor.target].destination);
    case ActorKind::kRecv:
      return fmt::format("recv #{} from device {}", actor.target,
                         plan.transfers[actor.target].source);
    case ActorKind::kCopy:
      return plan.kernels[actor.kernel].op;
  }
  return "";
}

std::string Show(const Plan& plan, const PlanCounts& counts, size_t num_kernels,
                 const std::vector<uint32_t>& shown_as) {
  return fmt::format(
             "plan {}: strategy {}, policy {}, {} a step, graph {:016x}\n"
             "{} in {}, {}, {}, {}, {}\n"
             "predicted step {}\n",
             plan.name, plan.strategy, plan.policy,
             Counted(plan.num_microbatches, "micro-batch", "es"), plan.graph_fingerprint,
             Counted(plan.devices.size(), "device"), Counted(plan.stages.size(), "stage"),
             Counted(counts.actors, "actor"), Counted(counts.channels, "channel"),
             Counted(counts.collectives, "collective"), Counted(num_kernels, "kernel"),
             FormatSeconds(plan.predicted_step_s)) +
         ShowStages(plan, shown_as) + ShowCollectives(plan) + ShowTransfers(plan);
}

}  // namespace

std::string_view Name(Lane lane) {
  switch (lane) {
    case Lane::kCompute:
      return "compute";
    case Lane::kPerStep:
      return "per-step";
    case Lane::kFloating:
      return "floating";
  }
  return "unknown";
}

std::string_view Name(RegisterClass register_class) {
  switch (register_class) {
    case RegisterClass::kState:
      return "state";
    case RegisterClass::kChannel:
      return "channel";
    case RegisterClass::kWorkspace:
      return "workspace";
  }
  return "unknown";
}

std::string DescribePhase(const Plan& plan, uint32_t device, uint32_t phase) {
  return StrCat("device ", device, " phase ", plan.devices[device].phases[phase].name);
}

std::string DescribeActor(const Plan& plan, uint32_t device, uint32_t actor) {
  const DevicePlan& owner = plan.devices[device];
  return StrCat("actor ", actor, " '", owner.actors[actor].name, "' (device ", device, ", phase ",
                owner.phases[PhaseOfActor(owner, actor)].name, ")");
}

uint32_t PhaseOfActor(const DevicePlan& device, uint32_t actor) {
  // The last phase that begins at or before the actor: one without actors is never it.
  const auto after =
      std::upper_bound(device.phases.begin(), device.phases.end(), actor,
                       [](uint32_t a, const PhasePlan& phase) { return a < phase.first_actor; });
  return static_cast<uint32_t>(after - device.phases.begin()) - 1;
}

std::string ShowPlan(const Plan& plan) {
  std::vector<uint32_t> itself(plan.devices.size());
  std::iota(itself.begin(), itself.end(), 0);
  return Show(plan, Count(plan), plan.kernels.size(), itself);
}

absl::StatusOr<std::string> ShowPlan(const FoldedPlan& folded) {
  if (!folded.is_folded()) return ShowPlan(folded.common);
  const std::vector<uint32_t> first = FirstOfPrograms(folded);
  ASSIGN_OR_RETURN(const Plan plan, ExpandDevices(folded, first));
  std::vector<uint32_t> shown_as;
  for (const uint32_t program : folded.ProgramsOfDevices()) shown_as.push_back(first[program]);
  return Show(plan, Count(folded), folded.kernels.size(), shown_as);
}

absl::StatusOr<std::string> ShowDevice(const Plan& plan, uint32_t device) {
  if (device >= plan.devices.size()) {
    return absl::InvalidArgumentError(
        StrCat("the plan has no device ", device, "; there are ", plan.devices.size()));
  }
  const DevicePlan& shown = plan.devices[device];
  std::string text =
      fmt::format("device {} of stage {}: {}\n", device, shown.stage, ShowMemory(plan, device));
  const std::vector<std::string> names = RegisterNames(plan, device);
  for (size_t r = 0; r < shown.registers.size(); ++r) {
    const RegisterPlan& reg = shown.registers[r];
    const bool is_on_host = IsOnHost(shown, reg);
    text += fmt::format(
        "  r{:<6} {:<9} {} x {} at {}{}, once a {}: {}\n", r, Name(reg.register_class), reg.slots,
        FormatBytes(reg.slot_bytes), is_on_host ? "host " : "",
        reg.offset - (is_on_host ? shown.arena_bytes : 0), Rate(reg.per_microbatch), names[r]);
  }
  for (const PhasePlan& phase : shown.phases) {
    text += fmt::format("{}\n", ShowPhase(phase));
    for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
      const ActorPlan& actor = shown.actors[a];
      text += fmt::format("  {:>6} {:<24} {:<20} {} -> {}", a, actor.name, ShowAction(plan, actor),
                          ShowOperands(actor.inputs, names), ShowOperands(actor.outputs, names));
      if (actor.workspace_bytes > 0) {
        text += fmt::format(", scratch {}", FormatBytes(actor.workspace_bytes));
      }
      text += '\n';
    }
  }
  for (size_t c = 0; c < shown.channels.size(); ++c) {
    const ChannelPlan& channel = shown.channels[c];
    if (PhaseOfActor(shown, channel.producer) == PhaseOfActor(shown, channel.consumer)) continue;
    text += fmt::format("channel {}: {} -> {}, produce {}, consume {}, capacity {}, initial {}\n",
                        c, channel.producer, channel.consumer, channel.produce, channel.consume,
                        channel.capacity, channel.initial);
  }
  return text;
}

}  // namespace penstock::planner
