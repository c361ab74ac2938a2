// What a device's place in its mesh determines: the tile that it holds of a sharded tensor, and the
// devices with which it communicates.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_COORDINATES_H_
#define PENSTOCK_PLANNER_PLAN_COORDINATES_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "base/tensor.h"
#include "graph/kernel_spec.h"
#include "graph/sharding.h"

namespace penstock::planner {

// The tile of a tensor that a device of the mesh holds. An error if the micro-batches of a temporal
// axis are not all of one size.
absl::StatusOr<graph::TileDesc> TileOf(const graph::Mesh& mesh, const graph::Sharding& sharding,
                                       const TensorType& type, int64_t device);

// Where the bytes of a part of a tile begin in it, if they are contiguous there. REQUIRES: `part`
// lies inside `whole` and is of the same tensor.
std::optional<uint64_t> ContiguousOffset(const graph::TileDesc& whole, const graph::TileDesc& part);

// Groups of devices that differ only in their coordinates on `axes`, each ordered by these: major
// axis first. The groups are in the order of their first devices. Temporal axes do not count.
//
// Example: on [dp=2, tp=2], the groups of {dp} are {0, 2} and {1, 3}.
std::vector<std::vector<uint32_t>> GroupDevices(const graph::Mesh& mesh,
                                                std::vector<graph::AxisRef> axes);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_COORDINATES_H_
