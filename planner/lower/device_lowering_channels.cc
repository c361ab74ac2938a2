#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/lower/device_lowering_internal.h"
#include "planner/lower/sub_batches.h"
#include "planner/plan/coordinates.h"

namespace penstock::planner::internal {

// The sum of micro-batches of which the term is made, rounded into the term's buffer.
absl::Status DeviceLowering::AddRounding(ValueId term, int phase) {
  const Node& cast = shared_.ProducerOf(term);
  const ValueId sum = cast.operands[0];
  ASSIGN_OR_RETURN(const TilePlan from, Tile(sum));
  ASSIGN_OR_RETURN(const TilePlan to, Tile(term));
  Buffer buffer;
  buffer.bytes = from.num_bytes();
  buffer.per_microbatch = false;
  part_[sum] = program_.AddBuffer(buffer);
  KernelPlan spec = {std::string(cast.op->name()), cast.attributes, {from}, {to}};
  AddActor(phase, ActorKind::kKernel, graph_.value(term).name, std::move(spec),
           {shared_.ShardingIndex(sum), shared_.ShardingIndex(term)}, kNone, {part_.at(sum)},
           {part_.at(term)});
  return absl::OkStatus();
}

absl::Status DeviceLowering::AddBuckets() {
  const bool per_microbatch = shared_.num_microbatches() == 1;
  for (size_t b = 0; b < shared_.buckets_.size(); ++b) {
    const Bucket& bucket = shared_.buckets_[b];
    if (bucket.stage != stage_) continue;
    const uint32_t target = shared_.bucket_collectives_[b];
    const bool scatters = bucket.kind == CollectiveKind::kReduceScatter;
    const std::string name = absl::StrCat(scatters ? "scatter" : "reduce", " gradients ", b);
    const int phase = FloatingPhase(name, per_microbatch);
    Buffer buffer;
    buffer.per_microbatch = per_microbatch;
    std::vector<int> inputs, outputs;
    if (!scatters) inputs = outputs = {program_.AddBuffer(buffer)};
    for (NodeId id : bucket.nodes) {
      const ValueId term = graph_.node(id).operands[0];
      const ValueId part = graph_.node(id).results[0];
      ASSIGN_OR_RETURN(const TilePlan whole_tile, Tile(term));
      if (scatters) {
        ASSIGN_OR_RETURN(const TilePlan tile, Tile(part));
        buffer.bytes = whole_tile.num_bytes();
        inputs.push_back(program_.AddBuffer(buffer));
        part_[term] = inputs.back();
        // Into the device's own part of the buffer.
        const std::optional<uint64_t> offset = ContiguousOffset(whole_tile, tile);
        if (!offset.has_value()) {
          return absl::InternalError(
              absl::StrCat("the parts of %", graph_.value(term).name, " are not contiguous"));
        }
        outputs.push_back(program_.AddView(inputs.back(), shared_.ViewIndex(term, part), *offset,
                                           tile.num_bytes()));
        scattered_part_[part] = outputs.back();
      } else {
        part_[term] = program_.AddPart(inputs[0], whole_tile.num_bytes());
      }
      if (shared_.rounded_in_bucket_.contains(term)) RETURN_IF_ERROR(AddRounding(term, phase));
    }
    AddActor(phase, ActorKind::kCollective, name, {}, {}, target, std::move(inputs),
             std::move(outputs));
  }
  return absl::OkStatus();
}

// The actor of a redistribution, or of a bucket of them, which comes with the last of its nodes.
void DeviceLowering::AddCollective(const ScheduledNode& scheduled, int phase, int input, int output,
                                   int after) {
  const ValueId result = graph_.node(scheduled.node).results[0];
  std::string name = graph_.value(result).name;
  const uint32_t target = shared_.collectives_.at(scheduled.node);
  if (scheduled.bucket < 0) {
    AddActor(phase, ActorKind::kCollective, std::move(name), {}, {}, target, {input}, {output},
             after);
    return;
  }
  JoinedOperands& operands = joined_[scheduled.bucket];
  operands.inputs.push_back(input);
  operands.outputs.push_back(output);
  if (!scheduled.ends_bucket) return;
  const size_t others = operands.inputs.size() - 1;
  absl::StrAppend(&name, " and ", others, others == 1 ? " other" : " others");
  AddActor(phase, ActorKind::kCollective, std::move(name), {}, {}, target,
           std::move(operands.inputs), std::move(operands.outputs), after);
}

absl::Status DeviceLowering::AddReceive(ValueId value) {
  const bool per_microbatch = shared_.IsMadeOften(value);
  ASSIGN_OR_RETURN(int buffer, NewBuffer(value, per_microbatch));
  program_.buffer(buffer).received = true;
  program_.buffer(buffer).source = shared_.ComputePhaseOf(shared_.PhaseOf(value), direction_);
  buffer_[value] = buffer;
  const std::string name = absl::StrCat("recv ", graph_.value(value).name);
  const uint32_t transfer = shared_.transfers_.at({value, stage_});
  AddActor(FloatingPhase(name, per_microbatch), ActorKind::kRecv, name, {}, {}, transfer, {},
           {buffer});
  return absl::OkStatus();
}

// What devices of another mesh send, put together.
absl::Status DeviceLowering::AddReception(NodeId id, int phase) {
  const Lowering::Reception& reception = shared_.receptions_.at(id);
  const ValueId source = graph_.node(id).operands[0];
  const ValueId result = graph_.node(id).results[0];
  const std::string& name = graph_.value(result).name;
  const bool per_microbatch = shared_.IsMadeOften(source);
  ASSIGN_OR_RETURN(const TilePlan tile, Tile(result));
  KernelPlan join = {"join_tiles", {}, {}, {tile}};
  std::vector<int> parts;
  for (size_t m = 0; m < reception.messages.size(); ++m) {
    const CrossMeshMessage& message = reception.messages[m];
    if (message.destination != mesh_device_) continue;
    Buffer buffer;
    buffer.bytes = message.part.num_bytes();
    buffer.per_microbatch = per_microbatch;
    buffer.received = true;
    buffer.source = shared_.ComputePhaseOf(shared_.PhaseOf(source), direction_);
    parts.push_back(program_.AddBuffer(buffer));
    join.inputs.push_back(message.part);
    const std::string part_name = absl::StrCat("recv ", name, ".", parts.size() - 1);
    AddActor(FloatingPhase(part_name, per_microbatch), ActorKind::kRecv, part_name, {}, {},
             reception.first_transfer + static_cast<uint32_t>(m), {}, {parts.back()});
  }
  if (parts.size() == 1 && join.inputs[0].shape == tile.shape) {
    buffer_[result] = parts[0];
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const int output, NewBuffer(result, shared_.IsMadeOften(result)));
  const std::vector<uint32_t> shardings(parts.size() + 1, kNone);
  AddActor(phase, ActorKind::kKernel, name, std::move(join), shardings, kNone, parts, {output});
  buffer_[result] = output;
  value_phase_[result] = phase;
  return absl::OkStatus();
}

// Sends to devices of another mesh the parts of the value that they take from this one.
absl::Status DeviceLowering::AddParts(ValueId value) {
  const auto readers = shared_.receptions_of_.find(value);
  if (readers == shared_.receptions_of_.end()) return absl::OkStatus();
  const bool per_microbatch = shared_.IsMadeOften(value);
  const std::string& name = graph_.value(value).name;
  ASSIGN_OR_RETURN(const TilePlan tile, Tile(value));
  const int whole = buffer_.at(shared_.RootOf(value));
  int num_parts = 0;
  for (const NodeId id : readers->second) {
    const Lowering::Reception& reception = shared_.receptions_.at(id);
    for (size_t m = 0; m < reception.messages.size(); ++m) {
      const CrossMeshMessage& message = reception.messages[m];
      if (message.source != mesh_device_) continue;
      const std::string part_name = absl::StrCat("send ", name, ".", num_parts++);
      const std::optional<uint64_t> offset = ContiguousOffset(tile, message.part);
      int part = whole;
      if (offset.has_value() && message.part.shape != tile.shape) {
        part = program_.AddView(whole, kNone, *offset, message.part.num_bytes());
      } else if (!offset.has_value()) {
        Buffer buffer;
        buffer.bytes = message.part.num_bytes();
        buffer.per_microbatch = per_microbatch;
        part = program_.AddBuffer(buffer);
        const int phase = PhaseIndex(shared_.FetchKey(value));
        AddActor(phase, ActorKind::kKernel, absl::StrCat(name, ".part", num_parts - 1),
                 {"local_slice", {}, {tile}, {message.part}}, {kNone, kNone}, kNone, {whole},
                 {part});
      }
      AddActor(FloatingPhase(part_name, per_microbatch), ActorKind::kSend, part_name, {}, {},
               reception.first_transfer + static_cast<uint32_t>(m), {part}, {});
    }
  }
  return absl::OkStatus();
}

absl::Status DeviceLowering::AddSends(ValueId value) {
  RETURN_IF_ERROR(AddParts(value));
  const auto readers = shared_.remote_readers_.find(value);
  if (readers == shared_.remote_readers_.end()) return absl::OkStatus();
  const bool per_microbatch = shared_.IsMadeOften(value);
  for (int stage : readers->second) {
    const std::string name = absl::StrCat("send ", graph_.value(value).name);
    const uint32_t transfer = shared_.transfers_.at({value, stage});
    const int phase = FloatingPhase(name, per_microbatch);
    AddActor(phase, ActorKind::kSend, name, {}, {}, transfer, {buffer_.at(shared_.RootOf(value))},
             {});
  }
  return absl::OkStatus();
}

// A sum is reduced in place when nobody else reads its terms.
bool DeviceLowering::IsReducedInPlace(NodeId reduction) const {
  const Node& node = graph_.node(reduction);
  if (node.op->role() != graph::OpRole::kAllReduce) return false;
  const ValueId operand = node.operands[0];
  return shared_.users_[operand].size() == 1 && shared_.RootOf(operand) == operand &&
         !shared_.PhaseOf(operand).is_leaf && !shared_.IsState(operand) &&
         shared_.PhaseOf(operand).stage == stage_ &&
         !TakesSubBatch(graph_, shared_.ProducerOf(operand)) &&
         shared_.ProducerOf(operand).op->role() != graph::OpRole::kJoinSubBatches;
}

absl::Status DeviceLowering::AddRedistribution(const ScheduledNode& scheduled, int phase) {
  const NodeId id = scheduled.node;
  const Node& node = graph_.node(id);
  const ValueId operand = node.operands[0];
  const ValueId result = node.results[0];
  const std::string& name = graph_.value(result).name;
  const Communication& communication = *shared_.communications_.at(id);
  const uint32_t target = shared_.collectives_.at(id);
  const CollectiveSpec& spec = shared_.SpecOn(target, mesh_device_);
  const auto tensor_of = shared_.tensor_of_.find(id);
  const size_t tensor = tensor_of == shared_.tensor_of_.end() ? 0 : tensor_of->second;
  const uint32_t group = shared_.groups_[target].group_of[mesh_device_];
  ASSIGN_OR_RETURN(TilePlan in, Tile(operand));
  ASSIGN_OR_RETURN(TilePlan out, Tile(result));
  const bool per_microbatch = program_.phase(phase).plan.per_microbatch;
  ASSIGN_OR_RETURN(int source, BufferForReading(operand, phase));

  const bool in_place = IsReducedInPlace(id) &&
                        program_.buffer(source).per_microbatch == per_microbatch &&
                        MayStayIn(source, result);
  const int rank = static_cast<int>(
      std::find(spec.devices.begin(), spec.devices.end(), mesh_device_) - spec.devices.begin());
  auto flat = [&](const TilePlan& like, int64_t elements) {
    TilePlan tile;
    tile.dtype = like.dtype;
    tile.shape = {elements};
    tile.global = {elements};
    tile.offset = {0};
    tile.microbatch_stride = {0};
    return tile;
  };
  auto part_attributes = [](int dim, const std::vector<int64_t>& sizes) {
    return graph::Attributes{{"axis", dim}, {"sizes", graph::AttrValue::Ints(sizes)}};
  };
  auto new_flat = [&](const TilePlan& tile) {
    Buffer buffer;
    buffer.bytes = tile.num_bytes();
    buffer.per_microbatch = per_microbatch;
    return program_.AddBuffer(buffer);
  };
  const Communication::HaloCopies* halo =
      communication.halo_dim.has_value() ? &communication.halo[mesh_device_] : nullptr;
  int input = source;
  if (communication.pack_dim || halo != nullptr) {
    const TilePlan parts = flat(in, InputCount(spec, rank, tensor));
    KernelPlan pack = {"pack", {}, {in}, {parts}};
    if (halo != nullptr) {
      pack.attributes = part_attributes(*communication.halo_dim, halo->sizes);
      pack.attributes.Set("starts", graph::AttrValue::Ints(halo->starts));
    } else {
      pack.attributes = part_attributes(*communication.pack_dim, communication.pack_sizes[group]);
    }
    input = new_flat(parts);
    AddActor(phase, ActorKind::kKernel, absl::StrCat(name, ".pack"), pack,
             {shared_.ShardingIndex(operand), kNone}, kNone, {source}, {input});
  }
  int output = in_place ? source : -1;
  if (const ValueId state = StateWrittenBy(result); state != kNoValue) {
    output = buffer_.at(state);
  }
  if (output < 0) {
    ASSIGN_OR_RETURN(output, NewBuffer(result, per_microbatch));
  }
  buffer_[result] = output;
  int after = -1;
  if (scheduled.is_gated) {
    const std::vector<DraftActor>& actors = program_.phase(phase).actors;
    const auto last = std::find_if(actors.rbegin(), actors.rend(),
                                   [](const DraftActor& actor) { return !actor.is_async(); });
    if (last != actors.rend()) after = last->id;
  }
  if (!communication.unpack_dim && halo == nullptr) {
    AddCollective(scheduled, phase, input, output, after);
    return absl::OkStatus();
  }
  const TilePlan parts = flat(out, OutputCount(spec, rank, tensor));
  const int gathered = new_flat(parts);
  AddCollective(scheduled, phase, input, gathered, after);
  Unpack& unpack = unpacks_[id];
  unpack.phase = phase;
  unpack.parts = gathered;
  unpack.output = output;
  if (halo != nullptr) {
    unpack.tile = source;
    unpack.tile_sharding = shared_.ShardingIndex(operand);
    unpack.kernel = {
        "join_halo", part_attributes(*communication.halo_dim, halo->received), {in, parts}, {out}};
  } else {
    unpack.kernel = {"unpack",
                     part_attributes(*communication.unpack_dim, communication.unpack_sizes[group]),
                     {parts},
                     {out}};
  }
  if (scheduled.part == ScheduledNode::Part::kAll) FinishGather(id);
  return absl::OkStatus();
}

// What a gather that has started leaves to do.
void DeviceLowering::FinishGather(NodeId id) {
  const auto it = unpacks_.find(id);
  if (it == unpacks_.end()) return;
  const std::string& name = graph_.value(graph_.node(id).results[0]).name;
  Unpack& unpack = it->second;
  const uint32_t sharding = shared_.ShardingIndex(graph_.node(id).results[0]);
  if (unpack.tile >= 0) {
    AddActor(unpack.phase, ActorKind::kKernel, absl::StrCat(name, ".join"),
             std::move(unpack.kernel), {unpack.tile_sharding, kNone, sharding}, kNone,
             {unpack.tile, unpack.parts}, {unpack.output});
    return;
  }
  AddActor(unpack.phase, ActorKind::kKernel, absl::StrCat(name, ".unpack"),
           std::move(unpack.kernel), {kNone, sharding}, kNone, {unpack.parts}, {unpack.output});
}

}  // namespace penstock::planner::internal
