#include <algorithm>
#include <cstdint>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/cost/communication_cost.h"
#include "planner/cost/kernel_cost.h"
#include "planner/lower/device_lowering_internal.h"
#include "planner/plan/coordinates.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner::internal {

absl::StatusOr<TilePlan> DeviceLowering::Tile(ValueId value) const {
  const graph::Value& v = graph_.value(value);
  return TileOf(mesh_, ClosedSharding(mesh_, v), v.type, mesh_device_);
}

PhaseKey DeviceLowering::KeyHere(PhaseKey key) const {
  if (key.lane() == Lane::kCompute) key.chunk += direction_;
  return key;
}

int DeviceLowering::PhaseIndex(const PhaseKey& key) {
  const auto it = draft_.phase_index.find(KeyHere(key));
  if (it != draft_.phase_index.end()) return it->second;
  return -1;
}

int DeviceLowering::FloatingPhase(std::string name, bool per_microbatch) {
  PhasePlan plan;
  plan.name = std::move(name);
  plan.kind = PhaseKind::kTransfer;
  plan.lane = Lane::kFloating;
  plan.per_microbatch = per_microbatch;
  return program_.AddPhase(std::move(plan));
}

absl::StatusOr<int> DeviceLowering::NewBuffer(ValueId value, bool per_microbatch) {
  const auto part = part_.find(value);
  if (part != part_.end()) return part->second;
  ASSIGN_OR_RETURN(TilePlan tile, Tile(value));
  Buffer buffer;
  buffer.bytes = tile.num_bytes();
  buffer.per_microbatch = per_microbatch;
  buffer.on_host = shared_.IsOnHost(value);
  return program_.AddBuffer(buffer);
}

void DeviceLowering::AddActor(int phase, ActorKind kind, std::string name, KernelPlan spec,
                              std::vector<uint32_t> shardings, uint32_t target,
                              std::vector<int> inputs, std::vector<int> outputs, int after) {
  DraftActor actor;
  actor.after = after;
  actor.plan.name = std::move(name);
  actor.plan.kind = kind;
  actor.plan.target = target;
  actor.inputs = std::move(inputs);
  actor.outputs = std::move(outputs);
  const LowerOptions& options = shared_.options_;
  if (!spec.op.empty()) {
    if (kind == ActorKind::kKernel) actor.scratch_bytes = kernels_.workspace_bytes(spec);
    const graph::OpCost cost = KernelCost(shared_.ops_, spec);
    actor.predicted_s =
        std::max(cost.bytes / options.bytes_per_s, cost.flops / options.flops_per_s);
    actor.plan.kernel = shared_.KernelIndex(spec, shardings);
  } else if (kind == ActorKind::kCollective) {
    actor.predicted_s = CollectiveSeconds(shared_.SpecOn(target, mesh_device_), options.link);
  } else {
    const int buffer = actor.inputs.empty() ? actor.outputs[0] : actor.inputs[0];
    actor.predicted_s = TransferSeconds(program_.buffer(buffer).bytes, options.link);
  }
  if (!shared_.is_folded()) {
    actor.plan.target = shared_.SpellOutTarget(kind, target, mesh_device_);
  }
  program_.AddActor(phase, std::move(actor));
}

absl::Status DeviceLowering::AddNode(const ScheduledNode& scheduled) {
  const NodeId id = scheduled.node;
  const Node& node = graph_.node(id);
  const NodePhase& node_phase = shared_.phases_[id];
  const int phase = PhaseIndex(node_phase.key);
  const ValueId result = node.results[0];
  if (shared_.RootOf(result) != result) {
    value_phase_[result] = phase;
    return AddSends(result);
  }
  if (shared_.bucket_of_.contains(id)) {
    const auto scattered = scattered_part_.find(result);
    buffer_[result] =
        scattered != scattered_part_.end() ? scattered->second : part_.at(node.operands[0]);
  } else if (!fused_.contains(id)) {
    if (shared_.receptions_.contains(id)) {
      RETURN_IF_ERROR(AddReception(id, phase));
    } else if (node.op->role() == graph::OpRole::kJoinSubBatches) {
      RETURN_IF_ERROR(JoinSubBatches(id, phase));
    } else if (shared_.communications_.contains(id)) {
      RETURN_IF_ERROR(AddRedistribution(scheduled, phase));
      value_phase_[result] = phase;
    } else {
      RETURN_IF_ERROR(AddKernel(id, phase));
    }
  }
  for (ValueId made : node.results) RETURN_IF_ERROR(AddSends(made));
  return absl::OkStatus();
}

absl::Status DeviceLowering::AddFetch(size_t index) {
  const ValueId value = graph_.returns()[index].value;
  const NodePhase& source = shared_.PhaseOf(value);
  if (source.stage != stage_) return absl::OkStatus();
  // Of the devices that hold the same tile the first one writes it.
  const Sharding sharding = ClosedSharding(mesh_, graph_.value(value));
  if (!IsFirstWithTile(mesh_, sharding, mesh_device_)) return absl::OkStatus();
  const int phase = PhaseIndex(shared_.FetchKey(value));
  ASSIGN_OR_RETURN(TilePlan tile, Tile(value));
  ASSIGN_OR_RETURN(int buffer, BufferForReading(value, phase));
  KernelPlan spec;
  spec.op = "fetch";
  spec.inputs = {tile};
  AddActor(phase, ActorKind::kFetch, absl::StrCat("return ", graph_.value(value).name), spec,
           {shared_.ShardingIndex(value)}, static_cast<uint32_t>(index), {buffer}, {});
  const uint32_t num_devices =
      shared_.is_folded() ? shared_.class_sizes_[shared_.folded_.class_of[mesh_device_]] : 1;
  shared_.plan_.fetches[index].num_actors +=
      num_devices * (shared_.IsMadeOften(value) ? shared_.plan_.num_microbatches : 1);
  return absl::OkStatus();
}

void DeviceLowering::FindPhases() {
  // The phases of the stage, the same on all its devices.
  std::set<PhaseKey> keys = shared_.keys_[stage_];
  // Copies into states come after everything that reads the old value at its place in the order.
  bool has_copies = false;
  assign_key_ = kFirstUpdateKey;
  for (const Assignment& assignment : shared_.assignments_) {
    if (shared_.phases_[assignment.assign].stage != stage_) continue;
    has_copies = has_copies || !WritesInPlace(assignment);
    assign_key_ = std::max(assign_key_, shared_.phases_[assignment.assign].key);
  }
  for (const PhaseKey& key : keys) {
    if (key.lane() != Lane::kPerStep) continue;
    assign_key_ =
        std::max(assign_key_, key.per_microbatch ? PhaseKey{key.level + 1, false, 0} : key);
  }
  if (has_copies) keys.insert(assign_key_);
  for (const PhaseKey& key : keys) draft_.keys.insert(KeyHere(key));
}

void DeviceDraft::AddPhases() {
  for (const PhaseKey& key : keys) {
    PhasePlan plan;
    plan.kind = key.kind();
    plan.lane = key.lane();
    plan.per_microbatch = key.per_microbatch;
    plan.name = std::string(Name(plan.kind));
    if (key.level > 1 || (key.level == 1 && key.per_microbatch)) {
      absl::StrAppend(&plan.name, " level ", key.level);
    }
    if (!key.per_microbatch && key.order > 0) absl::StrAppend(&plan.name, " ", key.order);
    if (plan.lane == Lane::kCompute) plan.chunk = static_cast<uint32_t>(key.chunk);
    if (key.chunk > 0) absl::StrAppend(&plan.name, " of chunk ", key.chunk);
    phase_index[key] = program.AddPhase(std::move(plan));
  }
}

absl::Status DeviceLowering::Begin() {
  RETURN_IF_ERROR(AddStates());
  RETURN_IF_ERROR(AddBuckets());
  RETURN_IF_ERROR(AddSubBatches());
  for (const auto& [value, stages] : shared_.remote_readers_) {
    if (stages.contains(stage_)) RETURN_IF_ERROR(AddReceive(value));
  }
  for (const auto& [value, index] : shared_.state_index_) {
    if (shared_.PhaseOf(value).stage == stage_) RETURN_IF_ERROR(AddSends(value));
  }
  // Sums over micro-batches that the kernel which makes the terms can keep: of all its results.
  const auto is_summed = [this](ValueId term) {
    if (shared_.users_[term].size() != 1 || shared_.RootOf(term) != term) return false;
    const NodeId user = shared_.users_[term][0];
    const Node& node = graph_.node(user);
    const NodePhase& phase = shared_.phases_[user];
    return phase.is_live && phase.stage == stage_ && phase.key == shared_.PhaseOf(term).key &&
           node.op->role() == graph::OpRole::kAccumulate &&
           node.attributes.GetString("reduction", "sum") == "sum";
  };
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& node = graph_.node(id);
    const NodePhase& phase = shared_.phases_[id];
    if (!phase.is_live || phase.stage != stage_ || node.op->role() != graph::OpRole::kAccumulate) {
      continue;
    }
    const ValueId term = node.operands[0];
    const Node& producer = shared_.ProducerOf(term);
    const NodePhase& producing = shared_.PhaseOf(term);
    if (producing.stage != stage_ || producing.is_leaf ||
        !std::all_of(producer.results.begin(), producer.results.end(), is_summed) ||
        !kernels_.supports_accumulate(producer.op->name())) {
      continue;
    }
    fused_.insert(id);
    accumulates_into_[term] = node.results[0];
  }
  return absl::OkStatus();
}

absl::Status DeviceLowering::Add(const ScheduledNode& scheduled) {
  const NodePhase& phase = shared_.phases_[scheduled.node];
  const Node& node = graph_.node(scheduled.node);
  if (!phase.is_live || phase.is_leaf || phase.stage != stage_ || node.op->has_declared_type() ||
      node.op->role() == graph::OpRole::kAssign ||
      shared_.rounded_in_bucket_.contains(node.results[0])) {
    return absl::OkStatus();
  }
  if (scheduled.part != ScheduledNode::Part::kFinish) return AddNode(scheduled);
  FinishGather(scheduled.node);
  return absl::OkStatus();
}

absl::Status DeviceLowering::End() {
  for (size_t i = 0; i < graph_.returns().size(); ++i) RETURN_IF_ERROR(AddFetch(i));
  return AddAssignments();
}

void DeviceLowering::KeepStateRegisters(const std::vector<uint32_t>& registers) const {
  for (const auto& [value, index] : shared_.state_index_) {
    if (shared_.PhaseOf(value).stage != stage_) continue;
    std::vector<uint32_t>& of_state = shared_.folded_.states[index].registers;
    if (shared_.is_folded()) {
      of_state.push_back(registers[index]);
    } else {
      of_state.resize(shared_.NumDevices(stage_), kNone);
      of_state[mesh_device_] = registers[index];
    }
  }
}

}  // namespace penstock::planner::internal
