#include "actors/session/local_kept_states.h"

#include "actors/engine/tile_copy.h"
#include "actors/session/state_tiles.h"

namespace penstock::actors {

absl::Status LocalKeptStates::ReadInto(uint32_t state, Tensor* value) const {
  const planner::StatePlan& plan = states()[state];
  uint32_t number = 0;
  for (const StateTile& placements : StateTiles(plan, 0, UINT32_MAX)) {
    const std::byte* bytes = tiles_.Find(state, number++)->bytes.get();
    TileCopy(plan.placements[placements[0]].tile).ToGlobal(bytes, value->data(), 0);
  }
  return absl::OkStatus();
}

}  // namespace penstock::actors
