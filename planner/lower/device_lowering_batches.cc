#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/lower/device_lowering_internal.h"
#include "planner/lower/sub_batches.h"
#include "planner/plan/coordinates.h"

namespace penstock::planner::internal {

// What collectives read or write has a buffer of its own: plans do not say how many bytes of a
// register a collective touches.
bool DeviceLowering::LieSideBySide(const Node& join) const {
  const auto is_collective = [&](NodeId id) {
    return graph::IsCollective(graph_.node(id).op->role());
  };
  return std::none_of(join.operands.begin(), join.operands.end(), [&](ValueId part) {
    const std::vector<NodeId>& users = shared_.users_[part];
    return is_collective(graph_.value(part).producer) ||
           std::any_of(users.begin(), users.end(), is_collective);
  });
}

// Buffers for whole values that are made in sub-batches: each of these is made in its place, which
// is the same on all devices of a class.
absl::Status DeviceLowering::AddSubBatches() {
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& join = graph_.node(id);
    const NodePhase& phase = shared_.phases_[id];
    if (join.op->role() != graph::OpRole::kJoinSubBatches) continue;
    if (!phase.is_live || phase.stage != stage_ || !LieSideBySide(join)) continue;
    const ValueId whole = join.results[0];
    ASSIGN_OR_RETURN(const TilePlan whole_tile, Tile(whole));
    ASSIGN_OR_RETURN(const int buffer, NewBuffer(whole, phase.key.per_microbatch));
    buffer_[whole] = buffer;
    for (const ValueId part : join.operands) {
      ASSIGN_OR_RETURN(const TilePlan tile, Tile(part));
      const std::optional<uint64_t> offset = ContiguousOffset(whole_tile, tile);
      if (!offset.has_value()) {
        return absl::InternalError(absl::StrCat("the sub-batches of %", graph_.value(whole).name,
                                                " do not lie one behind the other"));
      }
      part_[part] = program_.AddView(buffer, kNone, *offset, tile.num_bytes());
    }
  }
  return absl::OkStatus();
}

// The whole value, where its sub-batches do not lie in it.
absl::Status DeviceLowering::JoinSubBatches(NodeId id, int phase) {
  const Node& join = graph_.node(id);
  const ValueId whole = join.results[0];
  value_phase_[whole] = phase;
  if (buffer_.contains(whole)) return absl::OkStatus();
  KernelPlan spec;
  spec.op = "join_tiles";
  std::vector<int> inputs;
  std::vector<uint32_t> shardings;
  for (const ValueId part : join.operands) {
    ASSIGN_OR_RETURN(TilePlan tile, Tile(part));
    ASSIGN_OR_RETURN(const int input, BufferForReading(part, phase));
    spec.inputs.push_back(std::move(tile));
    inputs.push_back(input);
    shardings.push_back(shared_.ShardingIndex(part));
  }
  ASSIGN_OR_RETURN(TilePlan whole_tile, Tile(whole));
  ASSIGN_OR_RETURN(const int buffer, NewBuffer(whole, shared_.phases_[id].key.per_microbatch));
  spec.outputs = {std::move(whole_tile)};
  shardings.push_back(shared_.ShardingIndex(whole));
  buffer_[whole] = buffer;
  AddActor(phase, ActorKind::kKernel, graph_.value(whole).name, std::move(spec),
           std::move(shardings), kNone, std::move(inputs), {buffer});
  return absl::OkStatus();
}

// Nothing is copied: the slice is a name for bytes of the whole.
absl::StatusOr<bool> DeviceLowering::AddPartOfBatch(NodeId id) {
  const Node& slice = graph_.node(id);
  const ValueId part = slice.results[0];
  if (!TakesSubBatch(graph_, slice)) return false;
  const ValueId whole = slice.operands[0];
  ASSIGN_OR_RETURN(const TilePlan whole_tile, Tile(whole));
  ASSIGN_OR_RETURN(const TilePlan tile, Tile(part));
  const std::optional<uint64_t> offset = ContiguousOffset(whole_tile, tile);
  if (!offset.has_value()) return false;
  ASSIGN_OR_RETURN(const int buffer, BufferForReading(whole, PhaseIndex(shared_.phases_[id].key)));
  buffer_[part] = program_.AddView(buffer, kNone, *offset, tile.num_bytes());
  return true;
}

}  // namespace penstock::planner::internal
