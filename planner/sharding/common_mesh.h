// One mesh for meshes over the same devices, so that what is written for several can be planned for
// one.
//
// Device d of one mesh is device d of another with as many devices. The axes of the common mesh are
// the pieces into which the axes of all meshes cut the devices, counted row by row. A piece that is
// an axis of some mesh keeps its name.
//
// Worked example. Of m0 = [dp=4] and m1 = [rows=2, tp=2], the common mesh is [rows=2, tp=2]. What
// m0 has as @[dp, _] is @[rows.tp, _] there: device 2, the third in dp, has rows 1 and tp 0.
//
// Thread rule: values.

#ifndef PENSTOCK_PLANNER_SHARDING_COMMON_MESH_H_
#define PENSTOCK_PLANNER_SHARDING_COMMON_MESH_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/sharding.h"

namespace penstock::planner {

class CommonMesh {
 public:
  // kUnimplemented, with the reason, for meshes that differ in the number of devices or in temporal
  // axes, or whose axes overlap without one dividing the other, as [2, 3] and [3, 2] do.
  // REQUIRES: at least one mesh.
  static absl::StatusOr<CommonMesh> Create(absl::Span<const graph::Mesh> meshes);

  const graph::Mesh& mesh() const { return mesh_; }

  // A sharding on meshes[index], on the common mesh: every device holds the same. kUnimplemented
  // for sub-axes that the pieces do not divide.
  absl::StatusOr<graph::Sharding> Translate(int index, const graph::Sharding& sharding) const;

 private:
  absl::StatusOr<std::vector<graph::AxisRef>> Translate(int index,
                                                        const graph::AxisRef& axis) const;

  std::vector<graph::Mesh> meshes_;
  graph::Mesh mesh_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_COMMON_MESH_H_
