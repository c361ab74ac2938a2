// Reads tiles that lie in a node into a tensor of this process.
//
// Thread rule: the loop's thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_READ_TILES_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_READ_TILES_INTERNAL_H_

#include <cstddef>
#include <memory>
#include <vector>

#include "actors/cluster/chunked_transfer_internal.h"
#include "base/tensor.h"
#include "graph/kernel_spec.h"

namespace penstock::actors {

struct TileToRead {
  control::AskChunk ask;  // for bytes of the tile
  graph::TileDesc tile;
};

// Reads one after the other into `value`, the tensor that they are tiles of.
control::StatusPromise ReadTiles(std::shared_ptr<const std::vector<TileToRead>> tiles, Tensor value,
                                 control::ByteCounter num_received);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_READ_TILES_INTERNAL_H_
