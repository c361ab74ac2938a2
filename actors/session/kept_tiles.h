// Copies of state tiles that one process keeps when the session that made them ends, by the names
// and the layout of the states: what the next session with the same tiles goes on from.
//
// Thread rule: external synchronisation; const functions from any thread.
// Invariant: a tile is kept once, however many devices of the process held it.

#ifndef PENSTOCK_ACTORS_SESSION_KEPT_TILES_H_
#define PENSTOCK_ACTORS_SESSION_KEPT_TILES_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "graph/kernel_spec.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// Tiles in host memory, each with its state's name, type and place in the state's tensor.
class KeptTiles {
 public:
  // Copies the tile at a placement of this process to host memory.
  using ReadTile =
      std::function<absl::Status(const planner::StatePlacement& placement, std::byte* bytes)>;
  // The other way: from host memory to the tile.
  using WriteTile =
      std::function<absl::Status(const planner::StatePlacement& placement, const std::byte* bytes)>;

  // Bytes that Copy needs for `states` (indices of the plan) on the devices.
  static uint64_t BytesOf(const planner::Plan& plan, const std::vector<uint32_t>& states,
                          uint32_t first_device, uint32_t num_devices);

  // The same of all states.
  static uint64_t BytesOfAll(const planner::Plan& plan, uint32_t first_device,
                             uint32_t num_devices);

  // Copies the tiles on the devices. kResourceExhausted if there is no memory for them.
  static absl::StatusOr<KeptTiles> Copy(const planner::Plan& plan,
                                        const std::vector<uint32_t>& states, uint32_t first_device,
                                        uint32_t num_devices, const ReadTile& read);

  // Fills the states of a plan on the devices from tiles of the same name, type and place in their
  // tensor. Returns the states (indices of the plan) that have a tile here which was not kept.
  absl::StatusOr<std::vector<uint32_t>> Fill(const planner::Plan& plan, uint32_t first_device,
                                             uint32_t num_devices, const WriteTile& write) const;

  // One tile.
  struct Tile {
    graph::TileDesc desc;                // where it lies in the tensor of its state
    std::unique_ptr<std::byte[]> bytes;  // desc.num_bytes()
  };
  // A state with the tiles of it that are kept here.
  struct State {
    std::string name;           // as in the plan
    TensorType type;            // of the whole tensor
    std::vector<Tile> tiles;    // each at another place of the tensor
    bool is_parameter = false;  // trained, as opposed to kept by the optimiser or the like
  };
  // All that is kept, in the order of the plan that it was copied from.
  const std::vector<State>& states() const { return states_; }
  // A tile by its number, in the order of the states and of their tiles; null: there is none.
  const Tile* Find(uint32_t state, uint32_t tile) const;

  // Of all tiles together.
  uint64_t num_bytes() const { return num_bytes_; }

 private:
  std::vector<State> states_;
  absl::flat_hash_map<std::string, size_t> index_;  // by name
  uint64_t num_bytes_ = 0;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_SESSION_KEPT_TILES_H_
