#include "actors/cluster/feed_tiles.h"

#include <cstddef>
#include <map>
#include <utility>

namespace penstock::actors {
namespace {

// Where a tile begins for a micro-batch.
Shape OffsetOf(const graph::TileDesc& tile, uint32_t microbatch) {
  Shape offset = tile.shape;
  for (size_t i = 0; i < offset.size(); ++i) {
    const int64_t first = tile.offset.empty() ? 0 : tile.offset[i];
    const int64_t stride = tile.microbatch_stride.empty() ? 0 : tile.microbatch_stride[i];
    offset[i] = first + stride * microbatch;
  }
  return offset;
}

// The whole tensor as one tile.
graph::TileDesc WholeOf(const TensorType& type) {
  graph::TileDesc tile;
  tile.dtype = type.dtype;
  tile.shape = tile.global = type.shape;
  return tile;
}

}  // namespace

FeedTiles::FeedTiles(const planner::Plan& plan, uint32_t first_device, uint32_t num_devices)
    : reads_(plan.feeds.size(), false) {
  // Of each feed the parts by offset and shape, so that both sides have them in one order.
  std::vector<std::map<std::pair<Shape, Shape>, Part>> parts(plan.feeds.size());
  for (uint32_t device = first_device; device < first_device + num_devices; ++device) {
    for (const planner::PhasePlan& phase : plan.devices[device].phases) {
      const uint32_t num_microbatches = phase.per_microbatch ? plan.num_microbatches : 1;
      for (uint32_t i = 0; i < phase.num_actors; ++i) {
        const planner::ActorPlan& actor = plan.devices[device].actors[phase.first_actor + i];
        if (actor.kind != planner::ActorKind::kFeed) continue;
        const graph::TileDesc& tile = plan.kernels[actor.kernel].outputs[0];
        reads_[actor.target] = true;
        for (uint32_t microbatch = 0; microbatch < num_microbatches; ++microbatch) {
          parts[actor.target].try_emplace(
              {OffsetOf(tile, microbatch), tile.shape},
              Part{actor.target, microbatch, tile.num_bytes(), TileCopy(tile)});
        }
      }
    }
  }
  std::vector<Part> ordered;
  for (uint32_t feed = 0; feed < plan.feeds.size(); ++feed) {
    const TensorType& type = plan.feeds[feed].type;
    uint64_t num_bytes = 0;
    for (const auto& [where, part] : parts[feed]) num_bytes += part.num_bytes;
    if (num_bytes >= type.num_bytes() && num_bytes > 0) {
      ordered.push_back({feed, 0, type.num_bytes(), TileCopy(WholeOf(type))});
      continue;
    }
    for (auto& [where, part] : parts[feed]) ordered.push_back(std::move(part));
  }
  parts_ = std::make_shared<const std::vector<Part>>(std::move(ordered));
}

ByteSource FeedTiles::From(const std::shared_ptr<const StepBuffers>& buffers) const {
  ByteSource source;
  for (const Part& part : *parts_) {
    source.Add(part.num_bytes, [parts = parts_, &part, buffers](uint64_t offset, size_t size,
                                                                std::byte* bytes) {
      part.copy.RangeFromGlobal(buffers->feeds[part.feed].data(), part.microbatch,
                                static_cast<int64_t>(offset), static_cast<int64_t>(size), bytes);
    });
  }
  return source;
}

ByteTarget FeedTiles::To(const std::shared_ptr<StepBuffers>& buffers) const {
  ByteTarget target;
  for (const Part& part : *parts_) {
    target.Add(part.num_bytes, [parts = parts_, &part, buffers](uint64_t offset, size_t size,
                                                                const std::byte* bytes) {
      part.copy.RangeToGlobal(bytes, part.microbatch, static_cast<int64_t>(offset),
                              static_cast<int64_t>(size), buffers->feeds[part.feed].data());
    });
  }
  return target;
}

}  // namespace penstock::actors
