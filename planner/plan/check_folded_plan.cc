#include "planner/plan/check_folded_plan.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>
#include <vector>

#include "base/shape.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/sharding.h"
#include "planner/plan/check_references.h"
#include "planner/plan/invalid_plan_internal.h"

namespace penstock::planner {
namespace {

using internal::Invalid;

class FoldedCheck {
 public:
  explicit FoldedCheck(const FoldedPlan& folded) : folded_(folded) {}

  absl::Status Run() {
    RETURN_IF_ERROR(CheckClasses());
    RETURN_IF_ERROR(CheckKernels());
    RETURN_IF_ERROR(CheckPrograms());
    RETURN_IF_ERROR(CheckViews());
    RETURN_IF_ERROR(CheckCollectives());
    RETURN_IF_ERROR(CheckTransfers());
    return CheckStates();
  }

 private:
  absl::Status CheckClasses() {
    if (folded_.mesh.axes.size() > kMaxMeshAxes) {
      return Invalid("the mesh has ", folded_.mesh.axes.size(), " axes; there may be ",
                     kMaxMeshAxes);
    }
    RETURN_IF_ERROR(graph::CheckMesh(folded_.mesh));
    const int64_t microbatches = folded_.mesh.num_microbatches();
    if (microbatches != folded_.common.num_microbatches) {
      return Invalid("the mesh has ", microbatches, " micro-batches a step, the plan ",
                     folded_.common.num_microbatches);
    }
    const auto num_devices = static_cast<uint64_t>(folded_.mesh.num_devices());
    if (folded_.class_of.size() != num_devices) {
      return Invalid("the mesh has ", num_devices, " devices, but there are classes of ",
                     folded_.class_of.size());
    }
    if (num_devices * folded_.num_stages() > kMaxFoldedDevices) {
      return Invalid("the plan has ", num_devices * folded_.num_stages(), " devices; there may be ",
                     kMaxFoldedDevices);
    }
    uint32_t next = 0;
    for (const uint32_t c : folded_.class_of) {
      if (c > next) return Invalid("class ", c, " occurs before class ", next);
      next = std::max(next, c + 1);
    }
    num_classes_ = next;
    return absl::OkStatus();
  }

  // A sharding, for a tensor of this shape.
  absl::Status CheckUse(uint32_t sharding, const Shape& shape) {
    if (sharding >= folded_.shardings.size()) {
      return Invalid("sharding ", sharding, " does not exist; there are ",
                     folded_.shardings.size());
    }
    if (!checked_.insert({sharding, shape}).second) return absl::OkStatus();
    RETURN_IF_ERROR(CheckShape(shape));
    return graph::CheckSharding(folded_.mesh, folded_.shardings[sharding], shape);
  }

  absl::Status CheckKernels() {
    if (folded_.kernel_shardings.size() != folded_.kernels.size()) {
      return Invalid("the plan has ", folded_.kernels.size(), " kernels, but the shardings of ",
                     folded_.kernel_shardings.size());
    }
    for (size_t k = 0; k < folded_.kernels.size(); ++k) {
      const KernelPlan& kernel = folded_.kernels[k];
      const std::vector<uint32_t>& shardings = folded_.kernel_shardings[k];
      if (shardings.size() != kernel.inputs.size() + kernel.outputs.size()) {
        return Invalid("kernel ", k, " has ", kernel.inputs.size() + kernel.outputs.size(),
                       " tiles, but shardings of ", shardings.size());
      }
      for (size_t i = 0; i < shardings.size(); ++i) {
        const size_t num_inputs = kernel.inputs.size();
        const TilePlan& tile = i < num_inputs ? kernel.inputs[i] : kernel.outputs[i - num_inputs];
        if (const absl::Status status = CheckTileShapes(tile); !status.ok()) {
          return Invalid("kernel ", k, " '", kernel.op, "': ", ToStd(status.message()));
        }
        if (shardings[i] == kNone) continue;
        RETURN_IF_ERROR(CheckUse(shardings[i], tile.global));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckPrograms() {
    if (folded_.programs.size() != uint64_t{folded_.num_stages()} * num_classes_) {
      return Invalid("the plan has ", folded_.programs.size(), " programs, expected ",
                     uint64_t{folded_.num_stages()} * num_classes_);
    }
    for (size_t p = 0; p < folded_.programs.size(); ++p) {
      const DevicePlan& program = folded_.programs[p];
      if (program.stage != p / num_classes_) {
        return Invalid("program ", p, " is of stage ", program.stage, ", expected ",
                       p / num_classes_);
      }
      for (const ActorPlan& actor : program.actors) {
        if (actor.kernel != kNone && actor.kernel >= folded_.kernels.size()) {
          return Invalid("kernel ", actor.kernel, " does not exist; there are ",
                         folded_.kernels.size());
        }
        const bool is_collective = actor.kind == ActorKind::kCollective;
        const bool is_transfer = actor.kind == ActorKind::kSend || actor.kind == ActorKind::kRecv;
        const size_t num_targets =
            is_collective ? folded_.collectives.size() : folded_.transfers.size();
        if ((is_collective || is_transfer) && actor.target >= num_targets) {
          return Invalid("the target ", actor.target, " of a ", Name(actor.kind),
                         " does not exist; there are ", num_targets);
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckViews() {
    for (const FoldedView& view : folded_.views) {
      RETURN_IF_ERROR(CheckUse(view.whole, view.type.shape));
      RETURN_IF_ERROR(CheckUse(view.part, view.type.shape));
    }
    if (folded_.view_operands.size() != folded_.programs.size()) {
      return Invalid("the plan has ", folded_.programs.size(), " programs, but views in ",
                     folded_.view_operands.size());
    }
    for (size_t p = 0; p < folded_.programs.size(); ++p) {
      const std::vector<ActorPlan>& actors = folded_.programs[p].actors;
      for (const ViewOperand& operand : folded_.view_operands[p]) {
        const bool exists = operand.view < folded_.views.size() && operand.actor < actors.size() &&
                            operand.index < (operand.is_output ? actors[operand.actor].outputs
                                                               : actors[operand.actor].inputs)
                                                .size();
        if (!exists) {
          return Invalid("program ", p, ": operand ", operand.index, " of actor ", operand.actor,
                         " is view ", operand.view, ", which does not exist");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckStage(uint32_t stage) const {
    if (stage < folded_.num_stages()) return absl::OkStatus();
    return Invalid("stage ", stage, " does not exist; there are ", folded_.num_stages());
  }

  absl::Status CheckCollectives() {
    for (const FoldedCollective& collective : folded_.collectives) {
      RETURN_IF_ERROR(CheckStage(collective.stage));
      // The axes of a tensor with as many elements as devices are of the kind that is wanted here.
      graph::Sharding sharding = graph::Sharding::Replicated(1);
      sharding.dims[0].axes = collective.axes;
      RETURN_IF_ERROR(graph::CheckSharding(
          folded_.mesh, sharding,
          {int64_t{folded_.mesh.num_devices()} * folded_.mesh.num_microbatches()}));
      int64_t group_size = 1;
      for (const graph::AxisRef& axis : collective.axes) {
        if (!graph::IsTemporal(folded_.mesh, axis)) group_size *= axis.size;
      }
      const auto n = static_cast<uint64_t>(group_size);
      const uint64_t num_groups = folded_.devices_per_stage() / n;
      if (collective.specs.size() != 1 && collective.specs.size() != num_groups) {
        return Invalid("a collective of ", num_groups, " groups has ", collective.specs.size(),
                       " specifications");
      }
      for (const CollectiveSpec& spec : collective.specs) {
        const uint64_t num_counts = spec.kind == CollectiveKind::kAllToAll ? n * n : n;
        if (spec.counts.size() > num_counts || spec.peers.size() > n || spec.hosts.size() > n) {
          return Invalid("a collective of groups of ", n, " devices has ", spec.counts.size(),
                         " counts, ", spec.peers.size(), " peers and ", spec.hosts.size(),
                         " hosts");
        }
        if (NumTensors(spec) != NumTensors(collective.specs[0]) ||
            std::any_of(spec.tensors.begin(), spec.tensors.end(),
                        [&](const auto& counts) { return counts.size() != spec.counts.size(); })) {
          return Invalid("the tensors of a collective differ between its ranks or groups");
        }
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckTransfers() {
    for (const FoldedTransfer& transfer : folded_.transfers) {
      RETURN_IF_ERROR(CheckStage(transfer.source_stage));
      RETURN_IF_ERROR(CheckStage(transfer.destination_stage));
      RETURN_IF_ERROR(CheckUse(transfer.sharding, transfer.type.shape));
    }
    return absl::OkStatus();
  }

  absl::Status CheckStates() {
    if (folded_.states.size() != folded_.common.states.size()) {
      return Invalid("the plan has ", folded_.common.states.size(), " states, but places of ",
                     folded_.states.size());
    }
    for (size_t i = 0; i < folded_.states.size(); ++i) {
      const FoldedState& state = folded_.states[i];
      RETURN_IF_ERROR(CheckStage(state.stage));
      RETURN_IF_ERROR(CheckUse(state.sharding, folded_.common.states[i].type.shape));
      if (state.registers.size() == num_classes_) continue;
      return Invalid("state '", folded_.common.states[i].name, "' has registers in ",
                     state.registers.size(), " classes of ", num_classes_);
    }
    return absl::OkStatus();
  }

  const FoldedPlan& folded_;
  uint32_t num_classes_ = 0;
  std::set<std::pair<uint32_t, Shape>> checked_;
};

uint64_t PartsOf(const DevicePlan& program, const std::vector<ViewOperand>& views) {
  constexpr size_t kNameBytes = 32;
  uint64_t parts = views.size() + program.channels.size() + program.registers.size();
  for (const PhasePlan& phase : program.phases) parts += 1 + phase.name.size() / kNameBytes;
  for (const ActorPlan& actor : program.actors) {
    parts += 1 + actor.inputs.size() + actor.outputs.size() + actor.name.size() / kNameBytes;
  }
  return parts;
}

// Members and counts of collectives, and transfers; kMaxExpandedMembers + 1 stands for more.
uint64_t MembersOf(const FoldedPlan& folded) {
  uint64_t members = folded.transfers.size() * uint64_t{folded.devices_per_stage()};
  for (const FoldedCollective& collective : folded.collectives) {
    uint64_t n = 1;
    for (const graph::AxisRef& axis : collective.axes) {
      if (!graph::IsTemporal(folded.mesh, axis)) n *= static_cast<uint64_t>(axis.size);
    }
    const uint64_t copies = collective.specs.size() == 1 ? folded.devices_per_stage() / n : 1;
    for (const CollectiveSpec& spec : collective.specs) {
      members += copies * (1 + n + (1 + spec.tensors.size()) * spec.counts.size());
    }
    if (members > kMaxExpandedMembers) return kMaxExpandedMembers + 1;
  }
  return members;
}

}  // namespace

absl::Status CheckExpandedSize(const FoldedPlan& folded, absl::Span<const uint32_t> devices) {
  constexpr char kInstead[] =
      "; `penstock show` and `penstock simulate` read its programs alone, and a plan for fewer "
      "devices or layers runs";
  if (MembersOf(folded) > kMaxExpandedMembers) {
    return absl::ResourceExhaustedError(
        StrCat("the collectives and transfers of all ", folded.num_devices(),
               " devices have more than ", kMaxExpandedMembers,
               " members and counts, which is too many to expand the plan", kInstead));
  }
  std::vector<uint64_t> parts;  // by program
  for (size_t p = 0; p < folded.programs.size(); ++p) {
    parts.push_back(PartsOf(folded.programs[p], folded.view_operands[p]));
  }
  const std::vector<uint32_t> programs = folded.ProgramsOfDevices();
  uint64_t total = 0;
  for (const uint32_t device : devices) {
    total += parts[programs[device]];
    if (total <= kMaxExpandedParts) continue;
    return absl::ResourceExhaustedError(StrCat(
        "the programs of ", devices.size(), " devices have more than ", kMaxExpandedParts,
        " actors, operands and channels in all, which is too many to expand the plan", kInstead));
  }
  return absl::OkStatus();
}

absl::Status CheckExpandedSize(const FoldedPlan& folded) {
  std::vector<uint32_t> devices(folded.num_devices());
  std::iota(devices.begin(), devices.end(), 0);
  return CheckExpandedSize(folded, devices);
}

absl::Status CheckFoldedReferences(const FoldedPlan& folded) { return FoldedCheck(folded).Run(); }

}  // namespace penstock::planner
