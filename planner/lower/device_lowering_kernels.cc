#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/lower/device_lowering_internal.h"
#include "planner/lower/rate_copies.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner::internal {

absl::Status DeviceLowering::AddLeaf(ValueId value, int phase) {
  const Node& node = shared_.ProducerOf(value);
  ASSIGN_OR_RETURN(TilePlan tile, Tile(value));
  ASSIGN_OR_RETURN(int buffer, NewBuffer(value, program_.phase(phase).plan.per_microbatch));
  KernelPlan spec;
  spec.outputs = {tile};
  if (node.op->role() == graph::OpRole::kInput) {
    spec.op = "feed";
    const std::string name = node.attributes.GetString("feed", graph_.value(value).name);
    const std::vector<FeedPlan>& feeds = shared_.plan_.feeds;
    const auto found = std::find_if(feeds.begin(), feeds.end(),
                                    [&](const FeedPlan& other) { return other.name == name; });
    if (found == feeds.end() || found->type != graph_.value(value).type) {
      return absl::InvalidArgumentError(absl::StrCat("%", graph_.value(value).name,
                                                     ": there is no input '", name, "' of type ",
                                                     penstock::ToString(graph_.value(value).type)));
    }
    const auto feed = static_cast<uint32_t>(found - feeds.begin());
    AddActor(phase, ActorKind::kFeed, graph_.value(value).name, spec,
             {shared_.ShardingIndex(value)}, feed, {}, {buffer});
  } else {
    spec.op = std::string(node.op->name());
    spec.attributes = node.attributes;
    AddActor(phase, ActorKind::kKernel, graph_.value(value).name, spec,
             {shared_.ShardingIndex(value)}, kNone, {}, {buffer});
  }
  leaf_buffer_[{value, phase}] = buffer;
  return absl::OkStatus();
}

absl::StatusOr<int> DeviceLowering::BufferForReading(ValueId value, int phase) {
  if (shared_.PhaseOf(value).is_leaf) {
    if (!leaf_buffer_.contains({value, phase})) RETURN_IF_ERROR(AddLeaf(value, phase));
    return leaf_buffer_.at({value, phase});
  }
  const auto it = buffer_.find(shared_.RootOf(value));
  if (it == buffer_.end() || shared_.PhaseOf(value).stage != stage_) {
    const auto received = buffer_.find(value);
    if (received != buffer_.end()) return received->second;
    return absl::InternalError(absl::StrCat("%", graph_.value(value).name, " has no buffer"));
  }
  return it->second;
}

// Whether the value may lie in a buffer of values before it. What micro-batches read may not lie
// where micro-batches form it: the next step's would write there while this step's read.
bool DeviceLowering::MayStayIn(int buffer, ValueId result) const {
  return !formed_.contains(buffer) || !shared_.is_read_often_[result];
}

// Whether the kernel may write a result over this operand: nobody else reads it, and it was made in
// the same phase.
bool DeviceLowering::MayOverwrite(const Node& node, int input, const KernelPlan& spec,
                                  size_t result, int phase) const {
  const ValueId operand = node.operands[input];
  if (shared_.users_[operand].size() != 1 || shared_.RootOf(operand) != operand) return false;
  if (std::count(node.operands.begin(), node.operands.end(), operand) != 1) return false;
  if (shared_.PhaseOf(operand).is_leaf || shared_.IsState(operand)) return false;
  if (shared_.PhaseOf(operand).stage != stage_) return false;
  // Its parts may have other readers.
  if (shared_.ProducerOf(operand).op->role() == graph::OpRole::kJoinSubBatches) return false;
  const auto made = value_phase_.find(operand);
  if (made == value_phase_.end() || made->second != phase) return false;
  const bool is_returned =
      std::any_of(graph_.returns().begin(), graph_.returns().end(),
                  [&](const graph::Return& ret) { return ret.value == operand; });
  if (is_returned || FormsWhole(shared_.ProducerOf(operand).op->role())) return false;
  if (spec.inputs[input].num_bytes() != spec.outputs[result].num_bytes()) return false;
  const std::vector<int> updated = node.op->updated_operands();
  if (result < updated.size() && updated[result] == input) return true;
  return result == 0 && kernels_.can_alias(spec, input);
}

absl::Status DeviceLowering::AddKernel(NodeId id, int phase) {
  const Node& node = graph_.node(id);
  if (IsCopiedByAssign(node)) return absl::OkStatus();
  KernelPlan spec;
  spec.op = std::string(node.op->name());
  spec.attributes = node.attributes;
  std::vector<int> inputs;
  for (ValueId operand : node.operands) {
    ASSIGN_OR_RETURN(TilePlan tile, Tile(operand));
    ASSIGN_OR_RETURN(int buffer, BufferForReading(operand, phase));
    spec.inputs.push_back(std::move(tile));
    inputs.push_back(buffer);
  }
  std::vector<int> outputs;
  for (ValueId result : node.results) {
    ASSIGN_OR_RETURN(TilePlan tile, Tile(result));
    spec.outputs.push_back(std::move(tile));
  }
  const graph::OpRole role = node.op->role();
  spec.accumulate = role == graph::OpRole::kAccumulate;

  if (role == graph::OpRole::kLocalSlice) {
    ASSIGN_OR_RETURN(const bool is_part_of_state, AddPartOfState(id, phase));
    if (is_part_of_state) return absl::OkStatus();
    ASSIGN_OR_RETURN(const bool is_part_of_batch, AddPartOfBatch(id));
    if (is_part_of_batch) return absl::OkStatus();
    // Into a sum: all terms but the first are neutral.
    const Sharding from = ClosedSharding(mesh_, graph_.value(node.operands[0]));
    const Sharding to = ClosedSharding(mesh_, graph_.value(node.results[0]));
    for (const graph::PartialSpec& partial : to.partials) {
      if (from.partials == to.partials) break;
      const bool is_idempotent = partial.reduction == graph::Reduction::kMax ||
                                 partial.reduction == graph::Reduction::kMin;
      if (is_idempotent || IsFirstOf(mesh_, from, partial, mesh_device_)) continue;
      const double neutral = partial.reduction == graph::Reduction::kProd ? 1.0 : 0.0;
      spec.op = "constant";
      spec.attributes = {{"value", neutral}};
      spec.inputs.clear();
      inputs.clear();
      break;
    }
  }

  const bool is_copy = IsHostCopy(role);
  const std::vector<int> updated = node.op->updated_operands();
  for (size_t r = 0; r < node.results.size(); ++r) {
    const ValueId result = node.results[r];
    value_phase_[result] = phase;
    // A running sum that this kernel keeps itself.
    const auto whole = accumulates_into_.find(result);
    if (whole != accumulates_into_.end()) {
      // (The whole may lie in a bucket.)
      ASSIGN_OR_RETURN(int buffer, NewBuffer(whole->second, false));
      spec.accumulate = true;
      formed_.insert(buffer);
      outputs.push_back(buffer);
      buffer_[result] = buffer;
      buffer_[whole->second] = buffer;
      continue;
    }
    int buffer = -1;
    if (const ValueId state = StateWrittenBy(result); state != kNoValue) {
      buffer = buffer_.at(state);
    }
    if (buffer < 0 && (r == 0 || r < updated.size()) && !is_copy) {
      for (size_t i = 0; i < node.operands.size() && buffer < 0; ++i) {
        if (inputs.empty() || spec.accumulate || part_.contains(result)) break;
        if (MayOverwrite(node, static_cast<int>(i), spec, r, phase) &&
            MayStayIn(inputs[i], result)) {
          buffer = inputs[i];
        }
      }
    }
    if (buffer < 0) {
      const bool is_whole = FormsWhole(role);
      ASSIGN_OR_RETURN(buffer,
                       NewBuffer(result, shared_.phases_[id].key.per_microbatch && !is_whole));
      if (is_whole) formed_.insert(buffer);
    }
    outputs.push_back(buffer);
    buffer_[result] = buffer;
  }
  std::vector<uint32_t> shardings;
  if (!inputs.empty()) {
    for (ValueId operand : node.operands) shardings.push_back(shared_.ShardingIndex(operand));
  }
  for (ValueId made : node.results) shardings.push_back(shared_.ShardingIndex(made));
  const std::string& name = graph_.value(node.results[0]).name;
  AddActor(phase, is_copy ? ActorKind::kCopy : ActorKind::kKernel, name, std::move(spec),
           std::move(shardings), kNone, std::move(inputs), std::move(outputs));
  return absl::OkStatus();
}

}  // namespace penstock::planner::internal
