#include "planner/plan/check_structure.h"

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/types/span.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/invalid_plan_internal.h"
#include "planner/plan/memory.h"
#include "planner/plan/rendezvous.h"
#include "planner/plan/show_plan.h"
#include "planner/plan/stage_schedule.h"

namespace penstock::planner {

using internal::Invalid;

namespace {

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
    // One for each micro-batch, or a few, of which some are filled while others are read.
    constexpr uint32_t kFewSlots = 8;
    const uint32_t most_slots = std::max(plan_.num_microbatches, kFewSlots);
    uint64_t held_state_bytes = 0;  // of state
    for (size_t r = 0; r < device.registers.size(); ++r) {
      const RegisterPlan& reg = device.registers[r];
      if (reg.slots == 0) return Invalid("device ", d, " register ", r, " has no slots");
      if (reg.slots > most_slots) {
        return Invalid("device ", d, " register ", r, " has ", reg.slots, " slots; with ",
                       plan_.num_microbatches, " micro-batches a step there may be ", most_slots);
      }
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
        RETURN_IF_ERROR(CheckKernelOperands(d, a));
        return CheckSums(d, a, phase);
      case ActorKind::kCollective: {
        const size_t num_tensors = NumTensors(plan_.collectives[actor.target]);
        RETURN_IF_ERROR(CheckCount(d, a, "input", actor.inputs.size(), num_tensors));
        return CheckCount(d, a, "output", actor.outputs.size(), num_tensors);
      }
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

  // What is added up over micro-batches stays where it is between them.
  absl::Status CheckSums(uint32_t d, uint32_t a, const PhasePlan& phase) const {
    const DevicePlan& device = plan_.devices[d];
    const ActorPlan& actor = device.actors[a];
    if (!plan_.kernels[actor.kernel].accumulate || !phase.per_microbatch) return absl::OkStatus();
    if (plan_.num_microbatches == 1) return absl::OkStatus();
    for (const OperandPlan& output : actor.outputs) {
      if (output.reg == kNone) continue;
      const RegisterPlan& reg = device.registers[output.reg];
      if (!reg.per_microbatch && reg.register_class != RegisterClass::kWorkspace) continue;
      return Invalid(DescribeActor(plan_, d, a), " adds up micro-batches in register ", output.reg,
                     ", which keeps nothing from one to the next");
    }
    return absl::OkStatus();
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
    const size_t num_tensors = NumTensors(spec);
    const bool sums_inputs =
        spec.kind == CollectiveKind::kAllReduce || spec.kind == CollectiveKind::kReduceScatter;
    const bool sums_outputs =
        spec.kind == CollectiveKind::kAllReduce || spec.kind == CollectiveKind::kAllGather;
    // The sums over all ranks are the same for every rank: taken once.
    std::vector<int64_t> first_inputs, first_outputs;
    for (size_t t = 0; t < num_tensors; ++t) {
      first_inputs.push_back(InputCount(spec, 0, t));
      first_outputs.push_back(OutputCount(spec, 0, t));
    }
    const uint64_t element_bytes = ByteSize(spec.dtype);
    for (size_t i = 0; i < ranks.size(); ++i) {
      const auto [d, a] = actors[i];
      const int rank = ranks[i];
      const ActorPlan& actor = ActorOf(actors[i]);
      const bool needs_input = spec.kind != CollectiveKind::kBroadcast ||
                               rank == static_cast<int>(spec.root) || actor.inputs[0].reg != kNone;
      for (size_t t = 0; t < num_tensors; ++t) {
        const int64_t inputs = sums_inputs ? first_inputs[t] : InputCount(spec, rank, t);
        const int64_t outputs = sums_outputs ? first_outputs[t] : OutputCount(spec, rank, t);
        if (needs_input) {
          RETURN_IF_ERROR(CheckOperand(d, a, "input", t, actor.inputs[t], inputs * element_bytes,
                                       element_bytes));
        }
        RETURN_IF_ERROR(CheckOperand(d, a, "output", t, actor.outputs[t], outputs * element_bytes,
                                     element_bytes));
      }
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

absl::Status CheckStructure(const Plan& plan) { return StructureCheck(plan).Run(); }

absl::Status CheckDevices(const Plan& plan) { return StructureCheck(plan).RunOfDevices(); }

}  // namespace penstock::planner
