// A program is planned for one mesh. Meshes of a file that no statement lies on are left out, so
// that a file may keep meshes to choose from. Statements may lie on several meshes with the same
// number of devices, as stages do that are split in different ways: their shardings are expressed
// on one mesh (common_mesh.h).
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_
#define PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_

#include "absl/status/status.h"

#include "graph/graph.h"

namespace penstock::planner {

// Leaves one mesh, that all statements lie on; a graph without statements keeps its first, one
// without meshes is left alone. kUnimplemented where statements lie on meshes that have none in
// common: names the first that lies elsewhere than those before it, both meshes and the reason.
absl::Status SelectMesh(graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_
