// The parts of a step's feeds that the devices of one process read, each once however many of them
// read it: what the coordinator sends to a node, and where the node puts it.
//
// Example: x is [8, 4] and split over four devices; the process with devices 2 and 3 gets rows 4
// to 7. A feed that none of its devices reads is not sent. Where parts overlap so much that they
// are longer than the feed, the feed is sent instead.
//
// Thread rule: a value; const functions from any thread.

#ifndef PENSTOCK_ACTORS_CLUSTER_FEED_TILES_H_
#define PENSTOCK_ACTORS_CLUSTER_FEED_TILES_H_

#include <cstdint>
#include <memory>
#include <vector>

#include "actors/cluster/scattered_bytes.h"
#include "actors/engine/executor.h"
#include "actors/engine/tile_copy.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

class FeedTiles {
 public:
  // Of `num_devices` devices from `first_device` on, of a plan or of a slice that has them.
  // REQUIRES: CheckPlan(plan) or CheckPlanSlice(plan, ...) is OK.
  FeedTiles(const planner::Plan& plan, uint32_t first_device, uint32_t num_devices);

  // Whether any part of a feed is read.
  bool Reads(uint32_t feed) const { return reads_[feed]; }

  ByteSource From(const std::shared_ptr<const StepBuffers>& buffers) const;
  // The same bytes, put into the feeds of `buffers`. REQUIRES: those that are read have memory.
  ByteTarget To(const std::shared_ptr<StepBuffers>& buffers) const;

 private:
  struct Part {
    uint32_t feed = 0;
    uint32_t microbatch = 0;
    uint64_t num_bytes = 0;
    TileCopy copy;
  };

  std::vector<bool> reads_;  // by feed
  // Kept by what is made of them.
  std::shared_ptr<const std::vector<Part>> parts_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_FEED_TILES_H_
