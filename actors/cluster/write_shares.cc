#include "actors/cluster/write_shares.h"

#include <algorithm>
#include <map>
#include <utility>

#include "actors/session/state_tiles.h"

namespace penstock::actors {
namespace {

struct Holder {
  uint32_t rank = 0;
  uint32_t tile = 0;  // its number in that process
};

}  // namespace

std::vector<std::vector<KeptTileId>> WriteShares(const std::vector<planner::StatePlan>& states,
                                                 const std::vector<DeviceRange>& devices) {
  std::vector<std::vector<KeptTileId>> shares(devices.size());
  std::vector<uint64_t> num_bytes(devices.size());
  for (uint32_t state = 0; state < states.size(); ++state) {
    const std::vector<planner::StatePlacement>& placements = states[state].placements;
    std::map<std::pair<Shape, Shape>, std::vector<Holder>> tiles;  // by offset and shape
    std::vector<size_t> num_tiles(devices.size());                 // of the process
    for (uint32_t rank = 0; rank < devices.size(); ++rank) {
      for (const StateTile& tile :
           StateTiles(states[state], devices[rank].first, devices[rank].count)) {
        const graph::TileDesc& desc = placements[tile[0]].tile;
        tiles[{desc.offset, desc.shape}].push_back(
            {rank, static_cast<uint32_t>(num_tiles[rank]++)});
      }
    }
    for (const auto& [place, holders] : tiles) {
      const Holder* writer = nullptr;
      for (const Holder& holder : holders) {
        const bool has_all = num_tiles[holder.rank] == tiles.size();
        if (writer != nullptr) {
          const bool writer_has_all = num_tiles[writer->rank] == tiles.size();
          if (writer_has_all && !has_all) continue;
          if (writer_has_all == has_all && num_bytes[holder.rank] >= num_bytes[writer->rank]) {
            continue;
          }
        }
        writer = &holder;
      }
      if (num_tiles[writer->rank] == tiles.size()) {  // it writes all of the state
        for (uint32_t tile = 0; tile < tiles.size(); ++tile) {
          shares[writer->rank].push_back({state, tile});
        }
        num_bytes[writer->rank] += states[state].type.num_bytes();
        break;
      }
      shares[writer->rank].push_back({state, writer->tile});
      num_bytes[writer->rank] +=
          static_cast<uint64_t>(NumElements(place.second)) * ByteSize(states[state].type.dtype);
    }
  }
  for (std::vector<KeptTileId>& share : shares) std::sort(share.begin(), share.end());
  return shares;
}

}  // namespace penstock::actors
