#include "planner/plan/folded_plan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/plan/coordinates.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;

// The groups of some axes, and the group of each device of the mesh.
struct Groups {
  std::vector<std::vector<uint32_t>> members;
  std::vector<uint32_t> group_of;
};

DevicePlan WithoutActors(const DevicePlan& program) {
  DevicePlan plan;
  plan.stage = program.stage;
  plan.arena_bytes = program.arena_bytes;
  plan.host_bytes = program.host_bytes;
  plan.state_bytes = program.state_bytes;
  plan.channel_bytes = program.channel_bytes;
  plan.workspace_bytes = program.workspace_bytes;
  return plan;
}

// The part of a state on device `d` of the mesh.
absl::StatusOr<StatePlacement> PlacementOn(const FoldedPlan& folded, size_t index, uint32_t d) {
  const FoldedState& state = folded.states[index];
  ASSIGN_OR_RETURN(TilePlan tile, TileOf(folded.mesh, folded.shardings[state.sharding],
                                         folded.common.states[index].type, d));
  return StatePlacement{state.stage * folded.devices_per_stage() + d,
                        state.registers[folded.class_of[d]], std::move(tile)};
}

class Expander {
 public:
  // Devices are wanted with their actors, or without.
  Expander(const FoldedPlan& folded, std::vector<bool> is_wanted)
      : folded_(folded),
        plan_(folded.common),
        is_wanted_(std::move(is_wanted)),
        programs_(folded.ProgramsOfDevices()),
        first_of_classes_(folded.FirstOfClasses()) {}

  absl::StatusOr<Plan> Run() {
    ExpandCollectives();
    RETURN_IF_ERROR(ExpandTransfers());
    const uint32_t per_stage = folded_.devices_per_stage();
    plan_.devices.reserve(folded_.num_devices());
    for (uint32_t device = 0; device < folded_.num_devices(); ++device) {
      plan_.stages[device / per_stage].devices.push_back(device);
      RETURN_IF_ERROR(ExpandDevice(device));
    }
    return ExpandStates();
  }

 private:
  const Groups& GroupsOf(const std::vector<AxisRef>& axes) {
    std::unique_ptr<Groups>& groups = groups_[axes];
    if (groups == nullptr) {
      groups = std::make_unique<Groups>();
      groups->members = GroupDevices(folded_.mesh, axes);
      groups->group_of.resize(folded_.devices_per_stage());
      for (uint32_t g = 0; g < groups->members.size(); ++g) {
        for (const uint32_t device : groups->members[g]) groups->group_of[device] = g;
      }
    }
    return *groups;
  }

  void ExpandCollectives() {
    for (const FoldedCollective& collective : folded_.collectives) {
      const Groups& groups = GroupsOf(collective.axes);
      first_of_collective_.push_back(static_cast<uint32_t>(plan_.collectives.size()));
      for (uint32_t g = 0; g < groups.members.size(); ++g) {
        CollectiveSpec spec = collective.specs[collective.specs.size() == 1 ? 0 : g];
        spec.channel = collective.first_channel + g;
        for (const uint32_t device : groups.members[g]) {
          spec.devices.push_back(collective.stage * folded_.devices_per_stage() + device);
        }
        plan_.collectives.push_back(std::move(spec));
        plan_.collective_per_microbatch.push_back(collective.per_microbatch);
      }
    }
  }

  absl::Status ExpandTransfers() {
    const uint32_t per_stage = folded_.devices_per_stage();
    for (const FoldedTransfer& folded : folded_.transfers) {
      for (uint32_t d = 0; d < per_stage; ++d) {
        ASSIGN_OR_RETURN(const TilePlan tile,
                         TileOf(folded_.mesh, folded_.shardings[folded.sharding], folded.type, d));
        TransferPlan& transfer = plan_.transfers.emplace_back();
        transfer.channel = folded.first_channel + d;
        transfer.source = folded.source_stage * per_stage + d;
        transfer.destination = folded.destination_stage * per_stage + d;
        transfer.num_bytes = tile.num_bytes();
        transfer.per_microbatch = folded.per_microbatch;
      }
    }
    return absl::OkStatus();
  }

  absl::Status ExpandDevice(uint32_t device) {
    const uint32_t per_stage = folded_.devices_per_stage();
    const uint32_t d = device % per_stage;
    const DevicePlan& program = folded_.programs[programs_[device]];
    plan_.predicted_peak_bytes.push_back(program.arena_bytes);
    if (!is_wanted_[device]) {
      plan_.devices.push_back(WithoutActors(program));
      return absl::OkStatus();
    }
    plan_.devices.push_back(program);
    DevicePlan& plan = plan_.devices.back();
    for (const ViewOperand& view : folded_.view_operands[programs_[device]]) {
      ActorPlan& actor = plan.actors[view.actor];
      ASSIGN_OR_RETURN(const uint64_t here, ViewOffset(view.view, d));
      ASSIGN_OR_RETURN(const uint64_t on_first,
                       ViewOffset(view.view, first_of_classes_[folded_.class_of[d]]));
      (view.is_output ? actor.outputs : actor.inputs)[view.index].offset += here - on_first;
    }
    for (ActorPlan& actor : plan.actors) {
      if (actor.kernel != kNone) {
        ASSIGN_OR_RETURN(actor.kernel, KernelOn(actor.kernel, d));
      }
      if (actor.kind == ActorKind::kCollective) {
        const Groups& groups = GroupsOf(folded_.collectives[actor.target].axes);
        actor.target = first_of_collective_[actor.target] + groups.group_of[d];
      } else if (actor.kind == ActorKind::kSend || actor.kind == ActorKind::kRecv) {
        actor.target = actor.target * per_stage + d;
      }
    }
    return absl::OkStatus();
  }

  absl::StatusOr<uint64_t> ViewOffset(uint32_t view, uint32_t d) const {
    const FoldedView& folded = folded_.views[view];
    ASSIGN_OR_RETURN(const TilePlan whole,
                     TileOf(folded_.mesh, folded_.shardings[folded.whole], folded.type, d));
    ASSIGN_OR_RETURN(const TilePlan part,
                     TileOf(folded_.mesh, folded_.shardings[folded.part], folded.type, d));
    const std::optional<uint64_t> offset = ContiguousOffset(whole, part);
    if (offset.has_value()) return *offset;
    return absl::InvalidArgumentError(
        absl::StrCat("view ", view, ": the part of the tile is not contiguous"));
  }

  // The kernel in the plan's table, where equal ones stand once.
  absl::StatusOr<uint32_t> KernelOn(uint32_t kernel, uint32_t d) {
    KernelPlan spec = folded_.kernels[kernel];
    std::string key = absl::StrCat(spec.op, " ");
    size_t next = 0;
    for (std::vector<TilePlan>* tiles : {&spec.inputs, &spec.outputs}) {
      for (TilePlan& tile : *tiles) {
        const uint32_t sharding = folded_.kernel_shardings[kernel][next++];
        if (sharding != kNone) {
          const bool is_bound = tile.is_bound;
          ASSIGN_OR_RETURN(tile, TileOf(folded_.mesh, folded_.shardings[sharding],
                                        {tile.dtype, tile.global}, d));
          tile.is_bound = is_bound;
        }
        absl::StrAppend(&key, penstock::ToString(tile.shape), penstock::ToString(tile.offset));
      }
    }
    std::vector<uint32_t>& candidates = kernels_by_key_[key];
    for (const uint32_t index : candidates) {
      if (plan_.kernels[index] == spec) return index;
    }
    candidates.push_back(static_cast<uint32_t>(plan_.kernels.size()));
    plan_.kernels.push_back(std::move(spec));
    return candidates.back();
  }

  absl::StatusOr<Plan> ExpandStates() {
    const uint32_t per_stage = folded_.devices_per_stage();
    for (size_t i = 0; i < folded_.states.size(); ++i) {
      const FoldedState& folded = folded_.states[i];
      StatePlan& state = plan_.states[i];
      for (uint32_t d = 0; d < per_stage; ++d) {
        if (!is_wanted_[folded.stage * per_stage + d]) continue;
        ASSIGN_OR_RETURN(StatePlacement placement, PlacementOn(folded_, i, d));
        state.placements.push_back(std::move(placement));
      }
    }
    return std::move(plan_);
  }

  const FoldedPlan& folded_;
  Plan plan_;
  const std::vector<bool> is_wanted_;
  const std::vector<uint32_t> programs_;  // of each device
  const std::vector<uint32_t> first_of_classes_;
  std::map<std::vector<AxisRef>, std::unique_ptr<Groups>> groups_;
  std::vector<uint32_t> first_of_collective_;
  absl::flat_hash_map<std::string, std::vector<uint32_t>> kernels_by_key_;
};

}  // namespace

uint32_t FoldedPlan::num_classes() const {
  return class_of.empty() ? 0 : *std::max_element(class_of.begin(), class_of.end()) + 1;
}

std::vector<uint32_t> FoldedPlan::ProgramsOfDevices() const {
  std::vector<uint32_t> programs;
  const uint32_t classes = num_classes();
  for (uint32_t device = 0; device < num_devices(); ++device) {
    const uint32_t stage = device / devices_per_stage();
    programs.push_back(stage * classes + class_of[device % devices_per_stage()]);
  }
  return programs;
}

std::vector<uint32_t> FoldedPlan::FirstOfClasses() const {
  std::vector<uint32_t> first;
  for (uint32_t d = 0; d < class_of.size(); ++d) {
    if (class_of[d] == first.size()) first.push_back(d);
  }
  return first;
}

std::vector<uint32_t> FoldedPlan::SizeOfClasses() const {
  std::vector<uint32_t> sizes(num_classes(), 0);
  for (const uint32_t c : class_of) ++sizes[c];
  return sizes;
}

absl::StatusOr<Plan> ExpandPlan(const FoldedPlan& folded) {
  if (!folded.is_folded()) return folded.common;
  return Expander(folded, std::vector<bool>(folded.num_devices(), true)).Run();
}

absl::StatusOr<StatePlan> ExpandState(const FoldedPlan& folded, uint32_t index) {
  StatePlan state = folded.common.states[index];
  if (!folded.is_folded()) return state;
  for (uint32_t d = 0; d < folded.devices_per_stage(); ++d) {
    ASSIGN_OR_RETURN(StatePlacement placement, PlacementOn(folded, index, d));
    state.placements.push_back(std::move(placement));
  }
  return state;
}

absl::StatusOr<Plan> ExpandDevices(const FoldedPlan& folded, absl::Span<const uint32_t> devices) {
  std::vector<bool> is_wanted(folded.num_devices(), false);
  for (const uint32_t device : devices) is_wanted[device] = true;
  if (!folded.is_folded()) {
    Plan plan = folded.common;
    for (size_t d = 0; d < plan.devices.size(); ++d) {
      if (!is_wanted[d]) plan.devices[d] = WithoutActors(plan.devices[d]);
    }
    for (StatePlan& state : plan.states) {
      std::erase_if(state.placements,
                    [&](const StatePlacement& placement) { return !is_wanted[placement.device]; });
    }
    return plan;
  }
  return Expander(folded, std::move(is_wanted)).Run();
}

std::vector<uint32_t> FirstOfPrograms(const FoldedPlan& folded) {
  std::vector<uint32_t> first;
  if (!folded.is_folded()) {
    first.resize(folded.num_devices());
    std::iota(first.begin(), first.end(), 0);
    return first;
  }
  for (uint32_t stage = 0; stage < folded.num_stages(); ++stage) {
    for (const uint32_t d : folded.FirstOfClasses()) {
      first.push_back(stage * folded.devices_per_stage() + d);
    }
  }
  return first;
}

Plan PlanOfPrograms(const FoldedPlan& folded) {
  if (!folded.is_folded()) return folded.common;
  const uint32_t num_classes = folded.num_classes();
  Plan plan = folded.common;
  for (uint32_t p = 0; p < folded.programs.size(); ++p) {
    const uint32_t stage = p / num_classes;
    plan.stages[stage].devices.push_back(p);
    DevicePlan& device = plan.devices.emplace_back(folded.programs[p]);
    for (ActorPlan& actor : device.actors) {
      const bool is_transfer = actor.kind == ActorKind::kSend || actor.kind == ActorKind::kRecv;
      if (is_transfer) actor.target = actor.target * num_classes + p % num_classes;
    }
    plan.predicted_peak_bytes.push_back(device.arena_bytes);
  }
  plan.kernels = folded.kernels;
  for (const FoldedCollective& collective : folded.collectives) {
    CollectiveSpec& spec = plan.collectives.emplace_back(collective.specs[0]);
    spec.devices = plan.stages[collective.stage].devices;
    plan.collective_per_microbatch.push_back(collective.per_microbatch);
  }
  for (const FoldedTransfer& folded_transfer : folded.transfers) {
    for (uint32_t c = 0; c < num_classes; ++c) {
      TransferPlan& transfer = plan.transfers.emplace_back();
      transfer.source = folded_transfer.source_stage * num_classes + c;
      transfer.destination = folded_transfer.destination_stage * num_classes + c;
      transfer.per_microbatch = folded_transfer.per_microbatch;
    }
  }
  return plan;
}

PlanCounts Count(const FoldedPlan& folded) {
  if (!folded.is_folded()) return Count(folded.common);
  PlanCounts counts;
  const std::vector<uint32_t> sizes = folded.SizeOfClasses();
  for (size_t p = 0; p < folded.programs.size(); ++p) {
    const uint64_t size = sizes[p % sizes.size()];
    counts.actors += size * folded.programs[p].actors.size();
    counts.channels += size * folded.programs[p].channels.size();
  }
  counts.channels += folded.transfers.size() * folded.devices_per_stage();
  std::map<std::vector<AxisRef>, uint64_t> num_groups;
  for (const FoldedCollective& collective : folded.collectives) {
    uint64_t& groups = num_groups[collective.axes];
    if (groups == 0) groups = GroupDevices(folded.mesh, collective.axes).size();
    counts.collectives += groups;
  }
  return counts;
}

}  // namespace penstock::planner
