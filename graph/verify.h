// The rules that every graph keeps, checked after each planner pass and before a graph is used.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_VERIFY_H_
#define PENSTOCK_GRAPH_VERIFY_H_

#include "absl/status/status.h"

#include "graph/graph.h"

namespace penstock::graph {

// OK when
// - meshes are well formed and their names unique;
// - values have unique names and are the results of their producers, which come before every user;
// - operand counts, attributes and result types are what the operators infer;
// - shardings, of values and of returns, are valid on their mesh (CheckSharding);
// - stages are -1 or in [0, kMaxStage], and Node::forward is an earlier node;
// - returned values exist;
// - `assign` writes a parameter or state, and each at most once.
// Otherwise kInvalidArgument (kInternal for ids out of range, which only code can cause) with the
// place of the statement where it is known, and the statement.
absl::Status VerifyGraph(const Graph& graph);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_VERIFY_H_
