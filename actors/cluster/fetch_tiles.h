// The parts of a step's results that the devices of one process have written, as bytes to be put
// together in another: tiles in the order of devices, actors and micro-batches.
//
// Thread rule: a value; const functions from any thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_FETCH_TILES_H_
#define PENSTOCK_ACTORS_CLUSTER_FETCH_TILES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/cluster/scattered_bytes.h"
#include "actors/engine/executor.h"
#include "actors/engine/tile_copy.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

class FetchTiles {
 public:
  // Of a plan, or of a part of it that has these devices.
  // REQUIRES: CheckPlan(plan) or CheckPlanSlice(plan, ...) is OK.
  explicit FetchTiles(const planner::Plan& plan);

  // All that `num_devices` devices from `first_device` on have written into the fetches.
  ByteSource From(uint32_t first_device, uint32_t num_devices,
                  const std::shared_ptr<StepBuffers>& buffers) const;
  // The same bytes, put into them.
  ByteTarget To(uint32_t first_device, uint32_t num_devices,
                const std::shared_ptr<StepBuffers>& buffers) const;

 private:
  struct Tile {
    uint32_t device = 0;
    uint32_t fetch = 0;
    uint32_t num_microbatches = 1;
    uint64_t num_bytes = 0;
    TileCopy copy;
  };

  // Kept by what is made of them.
  std::shared_ptr<const std::vector<Tile>> tiles_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_FETCH_TILES_H_
