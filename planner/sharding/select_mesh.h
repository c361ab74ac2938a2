// A program is planned for one mesh, or for one mesh for each stage. Meshes that no statement uses
// are omitted, so that a file may keep meshes to choose from. Meshes with the same number of
// devices become one, on which all shardings are expressed (common_mesh.h). Meshes with other
// numbers of devices remain: each stage lies on one of them.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_
#define PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_

#include "absl/status/status.h"

#include "graph/graph.h"

namespace penstock::planner {

// Leaves a mesh for each number of devices. kUnimplemented where meshes of one size have no common
// mesh, temporal axes differ, or statements of one stage lie on meshes of different sizes: names
// two statements, their meshes and the reason.
absl::Status SelectMesh(graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_
