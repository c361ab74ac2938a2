#include "actors/session/state_tiles.h"

#include <cstddef>
#include <map>
#include <utility>

namespace penstock::actors {

std::vector<StateTile> StateTiles(const planner::StatePlan& state, uint32_t first_device,
                                  uint32_t num_devices) {
  std::vector<StateTile> tiles;
  std::map<std::pair<Shape, Shape>, size_t> tile_at;  // by offset and shape
  for (uint32_t i = 0; i < state.placements.size(); ++i) {
    const planner::StatePlacement& placement = state.placements[i];
    if (placement.device - first_device >= num_devices) continue;
    const auto [it, is_new] =
        tile_at.try_emplace({placement.tile.offset, placement.tile.shape}, tiles.size());
    if (is_new) tiles.emplace_back();
    tiles[it->second].push_back(i);
  }
  return tiles;
}

}  // namespace penstock::actors
