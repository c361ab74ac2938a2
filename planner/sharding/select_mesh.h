// A program compiles for one mesh. What of several meshes no statement lies on is left out here, so
// that a file may keep meshes to choose from.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_
#define PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_

#include "absl/status/status.h"

#include "graph/graph.h"

namespace penstock::planner {

// Keeps the one mesh that the statements lie on; a graph without statements keeps its first, one
// without meshes is left alone. kUnimplemented where statements lie on several: names the first
// that lies elsewhere than those before it, and both meshes.
absl::Status SelectMesh(graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_SELECT_MESH_H_
