// Which parts of a state move between processes when a session lays it out in another way than the
// session that kept it.
//
// Example: process 0 keeps columns 0 to 3 of a matrix [2, 8], processes 1 and 2 both keep columns 4
// to 7. Process 0 then needs row 0. It has four elements of it itself; the other four come from one
// of the others. The moves are
//   {from 0, tile 0, to 0, box [0, 0] + [1, 4]} and {from 1, tile 0, to 0, box [0, 4] + [1, 4]}.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_CLUSTER_STATE_MOVES_H_
#define PENSTOCK_ACTORS_CLUSTER_STATE_MOVES_H_

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/shape.h"
#include "graph/kernel_spec.h"

namespace penstock::actors {

// Some elements of a tensor, in its coordinates. Both shapes have the rank of the tensor.
struct Box {
  Shape offset;
  Shape shape;
  friend bool operator==(const Box&, const Box&) = default;
};

// Tiles of a state in a process.
struct ProcessTiles {
  uint32_t process = 0;
  std::vector<Box> tiles;
};

// Elements that go from one tile into all tiles of another process, or of the same one, that
// contain them.
struct StateMove {
  uint32_t from = 0;  // process
  uint32_t tile = 0;  // of that process, as an index of its list
  uint32_t to = 0;    // process
  Box box;            // lies in each tile of `to` that it intersects
  friend bool operator==(const StateMove&, const StateMove&) = default;
};

// The elements of a tile, with the offset and the shape that it has in its tensor.
Box BoxOf(const graph::TileDesc& tile);

// `box` as a tile of the memory of `tile`. kInvalidArgument: it does not lie in the tile.
absl::StatusOr<graph::TileDesc> BoxInTile(const Box& box, const graph::TileDesc& tile);

class StateMovePlanner {
 public:
  // `hosts` names the host of each process.
  explicit StateMovePlanner(std::vector<std::string> hosts);

  // The moves that fill the tiles in `needed` from those in `held`. Every element moves into a
  // process once. It comes from the process itself if that holds it, otherwise from the same host,
  // otherwise from another; among equals, from the process that has the fewest bytes to send so
  // far. Each process occurs once in each list. kNotFound: an element is not held.
  absl::StatusOr<std::vector<StateMove>> Plan(const std::vector<ProcessTiles>& held,
                                              const std::vector<ProcessTiles>& needed,
                                              size_t element_bytes);

 private:
  const std::vector<std::string> hosts_;
  std::vector<uint64_t> bytes_to_send_;  // of each process, in all states so far
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_STATE_MOVES_H_
