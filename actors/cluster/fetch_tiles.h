// The parts of a step's results that the devices of one process have written, to be put together in
// another.
//
// Thread rule: const functions from any thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_FETCH_TILES_H_
#define PENSTOCK_ACTORS_CLUSTER_FETCH_TILES_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

#include "actors/tile_copy.h"
#include "base/tensor.h"
#include "planner/plan.h"

namespace penstock::actors {

class FetchTiles {
 public:
  // What one firing of a fetch actor writes.
  struct Bytes {
    uint32_t device = 0;
    uint32_t actor = 0;
    uint32_t microbatch = 0;
    std::string bytes;
  };

  // REQUIRES: CheckPlan(plan) is OK.
  explicit FetchTiles(const planner::Plan& plan);

  // All that `num_devices` devices from `first_device` on have written into `fetches`.
  std::vector<Bytes> Read(uint32_t first_device, uint32_t num_devices,
                          const std::vector<Tensor>& fetches) const;

  // How many those are.
  size_t NumTiles(uint32_t first_device, uint32_t num_devices) const;

  // Puts one of them into `fetches`. Refuses what no fetch actor writes.
  absl::Status Write(uint32_t device, uint32_t actor, uint32_t microbatch, std::string_view bytes,
                     std::vector<Tensor>& fetches) const;

 private:
  struct Tile {
    uint32_t device = 0;
    uint32_t actor = 0;
    uint32_t fetch = 0;
    uint32_t num_microbatches = 1;
    size_t num_bytes = 0;
    TileCopy copy;
  };

  std::vector<Tile> tiles_;
  absl::flat_hash_map<uint64_t, uint32_t> tile_of_actor_;  // by planner::ActorId
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_FETCH_TILES_H_
