// A node's part of a checkpoint: tiles that it has kept, into a file.
//
// Thread rule: ReadStateWrite on the loop's thread, WriteStates on any.

#ifndef PENSTOCK_ACTORS_CLUSTER_STATE_WRITE_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_STATE_WRITE_INTERNAL_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "actors/checkpoint/safetensors.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/write_shares.h"
#include "actors/session/kept_tiles.h"

namespace penstock::actors {

struct StateWrite {
  std::string path;
  std::vector<KeptTileId> tiles;  // in the order of their states
  Metadata metadata;
  std::shared_ptr<const KeptTiles> kept;  // null: there is nothing of the number
  uint64_t checksum = 0;                  // of the header that was written
};

// Checks what a coordinator has sent.
absl::StatusOr<StateWrite> ReadStateWrite(control::Node::WriteStatesParams::Reader params);

// kNotFound: a tile is not kept, or the folder is not there. kCancelled: `is_over` has become true,
// which is asked between tensors; no file is left.
absl::StatusOr<uint64_t> WriteStates(const StateWrite& write, const std::function<bool()>& is_over);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_STATE_WRITE_INTERNAL_H_
