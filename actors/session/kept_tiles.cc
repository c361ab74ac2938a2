#include "actors/session/kept_tiles.h"

#include <algorithm>
#include <new>
#include <numeric>
#include <utility>

#include "actors/session/state_tiles.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

uint64_t KeptTiles::BytesOf(const planner::Plan& plan, const std::vector<uint32_t>& states,
                            uint32_t first_device, uint32_t num_devices) {
  uint64_t num_bytes = 0;
  for (const uint32_t index : states) {
    const planner::StatePlan& state = plan.states[index];
    for (const StateTile& tile : StateTiles(state, first_device, num_devices)) {
      num_bytes += state.placements[tile[0]].tile.num_bytes();
    }
  }
  return num_bytes;
}

uint64_t KeptTiles::BytesOfAll(const planner::Plan& plan, uint32_t first_device,
                               uint32_t num_devices) {
  std::vector<uint32_t> all(plan.states.size());
  std::iota(all.begin(), all.end(), 0);
  return BytesOf(plan, all, first_device, num_devices);
}

absl::StatusOr<KeptTiles> KeptTiles::Copy(const planner::Plan& plan,
                                          const std::vector<uint32_t>& states,
                                          uint32_t first_device, uint32_t num_devices,
                                          const ReadTile& read) {
  KeptTiles kept;
  for (const uint32_t index : states) {
    const planner::StatePlan& state = plan.states[index];
    kept.index_[state.name] = kept.states_.size();
    State& to = kept.states_.emplace_back();
    to.name = state.name;
    to.type = state.type;
    to.is_parameter = state.is_parameter;
    for (const StateTile& placements : StateTiles(state, first_device, num_devices)) {
      const planner::StatePlacement& placement = state.placements[placements[0]];
      Tile& tile = to.tiles.emplace_back();
      tile.desc = placement.tile;
      const uint64_t num_bytes = tile.desc.num_bytes();
      tile.bytes.reset(new (std::nothrow) std::byte[num_bytes]);
      if (tile.bytes == nullptr) {
        return absl::ResourceExhaustedError(
            StrCat("no memory to keep the state '", state.name, "': ", FormatBytes(num_bytes)));
      }
      RETURN_IF_ERROR(read(placement, tile.bytes.get()));
      kept.num_bytes_ += num_bytes;
    }
  }
  return kept;
}

absl::StatusOr<std::vector<uint32_t>> KeptTiles::Fill(const planner::Plan& plan,
                                                      uint32_t first_device, uint32_t num_devices,
                                                      const WriteTile& write) const {
  std::vector<uint32_t> missing;
  for (uint32_t index = 0; index < plan.states.size(); ++index) {
    const planner::StatePlan& state = plan.states[index];
    const auto found = index_.find(state.name);
    const State* from = found == index_.end() ? nullptr : &states_[found->second];
    if (from != nullptr && from->type != state.type) from = nullptr;
    bool is_whole = true;
    for (const StateTile& placements : StateTiles(state, first_device, num_devices)) {
      const graph::TileDesc& tile = state.placements[placements[0]].tile;
      const Tile* kept = nullptr;
      if (from != nullptr) {
        const auto it =
            std::find_if(from->tiles.begin(), from->tiles.end(), [&tile](const Tile& candidate) {
              return candidate.desc.offset == tile.offset && candidate.desc.shape == tile.shape;
            });
        if (it != from->tiles.end()) kept = &*it;
      }
      if (kept == nullptr) {
        is_whole = false;
        break;
      }
      for (const uint32_t placement : placements) {
        RETURN_IF_ERROR(write(state.placements[placement], kept->bytes.get()));
      }
    }
    if (!is_whole) missing.push_back(index);
  }
  return missing;
}

const KeptTiles::Tile* KeptTiles::Find(uint32_t state, uint32_t tile) const {
  if (state >= states_.size() || tile >= states_[state].tiles.size()) return nullptr;
  return &states_[state].tiles[tile];
}

}  // namespace penstock::actors
