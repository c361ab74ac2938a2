#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "planner/lower/device_lowering_internal.h"
#include "planner/lower/sub_batches.h"
#include "planner/plan/coordinates.h"

namespace penstock::planner::internal {

// Buffers for whole values that are made in sub-batches: each of these is made in its place, which
// is the same on all devices of a class.
absl::Status DeviceLowering::AddSubBatches() {
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& join = graph_.node(id);
    const NodePhase& phase = shared_.phases_[id];
    if (join.op->role() != graph::OpRole::kJoinSubBatches) continue;
    if (!phase.is_live || phase.stage != stage_) continue;
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
      // The terms of a sum lie where it is reduced in place.
      const NodeId producer = graph_.value(part).producer;
      if (IsReducedInPlace(producer)) part_[graph_.node(producer).operands[0]] = part_[part];
    }
  }
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
