#include "planner/plan/check_plan.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <numeric>
#include <string>
#include <string_view>

#include "base/shape.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/memory.h"
#include "planner/plan/show_plan.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::planner {
namespace {

constexpr int64_t kMaxElements = int64_t{1} << 48;  // CheckShape's limit

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(StrCat(parts...));
}

// ---- References ---------------------------------------------------------------------------------

template <typename... Owner>
absl::Status CheckIndex(uint64_t index, uint64_t size, std::string_view what,
                        const Owner&... owner) {
  if (index < size) return absl::OkStatus();
  return Invalid(owner..., ": ", what, " ", index, " does not exist; there are ", size);
}

template <typename... Owner>
absl::Status CheckedShape(absl::Span<const int64_t> shape, const Owner&... owner) {
  const absl::Status status = CheckShape(shape);
  return status.ok() ? status : Invalid(owner..., ": ", ToStd(status.message()));
}

template <typename... Owner>
absl::Status CheckSeconds(double seconds, const Owner&... owner) {
  if (std::isfinite(seconds) && seconds >= 0) return absl::OkStatus();
  return Invalid(owner..., ": the predicted time is ", seconds, " s");
}

template <typename... Owner>
absl::Status CheckTile(const TilePlan& tile, const Owner&... owner) {
  RETURN_IF_ERROR(CheckedShape(tile.shape, owner...));
  RETURN_IF_ERROR(CheckedShape(tile.global, owner...));
  for (const Shape* shape : {&tile.offset, &tile.microbatch_stride}) {
    for (const int64_t value : *shape) {
      if (value > kMaxElements || value < -kMaxElements) {
        return Invalid(owner..., ": the offset or stride ", value, " is above the limit of 2^48");
      }
    }
  }
  const size_t rank = tile.shape.size();
  if (tile.global.size() != rank || tile.offset.size() != rank ||
      tile.microbatch_stride.size() != rank) {
    return Invalid(owner..., ": a tile's shape has rank ", rank, ", its tensor ",
                   tile.global.size(), ", its offset ", tile.offset.size(),
                   " and its micro-batch stride ", tile.microbatch_stride.size());
  }
  return absl::OkStatus();
}

absl::Status CheckPhaseRanges(const DevicePlan& device, size_t d) {
  uint64_t next = 0;
  for (size_t p = 0; p < device.phases.size(); ++p) {
    const PhasePlan& phase = device.phases[p];
    if (phase.first_actor != next) {
      return Invalid("device ", d, " phase ", phase.name, " begins at actor ", phase.first_actor,
                     "; the phase before it ends at ", next);
    }
    next += phase.num_actors;
    if (next > device.actors.size()) break;
    RETURN_IF_ERROR(CheckSeconds(phase.predicted_s, "device ", d, " phase ", phase.name));
  }
  if (next != device.actors.size()) {
    return Invalid("device ", d, ": the phases cover ", next, " actors of ", device.actors.size());
  }
  return absl::OkStatus();
}

absl::Status CheckDeviceReferences(const Plan& plan, uint32_t d) {
  const DevicePlan& device = plan.devices[d];
  // An index must stay below kNone.
  for (const size_t size : {device.actors.size(), device.registers.size(), device.phases.size(),
                            device.channels.size()}) {
    if (size >= kNone) return Invalid("device ", d, " has ", size, " parts of one kind");
  }
  RETURN_IF_ERROR(CheckPhaseRanges(device, d));
  for (uint32_t a = 0; a < device.actors.size(); ++a) {
    const ActorPlan& actor = device.actors[a];
    const bool has_kernel = !IsCommunication(actor.kind);
    if (has_kernel && actor.kernel >= plan.kernels.size()) {
      return Invalid(DescribeActor(plan, d, a), ": kernel ", actor.kernel,
                     " does not exist; there are ", plan.kernels.size());
    }
    size_t num_targets = 0;
    switch (actor.kind) {
      case ActorKind::kKernel:
        break;
      case ActorKind::kFeed:
        num_targets = plan.feeds.size();
        break;
      case ActorKind::kFetch:
        num_targets = plan.fetches.size();
        break;
      case ActorKind::kCollective:
        num_targets = plan.collectives.size();
        break;
      case ActorKind::kSend:
      case ActorKind::kRecv:
        num_targets = plan.transfers.size();
        break;
      case ActorKind::kCopy:
        break;
    }
    const bool has_target = actor.kind != ActorKind::kKernel && actor.kind != ActorKind::kCopy;
    if (has_target && actor.target >= num_targets) {
      return Invalid(DescribeActor(plan, d, a), ": the target ", actor.target, " of a ",
                     Name(actor.kind), " does not exist; there are ", num_targets);
    }
    for (const auto* operands : {&actor.inputs, &actor.outputs}) {
      for (const OperandPlan& operand : *operands) {
        if (operand.reg == kNone || operand.reg < device.registers.size()) continue;
        return Invalid(DescribeActor(plan, d, a), ": register ", operand.reg,
                       " does not exist; there are ", device.registers.size());
      }
    }
  }
  for (size_t c = 0; c < device.channels.size(); ++c) {
    const ChannelPlan& channel = device.channels[c];
    for (const uint32_t actor : {channel.producer, channel.consumer}) {
      if (actor < device.actors.size()) continue;
      return Invalid("device ", d, " channel ", c, ": actor ", actor, " does not exist; there are ",
                     device.actors.size());
    }
    if (channel.reg != kNone && channel.reg >= device.registers.size()) {
      return Invalid("device ", d, " channel ", c, ": register ", channel.reg,
                     " does not exist; there are ", device.registers.size());
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStageReferences(const Plan& plan) {
  std::vector<uint32_t> stage_of(plan.devices.size(), kNone);
  for (uint32_t s = 0; s < plan.stages.size(); ++s) {
    for (const uint32_t d : plan.stages[s].devices) {
      RETURN_IF_ERROR(CheckIndex(d, plan.devices.size(), "device", "stage ", s));
      if (stage_of[d] != kNone) {
        return Invalid("stage ", s, ": device ", d, " is also in stage ", stage_of[d]);
      }
      stage_of[d] = s;
    }
  }
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    if (stage_of[d] == kNone) return Invalid("device ", d, " is in no stage's list of devices");
    if (stage_of[d] != plan.devices[d].stage) {
      return Invalid("device ", d, " says that it is in stage ", plan.devices[d].stage,
                     " but stage ", stage_of[d], " lists it");
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCollectiveReferences(const Plan& plan, uint32_t c) {
  const CollectiveSpec& spec = plan.collectives[c];
  const size_t n = spec.devices.size();
  if (n == 0) return Invalid("collective ", c, " has no devices");
  std::vector<uint32_t> sorted = spec.devices;
  std::sort(sorted.begin(), sorted.end());
  RETURN_IF_ERROR(CheckIndex(sorted.back(), plan.devices.size(), "device", "collective ", c));
  if (std::adjacent_find(sorted.begin(), sorted.end()) != sorted.end()) {
    return Invalid("collective ", c, " lists a device twice");
  }
  const uint64_t num_counts = spec.kind == CollectiveKind::kBroadcast  ? 1
                              : spec.kind == CollectiveKind::kAllToAll ? uint64_t{n} * n
                                                                       : n;
  if (spec.counts.size() != num_counts) {
    return Invalid("collective ", c, " (", Name(spec.kind), " of ", n, " devices) has ",
                   spec.counts.size(), " counts, expected ", num_counts);
  }
  int64_t total = 0;
  for (const int64_t count : spec.counts) {
    if (count < 0 || count > kMaxElements - total) {
      return Invalid("collective ", c, ": its counts hold ", count,
                     "; they must be at least 0 and together at most 2^48");
    }
    total += count;
  }
  if (spec.kind == CollectiveKind::kPermute) {
    std::vector<uint32_t> peers = spec.peers;
    std::sort(peers.begin(), peers.end());
    for (uint32_t r = 0; r < n; ++r) {
      if (peers.size() != n || peers[r] != r) {
        return Invalid("collective ", c, ": its peers are not a permutation of ", n, " ranks");
      }
    }
  } else if (!spec.peers.empty()) {
    return Invalid("collective ", c, " (", Name(spec.kind), ") has peers");
  }
  const size_t num_hosts = spec.algorithm == CollectiveAlgorithm::kHierarchical ? n : 0;
  if (spec.hosts.size() != num_hosts) {
    return Invalid("collective ", c, " (", Name(spec.algorithm), ") has the hosts of ",
                   spec.hosts.size(), " ranks, expected ", num_hosts);
  }
  RETURN_IF_ERROR(CheckIndex(spec.root, n, "root rank", "collective ", c));
  if (spec.chunk_bytes <= 0) {
    return Invalid("collective ", c, " travels in chunks of ", spec.chunk_bytes, " bytes");
  }
  return absl::OkStatus();
}

// ---- Structure ----------------------------------------------------------------------------------

// Whether every micro-batch's tile lies inside its tensor, and the tensor is `type`.
template <typename... Owner>
absl::Status CheckTileOf(const Plan& plan, const TilePlan& tile, const TensorType& type,
                         const Owner&... owner) {
  if (tile.dtype != type.dtype || tile.global != type.shape) {
    return Invalid(owner..., ": its tile is of ", ToString(TensorType{tile.dtype, tile.global}),
                   ", expected ", ToString(type));
  }
  for (size_t i = 0; i < tile.shape.size(); ++i) {
    const int64_t last_offset =
        tile.offset[i] + tile.microbatch_stride[i] * (int64_t{plan.num_microbatches} - 1);
    if (tile.offset[i] >= 0 && last_offset >= 0 &&
        std::max(tile.offset[i], last_offset) + tile.shape[i] <= tile.global[i]) {
      continue;
    }
    return Invalid(owner..., ": in dimension ", i, " its tile of ", tile.shape[i], " from ",
                   tile.offset[i], " to ", last_offset, " does not lie inside ", tile.global[i]);
  }
  return absl::OkStatus();
}

class StructureCheck {
 public:
  explicit StructureCheck(const Plan& plan) : plan_(plan), rendezvous_(FindRendezvous(plan)) {}

  absl::Status Run() {
    RETURN_IF_ERROR(CheckTags());
    RETURN_IF_ERROR(RunOfDevices());
    for (uint32_t c = 0; c < plan_.collectives.size(); ++c) RETURN_IF_ERROR(CheckCollective(c));
    for (uint32_t t = 0; t < plan_.transfers.size(); ++t) RETURN_IF_ERROR(CheckTransfer(t));
    for (size_t f = 0; f < plan_.fetches.size(); ++f) {
      if (fetch_firings_[f] == plan_.fetches[f].num_actors) continue;
      return Invalid("fetch '", plan_.fetches[f].name, "' counts on ", plan_.fetches[f].num_actors,
                     " firings a step; its actors make ", fetch_firings_[f]);
    }
    return CheckStates();
  }

  absl::Status RunOfDevices() {
    fetch_firings_.assign(plan_.fetches.size(), 0);
    for (uint32_t d = 0; d < plan_.devices.size(); ++d) {
      RETURN_IF_ERROR(CheckRegisters(d));
      RETURN_IF_ERROR(CheckPhases(d));
      RETURN_IF_ERROR(CheckActors(d));
      RETURN_IF_ERROR(CheckChannels(d));
    }
    return CheckOrders();
  }

 private:
  std::string Describe(ActorRef ref) const { return DescribeActor(plan_, ref.device, ref.actor); }
  const ActorPlan& ActorOf(ActorRef ref) const {
    return plan_.devices[ref.device].actors[ref.actor];
  }
  uint32_t PhaseIndexOf(ActorRef ref) const {
    return PhaseOfActor(plan_.devices[ref.device], ref.actor);
  }
  const PhasePlan& PhaseOf(ActorRef ref) const {
    return plan_.devices[ref.device].phases[PhaseIndexOf(ref)];
  }

  // The order of a stage runs what its devices have.
  absl::Status CheckOrders() const {
    for (uint32_t s = 0; s < plan_.stages.size(); ++s) {
      if (plan_.stages[s].order.empty()) continue;
      const absl::Status status = CheckOrder(StageContextOf(plan_, s), plan_.stages[s].order);
      if (!status.ok()) return Invalid("the order of stage ", s, " has ", ToStd(status.message()));
    }
    return absl::OkStatus();
  }

  // Channels of collectives and transfers are the numbers from 0, each once.
  absl::Status CheckTags() const {
    const uint64_t expected = plan_.collectives.size() + plan_.transfers.size();
    if (plan_.num_channels != expected) {
      return Invalid("the plan counts ", plan_.num_channels, " channels, but has ", expected,
                     " collectives and transfers");
    }
    std::vector<bool> is_used(expected);
    const auto use = [&](uint32_t channel) {
      if (channel >= expected || is_used[channel]) return false;
      is_used[channel] = true;
      return true;
    };
    for (size_t c = 0; c < plan_.collectives.size(); ++c) {
      const uint32_t channel = plan_.collectives[c].channel;
      if (!use(channel)) {
        return Invalid("collective ", c, " has channel ", channel, ", which is taken or not below ",
                       expected);
      }
    }
    for (size_t t = 0; t < plan_.transfers.size(); ++t) {
      const uint32_t channel = plan_.transfers[t].channel;
      if (!use(channel)) {
        return Invalid("transfer ", t, " has channel ", channel, ", which is taken or not below ",
                       expected);
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckRegisters(uint32_t d) const {
    const DevicePlan& device = plan_.devices[d];
    if (device.host_bytes > UINT64_MAX - device.arena_bytes ||
        (device.host_bytes > 0 && device.arena_bytes % kArenaAlignment != 0)) {
      return Invalid("device ", d, ": ", device.host_bytes, " bytes on its host do not follow an ",
                     "arena of ", device.arena_bytes, " bytes");
    }
    uint64_t held_state_bytes = 0;  // of state
    for (size_t r = 0; r < device.registers.size(); ++r) {
      const RegisterPlan& reg = device.registers[r];
      if (reg.slots == 0) return Invalid("device ", d, " register ", r, " has no slots");
      if (reg.offset % kArenaAlignment != 0 || reg.slot_bytes % kArenaAlignment != 0) {
        return Invalid("device ", d, " register ", r, ": offset ", reg.offset, " and slots of ",
                       reg.slot_bytes, " bytes are not multiples of ", kArenaAlignment);
      }
      const bool is_on_host = IsOnHost(device, reg);
      const uint64_t end = device.arena_bytes + (is_on_host ? device.host_bytes : 0);
      if (reg.offset > end || reg.slot_bytes > (end - reg.offset) / reg.slots) {
        const std::string host = device.host_bytes == 0
                                     ? std::string()
                                     : StrCat(" or the ", device.host_bytes, " bytes on its host");
        return Invalid("device ", d, " register ", r, ": ", reg.slots, " slots of ", reg.slot_bytes,
                       " bytes at offset ", reg.offset, " do not lie in the arena of ",
                       device.arena_bytes, " bytes", host);
      }
      if (reg.register_class == RegisterClass::kState && reg.slots != 1) {
        return Invalid("device ", d, " register ", r, " holds state in ", reg.slots,
                       " slots, expected 1");
      }
      if (reg.register_class == RegisterClass::kState && !is_on_host) {
        held_state_bytes += reg.slot_bytes;
      }
    }
    const uint64_t channel_bytes = ChannelBytes(device);
    const uint64_t arena_bytes = device.arena_bytes;
    if (device.state_bytes > arena_bytes ||
        device.channel_bytes > arena_bytes - device.state_bytes ||
        device.workspace_bytes > arena_bytes - device.state_bytes - device.channel_bytes) {
      return Invalid("device ", d, ": state ", device.state_bytes, ", channels ",
                     device.channel_bytes, " and workspace ", device.workspace_bytes,
                     " bytes are more than the arena of ", arena_bytes);
    }
    if (held_state_bytes > device.state_bytes || channel_bytes > device.channel_bytes) {
      return Invalid("device ", d, ": registers hold ", held_state_bytes, " bytes of state and ",
                     channel_bytes, " of channels; the device counts ", device.state_bytes, " and ",
                     device.channel_bytes);
    }
    return absl::OkStatus();
  }

  absl::Status CheckPhases(uint32_t d) const {
    const DevicePlan& device = plan_.devices[d];
    std::vector<uint32_t> phase_of_type;
    for (uint32_t p = 0; p < device.phases.size(); ++p) {
      const PhasePlan& phase = device.phases[p];
      if (phase.lane != Lane::kCompute) continue;
      const auto kind = static_cast<size_t>(phase.kind);
      if (kind >= kNumPolicyKinds || !phase.per_microbatch) {
        return Invalid(DescribePhase(plan_, d, p), " (kind ", Name(phase.kind), ", once a ",
                       phase.per_microbatch ? "micro-batch" : "step",
                       ") is in the compute lane, which takes F, B and W once a micro-batch");
      }
      if (phase.chunk >= kMaxChunks) {
        return Invalid(DescribePhase(plan_, d, p), " is of chunk ", phase.chunk, "; there may be ",
                       kMaxChunks);
      }
      const uint32_t type = PhaseType(phase.kind, phase.chunk);
      if (type >= phase_of_type.size()) phase_of_type.resize(type + 1, kNone);
      if (phase_of_type[type] != kNone) {
        return Invalid(DescribePhase(plan_, d, p), " is the second of kind ", Name(phase.kind),
                       " of its chunk in the compute lane after ",
                       DescribePhase(plan_, d, phase_of_type[type]));
      }
      phase_of_type[type] = p;
    }
    return absl::OkStatus();
  }

  // `num_bytes` at the operand lie in one slot of its register, at a multiple of `element_bytes`.
  absl::Status CheckOperand(uint32_t d, uint32_t a, std::string_view which, size_t index,
                            const OperandPlan& operand, uint64_t num_bytes,
                            uint64_t element_bytes) const {
    if (operand.reg == kNone) {
      if (num_bytes == 0) return absl::OkStatus();
      return Invalid(DescribeActor(plan_, d, a), ": ", which, " ", index, " of ", num_bytes,
                     " bytes has no register");
    }
    const RegisterPlan& reg = plan_.devices[d].registers[operand.reg];
    if (operand.offset > reg.slot_bytes || num_bytes > reg.slot_bytes - operand.offset) {
      return Invalid(DescribeActor(plan_, d, a), ": ", which, " ", index, " has ", num_bytes,
                     " bytes at offset ", operand.offset, " of register ", operand.reg,
                     ", whose slots have ", reg.slot_bytes);
    }
    if (operand.offset % element_bytes != 0) {
      return Invalid(DescribeActor(plan_, d, a), ": ", which, " ", index, " is at offset ",
                     operand.offset, ", not a multiple of its ", element_bytes,
                     " bytes an element");
    }
    if (ActorOf({d, a}).kind != ActorKind::kCopy && IsOnHost(plan_.devices[d], reg)) {
      return Invalid(DescribeActor(plan_, d, a), ": ", which, " ", index, " is register ",
                     operand.reg, " on the host, which copies alone may use");
    }
    return absl::OkStatus();
  }

  absl::Status CheckTileOperands(uint32_t d, uint32_t a, std::string_view which,
                                 const std::vector<OperandPlan>& operands,
                                 const std::vector<TilePlan>& tiles) const {
    if (operands.size() != tiles.size()) {
      return Invalid(DescribeActor(plan_, d, a), " has ", operands.size(), " ", which,
                     "s; its kernel takes ", tiles.size());
    }
    for (size_t i = 0; i < operands.size(); ++i) {
      if (!tiles[i].is_bound) {
        if (operands[i].reg == kNone) continue;
        return Invalid(DescribeActor(plan_, d, a), ": ", which, " ", i,
                       " is not bound in its kernel but has register ", operands[i].reg);
      }
      RETURN_IF_ERROR(CheckOperand(d, a, which, i, operands[i], tiles[i].num_bytes(),
                                   ByteSize(tiles[i].dtype)));
    }
    return absl::OkStatus();
  }

  absl::Status CheckCount(uint32_t d, uint32_t a, std::string_view which, size_t found,
                          size_t expected) const {
    if (found == expected) return absl::OkStatus();
    return Invalid(DescribeActor(plan_, d, a), ": a ", Name(plan_.devices[d].actors[a].kind),
                   " has ", found, " ", which, "s, expected ", expected);
  }

  absl::Status CheckActors(uint32_t d) {
    const DevicePlan& device = plan_.devices[d];
    for (const PhasePlan& phase : device.phases) {
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        RETURN_IF_ERROR(CheckActor(d, a, phase));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckActor(uint32_t d, uint32_t a, const PhasePlan& phase) {
    const DevicePlan& device = plan_.devices[d];
    const ActorPlan& actor = device.actors[a];
    if (actor.workspace_bytes > 0 &&
        (actor.kind != ActorKind::kKernel || actor.workspace_offset % kArenaAlignment != 0 ||
         actor.workspace_offset > device.arena_bytes ||
         actor.workspace_bytes > device.arena_bytes - actor.workspace_offset)) {
      return Invalid(DescribeActor(plan_, d, a), ": ", actor.workspace_bytes,
                     " bytes of scratch at offset ", actor.workspace_offset,
                     " are not a kernel's, aligned to ", kArenaAlignment, " and in the arena of ",
                     device.arena_bytes, " bytes");
    }
    if (!phase.per_microbatch) {
      for (const auto* operands : {&actor.inputs, &actor.outputs}) {
        for (const OperandPlan& operand : *operands) {
          if (operand.reg == kNone) continue;
          const RegisterPlan& reg = device.registers[operand.reg];
          if (!reg.per_microbatch || reg.slots == 1) continue;
          return Invalid(DescribeActor(plan_, d, a), " runs once a step but uses register ",
                         operand.reg, ", which has ", reg.slots, " slots for micro-batches");
        }
      }
    }
    switch (actor.kind) {
      case ActorKind::kCopy:
        RETURN_IF_ERROR(CheckCopy(d, a));
        return CheckKernelOperands(d, a);
      case ActorKind::kFeed:
      case ActorKind::kFetch:
        RETURN_IF_ERROR(CheckFeedOrFetch(d, a, phase));
        return CheckKernelOperands(d, a);
      case ActorKind::kKernel:
        return CheckKernelOperands(d, a);
      case ActorKind::kCollective:
        RETURN_IF_ERROR(CheckCount(d, a, "input", actor.inputs.size(), 1));
        return CheckCount(d, a, "output", actor.outputs.size(), 1);
      case ActorKind::kSend:
        RETURN_IF_ERROR(CheckCount(d, a, "input", actor.inputs.size(), 1));
        return CheckCount(d, a, "output", actor.outputs.size(), 0);
      case ActorKind::kRecv:
        RETURN_IF_ERROR(CheckCount(d, a, "input", actor.inputs.size(), 0));
        return CheckCount(d, a, "output", actor.outputs.size(), 1);
    }
    return absl::OkStatus();
  }

  absl::Status CheckKernelOperands(uint32_t d, uint32_t a) const {
    const ActorPlan& actor = plan_.devices[d].actors[a];
    const KernelPlan& kernel = plan_.kernels[actor.kernel];
    RETURN_IF_ERROR(CheckTileOperands(d, a, "input", actor.inputs, kernel.inputs));
    return CheckTileOperands(d, a, "output", actor.outputs, kernel.outputs);
  }

  // A copy goes to the host or comes from there, as its kernel says.
  absl::Status CheckCopy(uint32_t d, uint32_t a) const {
    const DevicePlan& device = plan_.devices[d];
    const ActorPlan& actor = device.actors[a];
    const KernelPlan& kernel = plan_.kernels[actor.kernel];
    const bool is_to_host = kernel.op == "to_host";
    if ((!is_to_host && kernel.op != "to_device") || kernel.inputs.size() != 1 ||
        kernel.inputs != kernel.outputs) {
      return Invalid(DescribeActor(plan_, d, a), ": kernel ", actor.kernel, " ('", kernel.op,
                     "') does not describe a copy of one tile to the host or to the device");
    }
    RETURN_IF_ERROR(CheckCount(d, a, "input", actor.inputs.size(), 1));
    RETURN_IF_ERROR(CheckCount(d, a, "output", actor.outputs.size(), 1));
    for (const bool is_output : {false, true}) {
      const OperandPlan& operand = is_output ? actor.outputs[0] : actor.inputs[0];
      if (operand.reg == kNone || device.registers[operand.reg].slot_bytes == 0) continue;
      if (IsOnHost(device, device.registers[operand.reg]) == (is_output == is_to_host)) continue;
      return Invalid(DescribeActor(plan_, d, a), ": ", is_output ? "output" : "input",
                     " 0 of a copy ", is_to_host ? "to the host" : "to the device", " is register ",
                     operand.reg, ", which is on the ",
                     is_output == is_to_host ? "device" : "host");
    }
    return absl::OkStatus();
  }

  absl::Status CheckFeedOrFetch(uint32_t d, uint32_t a, const PhasePlan& phase) {
    const ActorPlan& actor = plan_.devices[d].actors[a];
    const KernelPlan& kernel = plan_.kernels[actor.kernel];
    const bool is_feed = actor.kind == ActorKind::kFeed;
    const std::vector<TilePlan>& tiles = is_feed ? kernel.outputs : kernel.inputs;
    const std::vector<TilePlan>& others = is_feed ? kernel.inputs : kernel.outputs;
    if (kernel.op != Name(actor.kind) || tiles.size() != 1 || !others.empty()) {
      return Invalid(DescribeActor(plan_, d, a), ": kernel ", actor.kernel, " ('", kernel.op,
                     "') does not describe the one tile of a ", Name(actor.kind));
    }
    if (!is_feed) fetch_firings_[actor.target] += FiringsPerStep(plan_, phase);
    const TensorType& type =
        is_feed ? plan_.feeds[actor.target].type : plan_.fetches[actor.target].type;
    return CheckTileOf(plan_, tiles[0], type, DescribeActor(plan_, d, a));
  }

  absl::Status CheckChannels(uint32_t d) const {
    const DevicePlan& device = plan_.devices[d];
    for (uint32_t c = 0; c < device.channels.size(); ++c) {
      const ChannelPlan& channel = device.channels[c];
      const uint32_t producer_phase = PhaseOfActor(device, channel.producer);
      const uint32_t consumer_phase = PhaseOfActor(device, channel.consumer);
      if (producer_phase == consumer_phase && channel.producer >= channel.consumer) {
        return Invalid("device ", d, " channel ", c, ": ",
                       DescribeActor(plan_, d, channel.consumer), " waits for ",
                       DescribeActor(plan_, d, channel.producer),
                       ", which does not come before it in the phase");
      }
      if (channel.produce == 0 || channel.consume == 0 ||
          channel.capacity < std::max(channel.produce, channel.consume) ||
          channel.initial > channel.capacity) {
        return Invalid("device ", d, " channel ", c, " (",
                       DescribeActor(plan_, d, channel.producer), " to ",
                       DescribeActor(plan_, d, channel.consumer), "): produce ", channel.produce,
                       ", consume ", channel.consume, " and initial ", channel.initial,
                       " do not go with a capacity of ", channel.capacity);
      }
      const uint64_t produced =
          uint64_t{channel.produce} * FiringsPerStep(plan_, device.phases[producer_phase]);
      const uint64_t consumed =
          uint64_t{channel.consume} * FiringsPerStep(plan_, device.phases[consumer_phase]);
      if (produced != consumed) {
        return Invalid("device ", d, " channel ", c, ": ",
                       DescribeActor(plan_, d, channel.producer), " puts ", produced,
                       " tokens a step and ", DescribeActor(plan_, d, channel.consumer), " takes ",
                       consumed);
      }
      if (producer_phase == consumer_phase) {
        if (channel.initial == 0) continue;
        return Invalid("device ", d, " channel ", c, " lies within ",
                       DescribePhase(plan_, d, producer_phase), " and has ", channel.initial,
                       " initial tokens, expected 0");
      }
      RETURN_IF_ERROR(CheckSlots(d, c, produced));
    }
    return absl::OkStatus();
  }

  // No more credits than the register has slots: a producer never writes over what is unread.
  absl::Status CheckSlots(uint32_t d, uint32_t c, uint64_t tokens_per_step) const {
    const ChannelPlan& channel = plan_.devices[d].channels[c];
    if (channel.reg == kNone) return absl::OkStatus();
    const RegisterPlan& reg = plan_.devices[d].registers[channel.reg];
    const uint64_t tokens_per_slot = TokensPerSlot(plan_, reg, tokens_per_step);
    if (channel.capacity <= reg.slots * tokens_per_slot) return absl::OkStatus();
    return Invalid("device ", d, " channel ", c, " (", DescribeActor(plan_, d, channel.producer),
                   " to ", DescribeActor(plan_, d, channel.consumer), ") has a capacity of ",
                   channel.capacity, " tokens; register ", channel.reg, " has ", reg.slots,
                   " slots of ", tokens_per_slot, " tokens");
  }

  absl::Status CheckCollective(uint32_t c) const {
    const CollectiveSpec& spec = plan_.collectives[c];
    const absl::Span<const ActorRef> actors = rendezvous_.Of(c);
    std::vector<int> ranks(spec.devices.size());
    std::iota(ranks.begin(), ranks.end(), 0);
    std::sort(ranks.begin(), ranks.end(),
              [&](int a, int b) { return spec.devices[a] < spec.devices[b]; });
    for (size_t i = 0; i < std::max(ranks.size(), actors.size()); ++i) {
      if (i < actors.size() && i > 0 && actors[i].device == actors[i - 1].device) {
        return Invalid("collective ", c, " is run twice on its device: by ",
                       Describe(actors[i - 1]), " and ", Describe(actors[i]));
      }
      if (i < actors.size() && (i >= ranks.size() || actors[i].device < spec.devices[ranks[i]])) {
        return Invalid(Describe(actors[i]), " runs collective ", c,
                       ", whose group its device is not in");
      }
      if (i >= actors.size() || actors[i].device > spec.devices[ranks[i]]) {
        return Invalid("collective ", c, " is not run on device ", spec.devices[ranks[i]],
                       " of its group");
      }
    }
    RETURN_IF_ERROR(CheckPhasesAgree(c, actors));
    // The sums over all ranks are the same for every rank: taken once.
    const int64_t first_input = InputCount(spec, 0);
    const int64_t first_output = OutputCount(spec, 0);
    const bool sums_inputs =
        spec.kind == CollectiveKind::kAllReduce || spec.kind == CollectiveKind::kReduceScatter;
    const bool sums_outputs =
        spec.kind == CollectiveKind::kAllReduce || spec.kind == CollectiveKind::kAllGather;
    const uint64_t element_bytes = ByteSize(spec.dtype);
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto [d, a] = actors[i];
      const int rank = ranks[i];
      const ActorPlan& actor = ActorOf(actors[i]);
      const int64_t inputs = sums_inputs ? first_input : InputCount(spec, rank);
      const int64_t outputs = sums_outputs ? first_output : OutputCount(spec, rank);
      const bool needs_input = spec.kind != CollectiveKind::kBroadcast ||
                               rank == static_cast<int>(spec.root) || actor.inputs[0].reg != kNone;
      if (needs_input) {
        RETURN_IF_ERROR(
            CheckOperand(d, a, "input", 0, actor.inputs[0], inputs * element_bytes, element_bytes));
      }
      RETURN_IF_ERROR(CheckOperand(d, a, "output", 0, actor.outputs[0], outputs * element_bytes,
                                   element_bytes));
    }
    return absl::OkStatus();
  }

  // All members of a group meet in the same place of their programs.
  absl::Status CheckPhasesAgree(uint32_t c, absl::Span<const ActorRef> actors) const {
    const PhasePlan& first = PhaseOf(actors[0]);
    const bool per_microbatch = plan_.collective_per_microbatch[c];
    if (first.per_microbatch != per_microbatch) {
      return Invalid("collective ", c, " runs once a ", per_microbatch ? "micro-batch" : "step",
                     " but ", Describe(actors[0]), " once a ",
                     first.per_microbatch ? "micro-batch" : "step");
    }
    for (const ActorRef& ref : actors.subspan(1)) {
      const PhasePlan& phase = PhaseOf(ref);
      if (phase.lane != first.lane || phase.per_microbatch != first.per_microbatch) {
        return Invalid("collective ", c, " is run in different lanes or at different rates: by ",
                       Describe(actors[0]), " in lane ", Name(first.lane), " and ", Describe(ref),
                       " in lane ", Name(phase.lane));
      }
      if (phase.lane != Lane::kCompute) continue;
      const uint32_t stage = plan_.devices[ref.device].stage;
      const uint32_t first_stage = plan_.devices[actors[0].device].stage;
      if (phase.kind != first.kind || stage != first_stage) {
        return Invalid("collective ", c, " joins ", Describe(actors[0]), " of stage ", first_stage,
                       " and ", Describe(ref), " of stage ", stage,
                       ": in the compute lane it must be one phase of one stage");
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckTransfer(uint32_t t) const {
    const TransferPlan& transfer = plan_.transfers[t];
    ActorRef send = {kNone, kNone};
    ActorRef recv = {kNone, kNone};
    for (const ActorRef& ref : rendezvous_.Of(plan_.collectives.size() + t)) {
      ActorRef& side = ActorOf(ref).kind == ActorKind::kSend ? send : recv;
      if (side.device != kNone) {
        return Invalid("transfer ", t, " is run twice on one side: by ", Describe(side), " and ",
                       Describe(ref));
      }
      side = ref;
    }
    if (send.device == kNone || recv.device == kNone) {
      return Invalid("transfer ", t, " has no ", send.device == kNone ? "send" : "recv", " actor");
    }
    if (transfer.source == transfer.destination) {
      return Invalid("transfer ", t, " goes from device ", transfer.source, " to itself");
    }
    if (send.device != transfer.source || recv.device != transfer.destination) {
      return Invalid("transfer ", t, " goes from device ", transfer.source, " to ",
                     transfer.destination, ", but its actors are ", Describe(send), " and ",
                     Describe(recv));
    }
    for (const ActorRef& ref : {send, recv}) {
      if (PhaseOf(ref).per_microbatch != transfer.per_microbatch) {
        return Invalid("transfer ", t, " runs once a ",
                       transfer.per_microbatch ? "micro-batch" : "step", " but ", Describe(ref),
                       " does not");
      }
    }
    RETURN_IF_ERROR(CheckOperand(send.device, send.actor, "input", 0, ActorOf(send).inputs[0],
                                 transfer.num_bytes, 1));
    return CheckOperand(recv.device, recv.actor, "output", 0, ActorOf(recv).outputs[0],
                        transfer.num_bytes, 1);
  }

  absl::Status CheckStates() const {
    std::vector<std::vector<bool>> is_taken(plan_.devices.size());
    for (size_t d = 0; d < plan_.devices.size(); ++d) {
      is_taken[d].resize(plan_.devices[d].registers.size());
    }
    for (const StatePlan& state : plan_.states) {
      if (state.init != "zeros" && state.init != "ones" && state.init != "normal") {
        return Invalid("state '", state.name, "': unknown initial value '", state.init, "'");
      }
      if (state.placements.empty()) return Invalid("state '", state.name, "' is on no device");
      for (const StatePlacement& placement : state.placements) {
        const auto [d, r] = std::pair(placement.device, placement.reg);
        const RegisterPlan& reg = plan_.devices[d].registers[r];
        if (reg.register_class != RegisterClass::kState) {
          return Invalid("state '", state.name, "' is in register ", r, " of device ", d,
                         ", which is of class ", Name(reg.register_class));
        }
        if (is_taken[d][r]) {
          return Invalid("state '", state.name, "': register ", r, " of device ", d,
                         " is taken by another state");
        }
        is_taken[d][r] = true;
        RETURN_IF_ERROR(CheckTileOf(plan_, placement.tile, state.type, "state '", state.name,
                                    "' on device ", d));
        if (placement.tile.num_bytes() > reg.slot_bytes) {
          return Invalid("state '", state.name, "' on device ", d, " has ",
                         placement.tile.num_bytes(), " bytes; register ", r, " has ",
                         reg.slot_bytes);
        }
      }
    }
    return absl::OkStatus();
  }

  const Plan& plan_;
  const RendezvousTable rendezvous_;
  std::vector<uint64_t> fetch_firings_;
};

}  // namespace

uint64_t TokensPerSlot(const Plan& plan, const RegisterPlan& reg, uint64_t tokens_per_step) {
  const bool is_refilled = reg.per_microbatch && reg.register_class == RegisterClass::kChannel;
  return std::max<uint64_t>(tokens_per_step / (is_refilled ? plan.num_microbatches : 1), 1);
}

uint64_t ChannelBytes(const DevicePlan& device) {
  std::vector<std::pair<uint64_t, uint64_t>> ranges;
  for (const RegisterPlan& reg : device.registers) {
    if (reg.register_class != RegisterClass::kChannel || IsOnHost(device, reg)) continue;
    ranges.emplace_back(reg.offset, reg.offset + reg.slots * reg.slot_bytes);
  }
  std::sort(ranges.begin(), ranges.end());
  uint64_t bytes = 0;
  uint64_t end = 0;  // of those so far
  for (const auto& [range_begin, range_end] : ranges) {
    if (range_end <= end) continue;
    bytes += range_end - std::max(range_begin, end);
    end = range_end;
  }
  return bytes;
}

RendezvousTable FindRendezvous(const Plan& plan) {
  RendezvousTable rendezvous_table;
  std::vector<uint32_t> next(plan.collectives.size() + plan.transfers.size() + 1, 0);
  for (const DevicePlan& device : plan.devices) {
    for (const ActorPlan& actor : device.actors) {
      const uint32_t rendezvous = RendezvousOf(plan, actor);
      if (rendezvous != kNone) ++next[rendezvous + 1];
    }
  }
  std::partial_sum(next.begin(), next.end(), next.begin());
  rendezvous_table.ends.assign(next.begin() + 1, next.end());
  rendezvous_table.actors.resize(next.back());
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    for (uint32_t a = 0; a < plan.devices[d].actors.size(); ++a) {
      const uint32_t rendezvous = RendezvousOf(plan, plan.devices[d].actors[a]);
      if (rendezvous != kNone) rendezvous_table.actors[next[rendezvous]++] = {d, a};
    }
  }
  return rendezvous_table;
}

absl::Status CheckReferences(const Plan& plan) {
  if (plan.threads_per_device < 1 || plan.threads_per_device > kMaxThreadsPerDevice) {
    return Invalid("the plan has ", plan.threads_per_device, " threads a device, expected 1 to ",
                   kMaxThreadsPerDevice);
  }
  if (plan.num_microbatches < 1 || plan.num_microbatches > kMaxMicrobatches) {
    return Invalid("the plan has ", plan.num_microbatches, " micro-batches a step, expected 1 to ",
                   kMaxMicrobatches);
  }
  if (plan.devices.empty()) return Invalid("the plan has no devices");
  if (uint64_t{plan.collectives.size()} + plan.transfers.size() >= kNone) {
    return Invalid("the plan has too many collectives and transfers");
  }
  if (plan.collective_per_microbatch.size() != plan.collectives.size()) {
    return Invalid("the plan has ", plan.collectives.size(), " collectives, but the rates of ",
                   plan.collective_per_microbatch.size());
  }
  if (!plan.predicted_peak_bytes.empty() &&
      plan.predicted_peak_bytes.size() != plan.devices.size()) {
    return Invalid("the plan has ", plan.devices.size(), " devices, but predicted peaks of ",
                   plan.predicted_peak_bytes.size());
  }
  RETURN_IF_ERROR(CheckSeconds(plan.predicted_step_s, "the plan's step"));
  RETURN_IF_ERROR(CheckStageReferences(plan));
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    RETURN_IF_ERROR(CheckDeviceReferences(plan, d));
  }
  for (size_t k = 0; k < plan.kernels.size(); ++k) {
    for (const auto* tiles : {&plan.kernels[k].inputs, &plan.kernels[k].outputs}) {
      for (const TilePlan& tile : *tiles) {
        RETURN_IF_ERROR(CheckTile(tile, "kernel ", k, " '", plan.kernels[k].op, "'"));
      }
    }
  }
  for (uint32_t c = 0; c < plan.collectives.size(); ++c) {
    RETURN_IF_ERROR(CheckCollectiveReferences(plan, c));
  }
  for (size_t t = 0; t < plan.transfers.size(); ++t) {
    for (const uint32_t device : {plan.transfers[t].source, plan.transfers[t].destination}) {
      RETURN_IF_ERROR(CheckIndex(device, plan.devices.size(), "device", "transfer ", t));
    }
  }
  for (const FeedPlan& feed : plan.feeds) {
    RETURN_IF_ERROR(CheckedShape(feed.type.shape, "feed '", feed.name, "'"));
  }
  for (const FetchPlan& fetch : plan.fetches) {
    RETURN_IF_ERROR(CheckedShape(fetch.type.shape, "fetch '", fetch.name, "'"));
  }
  for (const StatePlan& state : plan.states) {
    RETURN_IF_ERROR(CheckedShape(state.type.shape, "state '", state.name, "'"));
    if (!std::isfinite(state.std) || state.std < 0) {
      return Invalid("state '", state.name, "': the standard deviation is ", state.std);
    }
    for (const StatePlacement& placement : state.placements) {
      RETURN_IF_ERROR(
          CheckIndex(placement.device, plan.devices.size(), "device", "state '", state.name, "'"));
      RETURN_IF_ERROR(CheckIndex(placement.reg, plan.devices[placement.device].registers.size(),
                                 "register", "state '", state.name, "' on device ",
                                 placement.device));
      RETURN_IF_ERROR(
          CheckTile(placement.tile, "state '", state.name, "' on device ", placement.device));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckStructure(const Plan& plan) { return StructureCheck(plan).Run(); }

absl::Status CheckDevices(const Plan& plan) { return StructureCheck(plan).RunOfDevices(); }

}  // namespace penstock::planner
