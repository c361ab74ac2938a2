#include "actors/cluster/fetch_tiles.h"

#include "base/strings.h"

namespace penstock::actors {

FetchTiles::FetchTiles(const planner::Plan& plan) {
  for (uint32_t device = 0; device < plan.devices.size(); ++device) {
    for (const planner::PhasePlan& phase : plan.devices[device].phases) {
      for (uint32_t i = 0; i < phase.num_actors; ++i) {
        const uint32_t index = phase.first_actor + i;
        const planner::ActorPlan& actor = plan.devices[device].actors[index];
        if (actor.kind != planner::ActorKind::kFetch) continue;
        const graph::TileDesc& tile = plan.kernels[actor.kernel].inputs[0];
        tile_of_actor_[planner::ActorId(device, index)] = static_cast<uint32_t>(tiles_.size());
        tiles_.push_back({device, index, actor.target,
                          phase.per_microbatch ? plan.num_microbatches : 1, tile.num_bytes(),
                          TileCopy(tile)});
      }
    }
  }
}

std::vector<FetchTiles::Bytes> FetchTiles::Read(uint32_t first_device, uint32_t num_devices,
                                                const std::vector<Tensor>& fetches) const {
  std::vector<Bytes> read;
  for (const Tile& tile : tiles_) {
    if (tile.device - first_device >= num_devices) continue;
    for (uint32_t microbatch = 0; microbatch < tile.num_microbatches; ++microbatch) {
      Bytes bytes{tile.device, tile.actor, microbatch, std::string(tile.num_bytes, '\0')};
      tile.copy.FromGlobal(fetches[tile.fetch].data(), bytes.bytes.data(), microbatch);
      read.push_back(std::move(bytes));
    }
  }
  return read;
}

size_t FetchTiles::NumTiles(uint32_t first_device, uint32_t num_devices) const {
  size_t num_tiles = 0;
  for (const Tile& tile : tiles_) {
    if (tile.device - first_device < num_devices) num_tiles += tile.num_microbatches;
  }
  return num_tiles;
}

absl::Status FetchTiles::Write(uint32_t device, uint32_t actor, uint32_t microbatch,
                               std::string_view bytes, std::vector<Tensor>& fetches) const {
  const auto it = tile_of_actor_.find(planner::ActorId(device, actor));
  if (it == tile_of_actor_.end()) {
    return absl::InvalidArgumentError(
        StrCat("actor ", actor, " of device ", device, " writes no result"));
  }
  const Tile& tile = tiles_[it->second];
  if (microbatch >= tile.num_microbatches || bytes.size() != tile.num_bytes) {
    return absl::InvalidArgumentError(StrCat("the result of actor ", actor, " of device ", device,
                                             " is not ", bytes.size(), " bytes of micro-batch ",
                                             microbatch));
  }
  tile.copy.ToGlobal(bytes.data(), fetches[tile.fetch].data(), microbatch);
  return absl::OkStatus();
}

}  // namespace penstock::actors
