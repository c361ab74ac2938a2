// The part of a checkpoint that one process writes: a safetensors file with the tiles of states
// that the process holds.
//
// A state whose tiles are all here is written as one tensor of its name. Otherwise each tile is a
// tensor of its own, named after the state and the range of each dimension, such as
// "h0.mlp.w1[0:64,128:256]". For each of those the file's metadata hold "tile/NAME", a JSON object
// {"tensor": "h0.mlp.w1", "shape": [64, 512], "offset": [0, 128]}.
//
// Thread rule: pure functions but for the file.

#ifndef PENSTOCK_ACTORS_CHECKPOINT_STATE_FILE_H_
#define PENSTOCK_ACTORS_CHECKPOINT_STATE_FILE_H_

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "actors/checkpoint/safetensors.h"
#include "base/shape.h"
#include "base/tensor.h"
#include "graph/kernel_spec.h"

namespace penstock::actors {

struct StateTileBytes {
  graph::TileDesc tile;
  const std::byte* bytes = nullptr;  // tile.num_bytes()
};

struct StateToWrite {
  std::string name;
  TensorType type;
  std::vector<StateTileBytes> tiles;  // without elements in common
  bool is_parameter = false;
};

// A source whose tensor, of a parameter, has to be finite: no run goes on from another one.
// kOutOfRange names the first element that is nan or infinite.
SafetensorsSource FiniteSource(SafetensorsSource source);

// Writes a new file. See WriteSafetensors. kOutOfRange: a parameter is not finite. kCancelled:
// `is_over`, which is asked before each tensor, has returned true; null: it goes on to the end.
absl::StatusOr<uint64_t> WriteStateFile(const std::string& path,
                                        absl::Span<const StateToWrite> states, Metadata metadata,
                                        const std::function<bool()>& is_over = nullptr);

// Where a tensor of a file lies in its state.
struct TilePlace {
  std::string state;
  TensorType type;  // of the state
  Shape offset;
};

// The place of a tensor that is a tile; nothing for a whole state. kDataLoss: the metadata are
// wrong.
absl::StatusOr<std::optional<TilePlace>> PlaceOfTensor(const SafetensorsTensor& tensor,
                                                       const Metadata& metadata);

// Whether a key of the metadata describes a tile.
bool IsTileKey(std::string_view key);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CHECKPOINT_STATE_FILE_H_
