#include "actors/engine/check_plan.h"

#include <array>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"

#include "actors/engine/tile_copy.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "transport/collective.h"

namespace penstock::actors {
namespace {

using planner::ActorKind;
using planner::ActorPlan;
using planner::ChannelPlan;
using planner::DevicePlan;
using planner::kNone;
using planner::Lane;
using planner::OperandPlan;
using planner::PhaseKind;
using planner::PhasePlan;
using planner::Plan;
using planner::RegisterPlan;

constexpr uint32_t kMaxDevices = 4096;
// More than any machine has; the arenas of kMaxDevices can be added up. Whether they fit into the
// memory at hand is for CheckFits to say.
constexpr uint64_t kMaxArenaBytes = uint64_t{1} << 50;
constexpr int64_t kMaxElements = int64_t{1} << 48;
constexpr uint64_t kAlignment = 64;
// The engine packs counts of one actor's operands, messages and gates into 16 bits.
// One more comes with linking: collectives of a group follow each other.
constexpr size_t kMaxFan = std::numeric_limits<uint16_t>::max() - 1;

template <typename... Parts>
absl::Status Bad(const Parts&... parts) {
  return absl::InvalidArgumentError(StrCat(parts...));
}

absl::Status Prefixed(std::string_view where, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(where, ": ", ToStd(status.message())));
}

absl::Status CheckDType(DType dtype) {
  if (static_cast<int>(dtype) >= kNumDTypes) return Bad("an unknown element type");
  return absl::OkStatus();
}

absl::Status CheckType(const TensorType& type) {
  RETURN_IF_ERROR(CheckDType(type.dtype));
  return CheckShape(type.shape);
}

// Ranks and sizes alone: what a tile may cover is for the kernel to say (halos reach over edges).
absl::Status CheckKernelTile(const graph::TileDesc& tile) {
  RETURN_IF_ERROR(CheckDType(tile.dtype));
  RETURN_IF_ERROR(CheckShape(tile.shape));
  RETURN_IF_ERROR(CheckShape(tile.global));
  const size_t rank = tile.shape.size();
  if (tile.global.size() != rank || (!tile.offset.empty() && tile.offset.size() != rank) ||
      (!tile.microbatch_stride.empty() && tile.microbatch_stride.size() != rank)) {
    return Bad("a tile's shapes have different ranks");
  }
  return absl::OkStatus();
}

// Checks one device of a plan; the plan's own lists have been checked.
class DeviceCheck {
 public:
  DeviceCheck(const Plan& plan, uint32_t index)
      : plan_(plan), device_(plan.devices[index]), index_(index) {}

  absl::Status Run() {
    for (const uint64_t num_bytes : {device_.arena_bytes, device_.host_bytes}) {
      if (num_bytes <= kMaxArenaBytes) continue;
      return Bad("it needs ", FormatBytes(num_bytes), " of memory; a device has at most ",
                 FormatBytes(kMaxArenaBytes));
    }
    if (device_.host_bytes > 0 && device_.arena_bytes % kAlignment != 0) {
      return Bad("its arena of ", device_.arena_bytes, " bytes is not aligned to ", kAlignment);
    }
    for (size_t i = 0; i < device_.registers.size(); ++i) {
      RETURN_IF_ERROR(Prefixed(StrCat("register ", i), CheckRegister(device_.registers[i])));
    }
    RETURN_IF_ERROR(CheckPhases());
    for (size_t i = 0; i < device_.actors.size(); ++i) {
      const ActorPlan& actor = device_.actors[i];
      RETURN_IF_ERROR(Prefixed(StrCat("actor ", i, " '", actor.name, "'"),
                               CheckActor(actor, device_.phases[phase_of_[i]])));
    }
    return CheckChannels();
  }

 private:
  absl::Status CheckRegister(const RegisterPlan& reg) const {
    if (reg.slots == 0) return Bad("it has no slots");
    if (reg.offset % kAlignment != 0 || reg.slot_bytes % kAlignment != 0) {
      return Bad("it is not aligned to ", kAlignment, " bytes");
    }
    const uint64_t end =
        device_.arena_bytes + (planner::IsOnHost(device_, reg) ? device_.host_bytes : 0);
    if (reg.offset > end ||
        (reg.slot_bytes > 0 && reg.slots > (end - reg.offset) / reg.slot_bytes)) {
      return Bad(reg.slots, " slots of ", reg.slot_bytes, " bytes at ", reg.offset,
                 " do not lie in the arena of ", device_.arena_bytes, " bytes, ",
                 device_.host_bytes, " more on the host");
    }
    return absl::OkStatus();
  }

  absl::Status CheckPhases() {
    if (device_.actors.size() >= kNone) return Bad("too many actors");
    std::vector<bool> seen;  // of each phase type
    uint64_t next = 0;
    for (size_t i = 0; i < device_.phases.size(); ++i) {
      const PhasePlan& phase = device_.phases[i];
      const std::string where = StrCat("phase ", i, " '", phase.name, "'");
      if (phase.first_actor != next || phase.num_actors > device_.actors.size() - next) {
        return Bad(where, ": its actors do not follow those of the phase before it");
      }
      next += phase.num_actors;
      phase_of_.insert(phase_of_.end(), phase.num_actors, static_cast<uint32_t>(i));
      if (phase.kind > PhaseKind::kTransfer) return Bad(where, ": unknown kind");
      switch (phase.lane) {
        case Lane::kCompute: {
          const int kind = static_cast<int>(phase.kind);
          if (kind >= planner::kNumPolicyKinds || !phase.per_microbatch) {
            return Bad(where, ": the compute lane runs F, B and W, once a micro-batch");
          }
          if (phase.chunk >= planner::kMaxChunks) return Bad(where, ": a chunk out of range");
          const uint32_t type = planner::PhaseType(phase.kind, phase.chunk);
          if (type >= seen.size()) seen.resize(type + 1);
          if (seen[type]) {
            return Bad(where, ": a second phase of its kind and chunk in the compute lane");
          }
          seen[type] = true;
          break;
        }
        case Lane::kPerStep:
        case Lane::kFloating:
          break;
        default:
          return Bad(where, ": unknown lane");
      }
    }
    if (next != device_.actors.size()) return Bad("actors after the last phase");
    return absl::OkStatus();
  }

  // Bytes from the operand's place to the end of its slot.
  absl::Status CheckOperand(const OperandPlan& operand, uint64_t num_bytes,
                            uint64_t alignment) const {
    if (operand.reg >= device_.registers.size()) {
      return Bad("register ", operand.reg, " does not exist");
    }
    const RegisterPlan& reg = device_.registers[operand.reg];
    if (operand.offset > reg.slot_bytes || num_bytes > reg.slot_bytes - operand.offset) {
      return Bad(num_bytes, " bytes at ", operand.offset, " do not fit register ", operand.reg,
                 ", whose slots have ", reg.slot_bytes, " bytes");
    }
    if (operand.offset % alignment != 0) return Bad("operand offset ", operand.offset, " is odd");
    return absl::OkStatus();
  }

  absl::Status CheckOperands(const std::vector<OperandPlan>& operands,
                             const std::vector<graph::TileDesc>& tiles) const {
    if (operands.size() != tiles.size()) {
      return Bad(operands.size(), " operands where its kernel has ", tiles.size());
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      if (operands[i].reg == kNone && !tiles[i].is_bound) continue;
      RETURN_IF_ERROR(CheckOperand(operands[i], tiles[i].num_bytes(), ByteSize(tiles[i].dtype)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckArity(const ActorPlan& actor, size_t inputs, size_t outputs) const {
    if (actor.inputs.size() != inputs || actor.outputs.size() != outputs) {
      return Bad("a ", Name(actor.kind), " has ", inputs, " inputs and ", outputs, " outputs");
    }
    return absl::OkStatus();
  }

  // A feed's or fetch's tile of the global tensor `type`.
  absl::Status CheckHostTile(const ActorPlan& actor, const PhasePlan& phase, bool is_feed,
                             const TensorType& type) const {
    if (actor.kernel >= plan_.kernels.size())
      return Bad("kernel ", actor.kernel, " does not exist");
    RETURN_IF_ERROR(CheckArity(actor, is_feed ? 0 : 1, is_feed ? 1 : 0));
    const graph::KernelSpec& kernel = plan_.kernels[actor.kernel];
    const auto& tiles = is_feed ? kernel.outputs : kernel.inputs;
    if (kernel.op != Name(actor.kind) || tiles.size() != 1) {
      return Bad("its kernel must be a '", Name(actor.kind), "' with one tile");
    }
    const graph::TileDesc& tile = tiles[0];
    RETURN_IF_ERROR(CheckTile(tile, phase.per_microbatch ? plan_.num_microbatches : 1));
    if (tile.dtype != type.dtype || tile.global != type.shape) {
      return Bad("its tile is of another tensor than ", ToString(type));
    }
    const OperandPlan& operand = is_feed ? actor.outputs[0] : actor.inputs[0];
    return CheckOperand(operand, tile.num_bytes(), ByteSize(tile.dtype));
  }

  absl::Status CheckTransfer(const ActorPlan& actor, const PhasePlan& phase, bool is_send) const {
    if (actor.target >= plan_.transfers.size()) {
      return Bad("transfer ", actor.target, " does not exist");
    }
    RETURN_IF_ERROR(CheckArity(actor, is_send ? 1 : 0, is_send ? 0 : 1));
    const planner::TransferPlan& transfer = plan_.transfers[actor.target];
    if (index_ != (is_send ? transfer.source : transfer.destination)) {
      return Bad("transfer ", actor.target, " is between other devices");
    }
    if (transfer.per_microbatch != phase.per_microbatch) return Bad("rate of phase and transfer");
    return CheckOperand(is_send ? actor.inputs[0] : actor.outputs[0], transfer.num_bytes, 1);
  }

  absl::Status CheckCollectiveActor(const ActorPlan& actor, const PhasePlan& phase) const {
    if (actor.target >= plan_.collectives.size()) {
      return Bad("collective ", actor.target, " does not exist");
    }
    const CollectiveSpec& spec = plan_.collectives[actor.target];
    RETURN_IF_ERROR(CheckArity(actor, NumTensors(spec), NumTensors(spec)));
    if (plan_.collective_per_microbatch[actor.target] != phase.per_microbatch) {
      return Bad("rate of phase and collective");
    }
    for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
      if (spec.devices[rank] != index_) continue;
      const uint64_t element = ByteSize(spec.dtype);
      const int r = static_cast<int>(rank);
      for (size_t t = 0; t < NumTensors(spec); ++t) {
        RETURN_IF_ERROR(CheckOperand(actor.inputs[t], InputCount(spec, r, t) * element, element));
        RETURN_IF_ERROR(CheckOperand(actor.outputs[t], OutputCount(spec, r, t) * element, element));
      }
      return absl::OkStatus();
    }
    return Bad("the device is not in the group of collective ", actor.target);
  }

  bool IsOnHost(const OperandPlan& operand) const {
    return operand.reg != kNone && planner::IsOnHost(device_, device_.registers[operand.reg]);
  }

  absl::Status CheckCopy(const ActorPlan& actor) const {
    if (actor.kernel >= plan_.kernels.size()) {
      return Bad("kernel ", actor.kernel, " does not exist");
    }
    RETURN_IF_ERROR(CheckArity(actor, 1, 1));
    const graph::KernelSpec& kernel = plan_.kernels[actor.kernel];
    const bool is_to_host = kernel.op == "to_host";
    if ((!is_to_host && kernel.op != "to_device") || kernel.inputs.size() != 1 ||
        kernel.inputs != kernel.outputs) {
      return Bad("its kernel must be a 'to_host' or a 'to_device' of one tile");
    }
    RETURN_IF_ERROR(CheckOperands(actor.inputs, kernel.inputs));
    RETURN_IF_ERROR(CheckOperands(actor.outputs, kernel.outputs));
    if (kernel.inputs[0].num_bytes() > 0 &&
        (IsOnHost(actor.inputs[0]) == is_to_host || IsOnHost(actor.outputs[0]) != is_to_host)) {
      return Bad("its operands are not in the memories that a '", kernel.op, "' joins");
    }
    return absl::OkStatus();
  }

  absl::Status CheckActor(const ActorPlan& actor, const PhasePlan& phase) {
    if (actor.inputs.size() > kMaxFan || actor.outputs.size() > kMaxFan) {
      return Bad("too many operands");
    }
    if (actor.workspace_bytes > device_.arena_bytes ||
        actor.workspace_offset > device_.arena_bytes - actor.workspace_bytes ||
        actor.workspace_offset % kAlignment != 0) {
      return Bad("its workspace does not lie in the arena");
    }
    for (const auto* operands : {&actor.inputs, &actor.outputs}) {
      for (const OperandPlan& operand : *operands) {
        if (actor.kind == ActorKind::kCopy || operand.reg >= device_.registers.size()) continue;
        if (IsOnHost(operand)) return Bad("it uses register ", operand.reg, " on the host");
      }
    }
    switch (actor.kind) {
      case ActorKind::kKernel: {
        if (actor.kernel >= plan_.kernels.size()) {
          return Bad("kernel ", actor.kernel, " does not exist");
        }
        const graph::KernelSpec& kernel = plan_.kernels[actor.kernel];
        RETURN_IF_ERROR(CheckOperands(actor.inputs, kernel.inputs));
        return CheckOperands(actor.outputs, kernel.outputs);
      }
      case ActorKind::kFeed:
        if (actor.target >= plan_.feeds.size()) return Bad("feed ", actor.target, " is unknown");
        return CheckHostTile(actor, phase, true, plan_.feeds[actor.target].type);
      case ActorKind::kFetch:
        if (actor.target >= plan_.fetches.size()) return Bad("fetch ", actor.target, " is unknown");
        return CheckHostTile(actor, phase, false, plan_.fetches[actor.target].type);
      case ActorKind::kCollective:
        return CheckCollectiveActor(actor, phase);
      case ActorKind::kSend:
      case ActorKind::kRecv: {
        const bool is_send = actor.kind == ActorKind::kSend;
        return CheckTransfer(actor, phase, is_send);
      }
      case ActorKind::kCopy:
        return CheckCopy(actor);
    }
    return Bad("unknown kind of actor");
  }

  absl::Status CheckChannels() const {
    std::vector<uint32_t> fan(device_.actors.size(), 0);
    for (size_t i = 0; i < device_.channels.size(); ++i) {
      const ChannelPlan& channel = device_.channels[i];
      const std::string where = StrCat("channel ", i);
      if (channel.producer >= fan.size() || channel.consumer >= fan.size()) {
        return Bad(where, ": an actor that does not exist");
      }
      if (channel.reg != kNone && channel.reg >= device_.registers.size()) {
        return Bad(where, ": register ", channel.reg, " does not exist");
      }
      if (++fan[channel.producer] > kMaxFan || ++fan[channel.consumer] > kMaxFan) {
        return Bad(where, ": one of its actors has too many channels");
      }
      if (phase_of_[channel.producer] == phase_of_[channel.consumer]) {
        if (channel.producer >= channel.consumer) {
          return Bad(where, ": runs against the order of its phase, from '",
                     device_.actors[channel.producer].name, "' to '",
                     device_.actors[channel.consumer].name, "'");
        }
        continue;
      }
      if (channel.produce == 0 || channel.consume == 0 || channel.produce > channel.capacity ||
          channel.consume > channel.capacity || channel.initial > channel.capacity) {
        return Bad(where, ": produces ", channel.produce, " and consumes ", channel.consume,
                   " of a capacity of ", channel.capacity, " that begins with ", channel.initial);
      }
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const DevicePlan& device_;
  const uint32_t index_;
  std::vector<uint32_t> phase_of_;  // an actor each
};

absl::Status CheckStages(const Plan& plan) {
  std::vector<bool> seen(plan.devices.size(), false);
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    for (const uint32_t device : plan.stages[stage].devices) {
      if (device >= plan.devices.size() || seen[device] || plan.devices[device].stage != stage) {
        return Bad("stage ", stage, ": device ", device, " is unknown or of another stage");
      }
      seen[device] = true;
    }
  }
  for (size_t device = 0; device < seen.size(); ++device) {
    if (!seen[device]) return Bad("device ", device, " is in no stage");
  }
  return absl::OkStatus();
}

absl::Status CheckWires(const Plan& plan) {
  const uint32_t num_devices = static_cast<uint32_t>(plan.devices.size());
  if (plan.collective_per_microbatch.size() != plan.collectives.size()) {
    return Bad("collectives without a rate");
  }
  if (plan.num_channels != plan.collectives.size() + plan.transfers.size()) {
    return Bad(plan.num_channels, " channels for ", plan.collectives.size(), " collectives and ",
               plan.transfers.size(), " transfers");
  }
  std::vector<bool> seen(plan.num_channels, false);
  auto claim = [&](uint32_t channel) {
    if (channel >= seen.size() || seen[channel]) return false;
    seen[channel] = true;
    return true;
  };
  for (size_t i = 0; i < plan.collectives.size(); ++i) {
    const CollectiveSpec& spec = plan.collectives[i];
    const std::string where = StrCat("collective ", i);
    RETURN_IF_ERROR(Prefixed(where, CheckDType(spec.dtype)));
    RETURN_IF_ERROR(Prefixed(where, transport::CheckCollective(spec, num_devices)));
    int64_t total = 0;
    for (const int64_t count : spec.counts) {
      if (count > kMaxElements - total) return Bad(where, ": more than 2^48 elements");
      total += count;
    }
    if (!claim(spec.channel)) return Bad(where, ": channel ", spec.channel, " is not its own");
  }
  for (size_t i = 0; i < plan.transfers.size(); ++i) {
    const planner::TransferPlan& transfer = plan.transfers[i];
    const std::string where = StrCat("transfer ", i);
    if (transfer.source >= num_devices || transfer.destination >= num_devices ||
        transfer.source == transfer.destination) {
      return Bad(where, ": from device ", transfer.source, " to ", transfer.destination);
    }
    if (!claim(transfer.channel)) {
      return Bad(where, ": channel ", transfer.channel, " is not its own");
    }
  }
  // A device has at most one actor for each side of a transfer and for each collective.
  absl::flat_hash_set<uint64_t> ends;
  for (size_t device = 0; device < plan.devices.size(); ++device) {
    for (const ActorPlan& actor : plan.devices[device].actors) {
      if (!planner::IsCommunication(actor.kind)) continue;
      const uint64_t list = actor.kind == ActorKind::kCollective ? 0 : 1;
      if (!ends.insert((device << 33) | (list << 32) | actor.target).second) {
        return Bad("device ", device, ", actor '", actor.name, "': a second ", Name(actor.kind),
                   " of its target");
      }
    }
  }
  return absl::OkStatus();
}

// Every element of a fetched tensor is written once a step.
absl::Status CheckFetches(const Plan& plan) {
  std::vector<uint64_t> firings(plan.fetches.size(), 0);
  std::vector<int64_t> elements(plan.fetches.size(), 0);
  for (const DevicePlan& device : plan.devices) {
    for (const PhasePlan& phase : device.phases) {
      const int64_t times = phase.per_microbatch ? plan.num_microbatches : 1;
      for (uint32_t i = 0; i < phase.num_actors; ++i) {
        const ActorPlan& actor = device.actors[phase.first_actor + i];
        if (actor.kind != ActorKind::kFetch) continue;
        firings[actor.target] += times;
        elements[actor.target] += times * plan.kernels[actor.kernel].inputs[0].num_elements();
      }
    }
  }
  for (size_t i = 0; i < plan.fetches.size(); ++i) {
    const planner::FetchPlan& fetch = plan.fetches[i];
    if (firings[i] != fetch.num_actors || elements[i] != fetch.type.num_elements()) {
      return Bad("fetch '", fetch.name, "': ", firings[i], " firings bring ", elements[i],
                 " elements; ", fetch.num_actors, " firings and ", fetch.type.num_elements(),
                 " elements make it complete");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStates(const Plan& plan) {
  absl::flat_hash_set<std::string> names;
  for (const planner::StatePlan& state : plan.states) {
    const std::string where = StrCat("state '", state.name, "'");
    if (!names.insert(state.name).second) return Bad(where, ": there are two");
    RETURN_IF_ERROR(Prefixed(where, CheckType(state.type)));
    if (state.init != "zeros" && state.init != "ones" && state.init != "normal") {
      return Bad(where, ": unknown initial value '", state.init, "'");
    }
    if (state.init == "normal" && !IsFloat(state.type.dtype)) {
      return Bad(where, ": normal values need a floating point type");
    }
    for (const planner::StatePlacement& placement : state.placements) {
      if (placement.device >= plan.devices.size() ||
          placement.reg >= plan.devices[placement.device].registers.size()) {
        return Bad(where, ": register ", placement.reg, " of device ", placement.device,
                   " does not exist");
      }
      const RegisterPlan& reg = plan.devices[placement.device].registers[placement.reg];
      RETURN_IF_ERROR(Prefixed(where, CheckTile(placement.tile, 1)));
      if (placement.tile.dtype != state.type.dtype || placement.tile.global != state.type.shape) {
        return Bad(where, ": a tile of another tensor");
      }
      if (reg.slots != 1 || placement.tile.num_bytes() > reg.slot_bytes) {
        return Bad(where, ": a register of ", reg.slots, " slots of ", reg.slot_bytes,
                   " bytes for a tile of ", placement.tile.num_bytes());
      }
    }
  }
  return absl::OkStatus();
}

// All but whether every fetch is complete.
absl::Status CheckParts(const Plan& plan) {
  if (plan.devices.empty() || plan.devices.size() > kMaxDevices) {
    return Bad(plan.name, " is laid out over ", plan.devices.size(), " devices: 1 to ", kMaxDevices,
               " are possible");
  }
  if (plan.num_microbatches == 0 || plan.num_microbatches > planner::kMaxMicrobatches) {
    return Bad(plan.num_microbatches, " micro-batches a step");
  }
  RETURN_IF_ERROR(CheckStages(plan));
  RETURN_IF_ERROR(CheckWires(plan));
  for (size_t i = 0; i < plan.kernels.size(); ++i) {
    for (const auto* tiles : {&plan.kernels[i].inputs, &plan.kernels[i].outputs}) {
      for (const graph::TileDesc& tile : *tiles) {
        RETURN_IF_ERROR(
            Prefixed(StrCat("kernel ", i, " '", plan.kernels[i].op, "'"), CheckKernelTile(tile)));
      }
    }
  }
  absl::flat_hash_set<std::string> names;
  for (const planner::FeedPlan& feed : plan.feeds) {
    if (!names.insert(feed.name).second) return Bad("feed '", feed.name, "': there are two");
    RETURN_IF_ERROR(Prefixed(StrCat("feed '", feed.name, "'"), CheckType(feed.type)));
  }
  for (const planner::FetchPlan& fetch : plan.fetches) {
    RETURN_IF_ERROR(Prefixed(StrCat("fetch '", fetch.name, "'"), CheckType(fetch.type)));
  }
  for (uint32_t i = 0; i < plan.devices.size(); ++i) {
    RETURN_IF_ERROR(Prefixed(StrCat("device ", i), DeviceCheck(plan, i).Run()));
  }
  return CheckStates(plan);
}

}  // namespace

absl::Status CheckPlan(const Plan& plan) {
  RETURN_IF_ERROR(CheckParts(plan));
  return CheckFetches(plan);
}

absl::Status CheckPlanSlice(const Plan& plan, uint32_t first_device, uint32_t num_devices) {
  if (num_devices == 0 || uint64_t{first_device} + num_devices > plan.devices.size()) {
    return Bad("there are no ", num_devices, " devices from ", first_device, " on in a plan of ",
               plan.devices.size());
  }
  return CheckParts(plan);
}

}  // namespace penstock::actors
