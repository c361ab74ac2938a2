#include "actors/engine/link.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

#include "base/exception_text.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using planner::ActorKind;
using planner::ActorPlan;
using planner::ChannelPlan;
using planner::DevicePlan;
using planner::kNone;
using planner::OperandPlan;
using planner::PhasePlan;
using planner::Plan;
using planner::RegisterPlan;

CollectiveSpec MessageOf(const planner::TransferPlan& transfer) {
  return transport::MessageOf(transfer.channel, transfer.source, transfer.destination,
                              transfer.num_bytes);
}

int RankOf(const CollectiveSpec& spec, uint32_t device) {
  const auto member = std::find(spec.devices.begin(), spec.devices.end(), device);
  return static_cast<int>(member - spec.devices.begin());
}

class Linker {
 public:
  Linker(const Plan& plan, uint32_t device, const LinkTarget& target)
      : plan_(plan), index_(device), device_(plan.devices[device]), target_(target) {}

  absl::StatusOr<LinkedDevice> Run() {
    LinkPhases();
    out_.actors.resize(device_.actors.size());
    for (uint32_t i = 0; i < device_.actors.size(); ++i) {
      const absl::Status status = LinkActor(i);
      if (!status.ok()) {
        return absl::Status(status.code(), StrCat("actor ", device_.actors[i].name, " on device ",
                                                  index_, ": ", ToStd(status.message())));
      }
    }
    RETURN_IF_ERROR(CheckStreamComms());
    LinkOperands();
    LinkMessages();
    LinkJoins();
    if (target_.communicator != nullptr) {
      out_.launches = (*target_.launch_order)[index_];
    }
    LinkCounters();
    LinkSources();
    return std::move(out_);
  }

 private:
  void LinkPhases() {
    for (const PhasePlan& plan : device_.phases) {
      Phase phase;
      phase.first_actor = plan.first_actor;
      phase.end_actor = plan.first_actor + plan.num_actors;
      phase.lane = plan.lane;
      if (plan.lane == planner::Lane::kCompute)
        phase.type = planner::PhaseType(plan.kind, plan.chunk);
      phase.per_microbatch = plan.per_microbatch;
      if (plan.lane == planner::Lane::kFloating && target_.communicator != nullptr) {
        phase.floating_stream = static_cast<uint32_t>(out_.floating_streams.size());
        out_.floating_streams.push_back(std::make_unique<LaneStream>(*target_.device));
      }
      phase_of_.insert(phase_of_.end(), plan.num_actors, static_cast<uint32_t>(out_.phases.size()));
      out_.phases.push_back(phase);
    }
  }

  absl::Status LinkActor(uint32_t index) {
    const ActorPlan& plan = device_.actors[index];
    Actor& actor = out_.actors[index];
    actor.kind = plan.kind;
    actor.runs_on_stream = RunsOnStream(index);
    actor.num_inputs = static_cast<uint16_t>(plan.inputs.size());
    actor.num_outputs = static_cast<uint16_t>(plan.outputs.size());
    switch (plan.kind) {
      case ActorKind::kKernel:
        if (plan.workspace_bytes > 0) actor.workspace = target_.arena + plan.workspace_offset;
        return LinkKernel(plan, out_.phases[phase_of_[index]], &actor);
      case ActorKind::kFeed:
      case ActorKind::kFetch: {
        const bool is_feed = plan.kind == ActorKind::kFeed;
        actor.part = static_cast<uint32_t>(out_.copies.size());
        out_.copies.push_back(DescribeHostCopy(plan_, index_, index));
        Phase& phase = out_.phases[phase_of_[index]];
        phase.has_host_copies = true;
        if (is_feed) return absl::OkStatus();
        if (phase.num_fetches++ == 0)
          phase.first_fetch = static_cast<uint32_t>(out_.fetches.size());
        out_.fetches.push_back(index);
        return absl::OkStatus();
      }
      case ActorKind::kCopy: {
        LinkCopy(plan_.kernels[plan.kernel], index, &actor);
        return absl::OkStatus();
      }
      case ActorKind::kCollective:
      case ActorKind::kSend:
      case ActorKind::kRecv:
        return LinkComm(plan, index, &actor);
    }
    return absl::OkStatus();
  }

  void LinkCopy(const graph::KernelSpec& spec, uint32_t index, Actor* actor) {
    actor->part = static_cast<uint32_t>(out_.memory_copies.size());
    MemoryCopy& copy = out_.memory_copies.emplace_back();
    copy.num_bytes = spec.inputs[0].num_bytes();
    copy.kind = spec.op == "to_host" ? CopyKind::kDeviceToHost : CopyKind::kHostToDevice;
    Phase& phase = out_.phases[phase_of_[index]];
    if (target_.device->is_synchronous() || phase.lane == planner::Lane::kFloating) return;
    copy.stream = CopyStreamOf(phase.lane, copy.kind);
    copy.done = target_.device->CreateEvent();
    ++phase.num_copies;
  }

  uint32_t CopyStreamOf(planner::Lane lane, CopyKind kind) {
    for (uint32_t i = 0; i < out_.copy_streams.size(); ++i) {
      if (out_.copy_streams[i].lane == lane && out_.copy_streams[i].kind == kind) return i;
    }
    out_.copy_streams.push_back({lane, kind, 0, std::make_unique<LaneStream>(*target_.device)});
    return static_cast<uint32_t>(out_.copy_streams.size()) - 1;
  }

  // Whether it is a copy beside the stream of its phase.
  bool IsStreamCopy(uint32_t actor) const {
    return out_.actors[actor].kind == ActorKind::kCopy &&
           out_.memory_copies[out_.actors[actor].part].stream != kNone;
  }

  Stream* StreamOf(const Phase& phase) const {
    return phase.floating_stream == kNone ? target_.streams[static_cast<size_t>(phase.lane)]
                                          : &out_.floating_streams[phase.floating_stream]->stream();
  }

  // Kernels hold no state between runs, so actors of one stream share those of equal specs.
  absl::Status LinkKernel(const ActorPlan& plan, const Phase& phase, Actor* actor) {
    Stream* const stream = StreamOf(phase);
    const auto [it, is_new] =
        kernels_.try_emplace(std::make_pair(plan.kernel, stream), SharedKernel{});
    SharedKernel& shared = it->second;
    if (is_new) {
      const graph::KernelSpec& spec = plan_.kernels[plan.kernel];
      const kernels::KernelDef* def = target_.kernels->Find(spec.op);
      if (def == nullptr || def->create == nullptr) {
        return absl::UnimplementedError(
            StrCat("a ", target_.device->kind(), " device has no kernel for ", spec.op));
      }
      ThreadPool* pool = target_.device->thread_pool();
      try {
        if (def->workspace_bytes != nullptr) {
          shared.workspace_bytes = def->workspace_bytes(spec, pool == nullptr ? 1 : pool->size());
        }
        ASSIGN_OR_RETURN(std::unique_ptr<kernels::Kernel> kernel,
                         def->create(spec, *target_.device, *stream));
        if (def->prepare != nullptr) def->prepare(spec);
        shared.kernel = kernel.get();
        out_.kernels.push_back(std::move(kernel));
      } catch (...) {
        return absl::InternalError(StrCat("its kernel threw: ", ExceptionText()));
      }
    }
    if (shared.kernel == nullptr) return absl::InternalError("its kernel could not be made");
    if (shared.workspace_bytes > plan.workspace_bytes) {
      return absl::InvalidArgumentError(StrCat("its kernel needs ", shared.workspace_bytes,
                                               " bytes of workspace, the plan gives it ",
                                               plan.workspace_bytes));
    }
    actor->kernel = shared.kernel;
    return absl::OkStatus();
  }

  // The end of a phase waits for its communication on streams. A copy for the transport behind it,
  // which a peer may need first, would wait for ever.
  absl::Status CheckStreamComms() const {
    for (uint32_t p = 0; p < out_.phases.size(); ++p) {
      const Phase& phase = out_.phases[p];
      if (phase.num_stream_comms == 0) continue;
      for (uint32_t i = phase.first_actor; i < phase.end_actor; ++i) {
        if (RunsOnStream(i)) continue;
        return absl::UnimplementedError(
            StrCat("phase ", device_.phases[p].name, " on device ", index_,
                   " has communication that the device runs itself and '", device_.actors[i].name,
                   "', which the host runs; they need phases of their own"));
      }
    }
    return absl::OkStatus();
  }

  // As opposed to moving by itself.
  bool RunsOnStream(uint32_t actor) const {
    return !planner::IsCommunication(device_.actors[actor].kind) || IsStreamComm(actor);
  }

  bool IsStreamComm(uint32_t actor) const {
    return target_.communicator != nullptr &&
           planner::IsLaunched(device_.actors[actor].kind, target_.launched);
  }

  absl::Status LinkComm(const ActorPlan& plan, uint32_t index, Actor* actor) {
    if (IsStreamComm(index)) return LinkStreamComm(plan, index, actor);
    if (target_.endpoint == nullptr) {
      return absl::FailedPreconditionError("the device has no transport");
    }
    actor->part = static_cast<uint32_t>(out_.comms.size());
    Comm& comm = out_.comms.emplace_back(DescribeComm(plan_, index_, index));
    comm.phase = phase_of_[index];
    comm.ordinal = num_comms_++;
    if (plan.kind != ActorKind::kCollective) return absl::OkStatus();
    const CollectiveSpec& spec = plan_.collectives[plan.target];
    ASSIGN_OR_RETURN(comm.collective,
                     transport::CreateCollective(spec, RankOf(spec, index_), *target_.endpoint));
    return absl::OkStatus();
  }

  absl::Status LinkStreamComm(const ActorPlan& plan, uint32_t index, Actor* actor) {
    actor->part = static_cast<uint32_t>(out_.stream_comms.size());
    Phase& phase = out_.phases[phase_of_[index]];
    if (phase.num_stream_comms++ == 0) phase.first_stream_comm = actor->part;
    StreamComm& comm = out_.stream_comms.emplace_back();
    comm.actor = index;
    comm.ordinal = num_comms_++;
    comm.stream = std::make_unique<LaneStream>(*target_.device);
    comm.kind = plan.kind;
    const bool is_message = plan.kind != ActorKind::kCollective;
    const CollectiveSpec spec =
        is_message ? MessageOf(plan_.transfers[plan.target]) : plan_.collectives[plan.target];
    const bool tells_failures = is_message || (*target_.tells_failures)[plan.target];
    ASSIGN_OR_RETURN(comm.collective,
                     target_.communicator->Create(spec, RankOf(spec, index_), comm.stream->stream(),
                                                  tells_failures));
    return absl::OkStatus();
  }

  std::byte* Slot0Of(const RegisterPlan& reg) const {
    if (!planner::IsOnHost(device_, reg)) return target_.arena + reg.offset;
    return target_.host_arena + (reg.offset - device_.arena_bytes);
  }

  void LinkOperands() {
    // Multi-slot arguments of each phase, grouped by register: (register, arg, slot 0).
    std::vector<std::tuple<uint32_t, uint32_t, std::byte*>> moving;
    for (Phase& phase : out_.phases) {
      moving.clear();
      for (uint32_t i = phase.first_actor; i < phase.end_actor; ++i) {
        const ActorPlan& plan = device_.actors[i];
        out_.actors[i].first_arg = static_cast<uint32_t>(out_.args.size());
        for (const auto* operands : {&plan.inputs, &plan.outputs}) {
          for (const OperandPlan& operand : *operands) {
            std::byte* slot0 = nullptr;
            if (operand.reg != kNone) {
              const RegisterPlan& reg = device_.registers[operand.reg];
              slot0 = Slot0Of(reg) + operand.offset;
              if (reg.slots > 1) moving.emplace_back(operand.reg, out_.args.size(), slot0);
            }
            out_.args.push_back(slot0);
          }
        }
      }
      std::sort(moving.begin(), moving.end());
      phase.first_group = static_cast<uint32_t>(out_.groups.size());
      uint32_t last = kNone;
      for (const auto& [reg, arg, slot0] : moving) {
        if (reg != last) {
          const RegisterPlan& plan = device_.registers[reg];
          out_.groups.push_back({plan.slot_bytes, plan.slots,
                                 static_cast<uint32_t>(out_.patches.size()), 0,
                                 plan.per_microbatch});
          last = reg;
        }
        out_.patches.push_back({slot0, arg});
        ++out_.groups.back().num_patches;
      }
      phase.num_groups = static_cast<uint32_t>(out_.groups.size()) - phase.first_group;
    }
  }

  bool IsInPhase(const ChannelPlan& channel) const {
    return phase_of_[channel.producer] == phase_of_[channel.consumer];
  }

  // What the consumer does with the value is ordered by the producer's stream.
  bool IsEarly(const ChannelPlan& channel) const { return RunsOnStream(channel.producer); }

  void FindNextOfGroups() {
    next_of_group_.assign(device_.actors.size(), kNone);
    const std::vector<uint32_t> previous = planner::PreviousOfGroups(plan_, index_);
    for (uint32_t i = 0; i < previous.size(); ++i) {
      if (previous[i] != kNone) next_of_group_[previous[i]] = i;
    }
  }

  uint32_t MessageTo(uint32_t actor) const {
    return RunsOnStream(actor) ? actor : actor | kToCommunication;
  }

  void LinkMessages() {
    FindNextOfGroups();
    out_.needs.resize(out_.actors.size());
    for (const ChannelPlan& channel : device_.channels) {
      if (!IsInPhase(channel)) continue;
      Actor& producer = out_.actors[channel.producer];
      ++(IsEarly(channel) ? producer.num_early : producer.num_late);
      ++out_.needs[channel.consumer];
    }
    for (uint32_t i = 0; i < out_.actors.size(); ++i) {
      if (next_of_group_[i] == kNone) continue;
      ++out_.actors[i].num_early;
      ++out_.needs[next_of_group_[i]];
    }
    uint32_t next = 0;
    std::vector<uint32_t> early(out_.actors.size());
    std::vector<uint32_t> late(out_.actors.size());
    for (uint32_t i = 0; i < out_.actors.size(); ++i) {
      Actor& actor = out_.actors[i];
      actor.first_message = early[i] = next;
      late[i] = next + actor.num_early;
      next += actor.num_early + actor.num_late;
    }
    out_.messages.resize(next);
    for (const ChannelPlan& channel : device_.channels) {
      if (!IsInPhase(channel)) continue;
      uint32_t& at = IsEarly(channel) ? early[channel.producer] : late[channel.producer];
      out_.messages[at++] = MessageTo(channel.consumer);
    }
    for (uint32_t i = 0; i < out_.actors.size(); ++i) {
      if (next_of_group_[i] != kNone) out_.messages[early[i]++] = MessageTo(next_of_group_[i]);
    }
    for (Phase& phase : out_.phases) {
      phase.first_start = static_cast<uint32_t>(out_.starts.size());
      for (uint32_t i = phase.first_actor; i < phase.end_actor; ++i) {
        if (RunsOnStream(i)) {
          phase.num_on_stream += IsStreamComm(i) || IsStreamCopy(i) ? 0 : 1;
        } else if (out_.needs[i] == 0) {
          out_.starts.push_back(i);
        }
      }
      phase.num_starts = static_cast<uint32_t>(out_.starts.size()) - phase.first_start;
    }
  }

  // An actor that uses the operands of communication or of a copy waits for its stream.
  void LinkJoins() {
    if (out_.stream_comms.empty() && out_.copy_streams.empty()) return;
    std::vector<std::vector<uint32_t>> joins(out_.actors.size());
    for (const ChannelPlan& channel : device_.channels) {
      if (!IsInPhase(channel)) continue;
      const uint32_t part = out_.actors[channel.producer].part;
      if (IsStreamComm(channel.producer)) joins[channel.consumer].push_back(part);
      if (IsStreamCopy(channel.producer)) joins[channel.consumer].push_back(part | kJoinsCopy);
    }
    for (uint32_t i = 0; i < joins.size(); ++i) {
      out_.actors[i].first_join = static_cast<uint32_t>(out_.joins.size());
      out_.actors[i].num_joins = static_cast<uint16_t>(joins[i].size());
      out_.joins.insert(out_.joins.end(), joins[i].begin(), joins[i].end());
    }
  }

  void LinkCounters() {
    struct Gate {
      uint32_t phase;
      uint32_t channel;
      bool is_credit;
    };
    std::vector<Gate> gates;
    for (uint32_t i = 0; i < device_.channels.size(); ++i) {
      const ChannelPlan& channel = device_.channels[i];
      if (IsInPhase(channel)) continue;
      Join(phase_of_[channel.producer], phase_of_[channel.consumer]);
      gates.push_back({phase_of_[channel.consumer], i, false});
      gates.push_back({phase_of_[channel.producer], i, true});
      ++out_.actors[channel.producer].num_increments;
      ++out_.actors[channel.consumer].num_increments;
    }
    std::stable_sort(gates.begin(), gates.end(),
                     [](const Gate& a, const Gate& b) { return a.phase < b.phase; });
    uint32_t next = 0;
    std::vector<uint32_t> at(out_.actors.size());
    for (uint32_t i = 0; i < out_.actors.size(); ++i) {
      Actor& actor = out_.actors[i];
      actor.first_increment = at[i] = next;
      next += actor.num_increments;
    }
    out_.increments.resize(next);
    for (const Gate& gate : gates) {
      const ChannelPlan& channel = device_.channels[gate.channel];
      Phase& phase = out_.phases[gate.phase];
      const uint32_t counter = static_cast<uint32_t>(out_.counters.size());
      if (phase.num_counters++ == 0) phase.first_counter = counter;
      const TokenCounter& entry = out_.counters.emplace_back(
          gate.is_credit ? channel.capacity - channel.initial : channel.initial,
          gate.is_credit ? channel.produce : channel.consume, gate.phase);
      if (entry.is_short()) ++phase.missing;
      out_.counter_infos.push_back({gate.channel, gate.is_credit});
      // Tokens come from the producer, credits from the consumer.
      if (gate.is_credit) {
        out_.increments[at[channel.consumer]++] = {counter, channel.consume};
      } else {
        out_.increments[at[channel.producer]++] = {counter, channel.produce};
      }
    }
  }

  void Join(uint32_t one, uint32_t other) {
    Phase& a = out_.phases[one];
    Phase& b = out_.phases[other];
    if (a.lane == b.lane || target_.communicator != nullptr) return;
    a.joined_lanes |= uint8_t{1} << static_cast<int>(b.lane);
    b.joined_lanes |= uint8_t{1} << static_cast<int>(a.lane);
  }

  void LinkSources() {
    if (target_.communicator == nullptr) return;
    std::vector<std::pair<uint32_t, PhaseSource>> sources;
    for (const ChannelPlan& channel : device_.channels) {
      const uint32_t producer = phase_of_[channel.producer];
      const uint32_t consumer = phase_of_[channel.consumer];
      if (StreamOf(out_.phases[producer]) == StreamOf(out_.phases[consumer])) continue;
      sources.push_back({consumer, {producer, channel.consume, channel.initial, channel.produce}});
      sources.push_back(
          {producer,
           {consumer, channel.produce, channel.capacity - channel.initial, channel.consume}});
    }
    std::sort(sources.begin(), sources.end());
    sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    for (const auto& [phase_index, source] : sources) {
      Phase& phase = out_.phases[phase_index];
      if (phase.num_sources++ == 0) phase.first_source = static_cast<uint32_t>(out_.sources.size());
      out_.sources.push_back(source);
    }
  }

  struct SharedKernel {
    kernels::Kernel* kernel = nullptr;
    size_t workspace_bytes = 0;
  };

  const Plan& plan_;
  const uint32_t index_;
  const DevicePlan& device_;
  const LinkTarget& target_;
  std::vector<uint32_t> phase_of_;       // an actor each
  std::vector<uint32_t> next_of_group_;  // likewise
  uint32_t num_comms_ = 0;               // so far
  absl::flat_hash_map<std::pair<uint32_t, Stream*>, SharedKernel> kernels_;
  LinkedDevice out_;
};

}  // namespace

Comm DescribeComm(const Plan& plan, uint32_t device, uint32_t actor) {
  const ActorPlan& actor_plan = plan.devices[device].actors[actor];
  Comm comm;
  comm.actor = actor;
  comm.kind = actor_plan.kind;
  if (actor_plan.kind == ActorKind::kCollective) {
    const CollectiveSpec& spec = plan.collectives[actor_plan.target];
    const int rank = RankOf(spec, device);
    const uint64_t element_bytes = ByteSize(spec.dtype);
    comm.channel = spec.channel;
    comm.tensors.resize(NumTensors(spec));
    for (size_t t = 0; t < comm.tensors.size(); ++t) {
      CommTensor& tensor = comm.tensors[t];
      tensor.input_bytes = static_cast<uint64_t>(InputCount(spec, rank, t)) * element_bytes;
      tensor.output_bytes = static_cast<uint64_t>(OutputCount(spec, rank, t)) * element_bytes;
      tensor.is_in_place = actor_plan.inputs[t] == actor_plan.outputs[t];
    }
    return comm;
  }
  const planner::TransferPlan& transfer = plan.transfers[actor_plan.target];
  const bool is_send = actor_plan.kind == ActorKind::kSend;
  CommTensor& tensor = comm.tensors[0];
  (is_send ? tensor.input_bytes : tensor.output_bytes) = transfer.num_bytes;
  comm.channel = transfer.channel;
  comm.peer = is_send ? transfer.destination : transfer.source;
  return comm;
}

HostCopy DescribeHostCopy(const Plan& plan, uint32_t device, uint32_t actor) {
  const ActorPlan& actor_plan = plan.devices[device].actors[actor];
  const graph::KernelSpec& spec = plan.kernels[actor_plan.kernel];
  const bool is_feed = actor_plan.kind == ActorKind::kFeed;
  const graph::TileDesc& tile = is_feed ? spec.outputs[0] : spec.inputs[0];
  return {TileCopy(tile), actor_plan.target, tile.num_bytes()};
}

absl::StatusOr<LinkedDevice> Link(const Plan& plan, uint32_t device, const LinkTarget& target) {
  return Linker(plan, device, target).Run();
}

}  // namespace penstock::actors
