#include <utility>

#include "actors/cluster/read_tiles_internal.h"
#include "actors/engine/tile_copy.h"

namespace penstock::actors {
namespace {

control::StatusPromise ReadFrom(std::shared_ptr<const std::vector<TileToRead>> tiles, size_t next,
                                Tensor value, control::ByteCounter num_received) {
  if (next == tiles->size()) return absl::OkStatus();
  const graph::TileDesc& tile = (*tiles)[next].tile;
  ByteTarget target;
  target.Add(tile.num_bytes(), [copy = TileCopy(tile), value](uint64_t offset, size_t size,
                                                              const std::byte* bytes) mutable {
    copy.RangeToGlobal(bytes, 0, static_cast<int64_t>(offset), static_cast<int64_t>(size),
                       value.data());
  });
  return control::ReadChunks((*tiles)[next].ask, std::move(target), num_received)
      .then([tiles, next, value, num_received](absl::Status&& status) -> control::StatusPromise {
        if (!status.ok()) return std::move(status);
        return ReadFrom(tiles, next + 1, value, num_received);
      });
}

}  // namespace

control::StatusPromise ReadTiles(std::shared_ptr<const std::vector<TileToRead>> tiles, Tensor value,
                                 control::ByteCounter num_received) {
  return ReadFrom(std::move(tiles), 0, std::move(value), std::move(num_received));
}

}  // namespace penstock::actors
