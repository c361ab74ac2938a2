// Who sends which part of a value where it passes from one mesh of devices to another.
//
// Each device of the receiving mesh gets its tile from devices of the sending one that hold parts
// of it. Of devices that hold the same tile, the one that has least to send takes the next message,
// so the links of the sending stage share the load. If no two receivers hold the same element,
// every element is sent once; what several receivers need is gathered among them afterwards
// (arrival.h chooses the sharding in which a value arrives).
//
// Worked example. f32[8], from @[d] of d=4 to @[e] of e=2: device 0 of e gets 0..1 from device 0 of
// d and 2..3 from device 1; device 1 of e gets the rest from the other two.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_CROSS_MESH_H_
#define PENSTOCK_PLANNER_SHARDING_CROSS_MESH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "base/tensor.h"
#include "graph/kernel_spec.h"
#include "graph/sharding.h"

namespace penstock::planner {

struct CrossMeshMessage {
  uint32_t source = 0;       // device of the sending mesh
  uint32_t destination = 0;  // device of the receiving mesh
  graph::TileDesc part;      // of the tensor
};

// By receiver, and for each in the order of the parts. Both shardings are closed and without
// partials, and split the same dimensions over time, before they split them over devices. An error
// where micro-batches do not divide a dimension evenly (TileOf), or where a micro-batch of the
// sharding `from` has not what one of `to` needs. REQUIRES: the meshes have equally many
// micro-batches.
absl::StatusOr<std::vector<CrossMeshMessage>> PlanCrossMesh(const TensorType& type,
                                                            const graph::Mesh& from_mesh,
                                                            const graph::Sharding& from,
                                                            const graph::Mesh& to_mesh,
                                                            const graph::Sharding& to);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_CROSS_MESH_H_
