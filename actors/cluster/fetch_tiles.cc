#include "actors/cluster/fetch_tiles.h"

#include <utility>

namespace penstock::actors {

FetchTiles::FetchTiles(const planner::Plan& plan) {
  std::vector<Tile> tiles;
  for (uint32_t device = 0; device < plan.devices.size(); ++device) {
    for (const planner::PhasePlan& phase : plan.devices[device].phases) {
      for (uint32_t i = 0; i < phase.num_actors; ++i) {
        const planner::ActorPlan& actor = plan.devices[device].actors[phase.first_actor + i];
        if (actor.kind != planner::ActorKind::kFetch) continue;
        const graph::TileDesc& tile = plan.kernels[actor.kernel].inputs[0];
        tiles.push_back({device, actor.target, phase.per_microbatch ? plan.num_microbatches : 1,
                         tile.num_bytes(), TileCopy(tile)});
      }
    }
  }
  tiles_ = std::make_shared<const std::vector<Tile>>(std::move(tiles));
}

ByteSource FetchTiles::From(uint32_t first_device, uint32_t num_devices,
                            const std::shared_ptr<StepBuffers>& buffers) const {
  ByteSource source;
  for (const Tile& tile : *tiles_) {
    if (tile.device - first_device >= num_devices) continue;
    for (uint32_t microbatch = 0; microbatch < tile.num_microbatches; ++microbatch) {
      source.Add(tile.num_bytes, [tiles = tiles_, &tile, microbatch, buffers](
                                     uint64_t offset, size_t size, std::byte* bytes) {
        tile.copy.RangeFromGlobal(buffers->fetches[tile.fetch].data(), microbatch,
                                  static_cast<int64_t>(offset), static_cast<int64_t>(size), bytes);
      });
    }
  }
  return source;
}

ByteTarget FetchTiles::To(uint32_t first_device, uint32_t num_devices,
                          const std::shared_ptr<StepBuffers>& buffers) const {
  ByteTarget target;
  for (const Tile& tile : *tiles_) {
    if (tile.device - first_device >= num_devices) continue;
    for (uint32_t microbatch = 0; microbatch < tile.num_microbatches; ++microbatch) {
      target.Add(tile.num_bytes, [tiles = tiles_, &tile, microbatch, buffers](
                                     uint64_t offset, size_t size, const std::byte* bytes) {
        tile.copy.RangeToGlobal(bytes, microbatch, static_cast<int64_t>(offset),
                                static_cast<int64_t>(size), buffers->fetches[tile.fetch].data());
      });
    }
  }
  return target;
}

}  // namespace penstock::actors
