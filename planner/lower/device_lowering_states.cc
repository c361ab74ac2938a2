#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/lower/device_lowering_internal.h"
#include "planner/plan/coordinates.h"

namespace penstock::planner::internal {

absl::Status DeviceLowering::AddStates() {
  for (const auto& [value, index] : shared_.state_index_) {
    if (shared_.PhaseOf(value).stage != stage_) continue;
    ASSIGN_OR_RETURN(int buffer, NewBuffer(value, false));
    program_.buffer(buffer).state = index;
    buffer_[value] = buffer;
  }
  return absl::OkStatus();
}

// Whether nothing in the per-step lane reads the state after the node `writer` of this stage has
// written it.
bool DeviceLowering::IsReadBefore(ValueId state, NodeId writer) const {
  const NodePhase& phase = shared_.phases_[writer];
  for (ValueId value : shared_.values_of_root_[state]) {
    for (NodeId user : shared_.users_[value]) {
      const NodePhase& reading = shared_.phases_[user];
      if (!reading.is_live || user == writer) continue;
      if (graph_.node(user).op->role() == graph::OpRole::kAssign) {
        // Copied to another state, after everything else; or this very assign.
        if (shared_.RootOf(graph_.node(user).operands[1]) == state) return false;
        continue;
      }
      if (reading.stage != stage_) continue;  // a send: it holds the writer's phase back
      if (reading.key.lane() == Lane::kPerStep &&
          (reading.key > phase.key || (reading.key == phase.key && user > writer))) {
        return false;
      }
    }
  }
  return true;
}

// Whether one node alone uses the state in a step, once, and its new value is for the next step
// alone: a cache that the node adds to.
bool DeviceLowering::IsUsedOnce(const Assignment& assignment) const {
  const NodeId producer = graph_.value(assignment.value).producer;
  for (const ValueId value : shared_.values_of_root_[assignment.state]) {
    for (const NodeId user : shared_.users_[value]) {
      if (user != producer && user != assignment.assign) return false;
    }
  }
  const auto is_returned = [&](const graph::Return& ret) {
    return ret.value == assignment.state || ret.value == assignment.value;
  };
  return shared_.num_microbatches() == 1 && shared_.users_[assignment.value].size() == 1 &&
         std::none_of(graph_.returns().begin(), graph_.returns().end(), is_returned);
}

// Whether the node that makes the new value may write it where the state is: its kernel can, or it
// gathers the parts, or copies it to the host; it runs after the step, or is all that uses the
// state; and nothing reads the old state later.
bool DeviceLowering::WritesInPlace(const Assignment& assignment) const {
  const NodeId producer_id = graph_.value(assignment.value).producer;
  const Node& producer = graph_.node(producer_id);
  const NodePhase& phase = shared_.phases_[producer_id];
  if (phase.stage != stage_) return false;
  const bool is_after_step = !phase.key.per_microbatch && phase.key.level > 0;
  if (!is_after_step && !IsUsedOnce(assignment)) return false;
  if (CollectiveOf(producer.op->role()) != CollectiveKind::kAllGather &&
      producer.op->role() != graph::OpRole::kToHost) {
    const std::vector<int> updated = producer.op->updated_operands();
    const size_t result =
        std::find(producer.results.begin(), producer.results.end(), assignment.value) -
        producer.results.begin();
    if (result >= updated.size() || producer.operands[updated[result]] != assignment.state) {
      return false;
    }
  }
  // Two assigns of one new value cannot both be in place.
  return IsReadBefore(assignment.state, producer_id) &&
         shared_.assignments_of_.at(assignment.value).size() == 1;
}

// Whether the node copies to the host what can only be written there when everything has read the
// old value: then the assigns copy it.
bool DeviceLowering::IsCopiedByAssign(const Node& node) const {
  if (node.op->role() != graph::OpRole::kToHost) return false;
  const auto it = shared_.assignments_of_.find(node.results[0]);
  return it != shared_.assignments_of_.end() && !WritesInPlace(it->second[0]) &&
         it->second.size() == shared_.users_[node.results[0]].size();
}

// The state where the value is written when it is made, if there is one.
ValueId DeviceLowering::StateWrittenBy(ValueId value) const {
  const auto it = shared_.assignments_of_.find(value);
  if (it == shared_.assignments_of_.end() || !WritesInPlace(it->second[0])) return kNoValue;
  return it->second[0].state;
}

// Lets an update work on its part of a parameter where that lies, if its bytes are contiguous: the
// node slices the parameter for one update, whose result is gathered into the parameter again.
absl::StatusOr<bool> DeviceLowering::AddPartOfState(NodeId id, int phase) {
  const Node& slice = graph_.node(id);
  const ValueId state = slice.operands[0];
  const ValueId part = slice.results[0];
  if (!shared_.IsState(state) || shared_.users_[part].size() != 1) return false;
  if (std::any_of(graph_.returns().begin(), graph_.returns().end(),
                  [part](const graph::Return& ret) { return ret.value == part; })) {
    return false;
  }
  const NodeId update = shared_.users_[part][0];
  const std::vector<int> updated = graph_.node(update).op->updated_operands();
  if (updated.empty() || graph_.node(update).operands[updated[0]] != part ||
      shared_.phases_[update].key != shared_.phases_[id].key || !IsReadBefore(state, update)) {
    return false;
  }
  const std::vector<NodeId>& users = shared_.users_[graph_.node(update).results[0]];
  const bool is_put_back = users.size() == 1 && !graph_.node(users[0]).results.empty() &&
                           StateWrittenBy(graph_.node(users[0]).results[0]) == state;
  if (!is_put_back) return false;
  ASSIGN_OR_RETURN(const TilePlan whole_tile, Tile(state));
  ASSIGN_OR_RETURN(const TilePlan tile, Tile(part));
  const std::optional<uint64_t> offset = ContiguousOffset(whole_tile, tile);
  if (!offset.has_value()) return false;
  buffer_[part] = program_.AddView(buffer_.at(state), shared_.ViewIndex(state, part), *offset,
                                   tile.num_bytes());
  value_phase_[part] = phase;
  return true;
}

absl::Status DeviceLowering::AddAssignments() {
  struct Copy {
    ValueId state;
    int source;
    int phase;
  };
  std::vector<Copy> copies;
  for (const Assignment& assignment : shared_.assignments_) {
    if (shared_.phases_[assignment.assign].stage != stage_ || WritesInPlace(assignment)) continue;
    const int phase = PhaseIndex(assign_key_);
    const Node& producer = shared_.ProducerOf(assignment.value);
    const bool is_on_host = producer.op->role() == graph::OpRole::kToHost;
    const ValueId value = is_on_host ? producer.operands[0] : assignment.value;
    ASSIGN_OR_RETURN(int source, BufferForReading(value, phase));
    ASSIGN_OR_RETURN(TilePlan tile, Tile(assignment.state));
    const KernelPlan copy = {"copy", {}, {tile}, {tile}};
    const std::vector<uint32_t> shardings(2, shared_.ShardingIndex(assignment.state));
    const std::string& name = graph_.value(assignment.state).name;
    if (program_.buffer(source).state >= 0) {
      // The new value is another state, which may be written too: take it before any is.
      ASSIGN_OR_RETURN(const int taken, NewBuffer(assignment.state, false));
      program_.buffer(taken).on_host = false;
      AddActor(phase, ActorKind::kKernel, absl::StrCat(name, ".next"), copy, shardings, kNone,
               {source}, {taken});
      source = taken;
    }
    copies.push_back({assignment.state, source, phase});
  }
  for (const Copy& copy : copies) {
    ASSIGN_OR_RETURN(TilePlan tile, Tile(copy.state));
    const bool is_on_host = shared_.IsOnHost(copy.state);
    AddActor(copy.phase, is_on_host ? ActorKind::kCopy : ActorKind::kKernel,
             absl::StrCat("assign ", graph_.value(copy.state).name),
             {is_on_host ? "to_host" : "copy", {}, {tile}, {tile}},
             std::vector<uint32_t>(2, shared_.ShardingIndex(copy.state)), kNone, {copy.source},
             {buffer_.at(copy.state)});
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner::internal
