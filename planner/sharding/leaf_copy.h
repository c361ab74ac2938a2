// Inputs, constants and iotas are leaves: no device sends them to another. Each mesh of devices
// that reads one has its own copy of the node.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SHARDING_LEAF_COPY_H_
#define PENSTOCK_PLANNER_SHARDING_LEAF_COPY_H_

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::planner {

inline bool IsLeaf(const graph::Node& node) { return graph::IsLeaf(node.op->role()); }

// A node like the leaf, without results, for readers on another mesh. The copy of an input names
// the input whose value it gets. REQUIRES: IsLeaf(leaf).
inline graph::Node CopyOfLeaf(const graph::Graph& graph, const graph::Node& leaf, int mesh,
                              int stage) {
  graph::Node copy = leaf;
  copy.results.clear();
  copy.mesh = mesh;
  copy.stage = stage;
  if (leaf.op->role() == graph::OpRole::kInput && leaf.attributes.Find("feed") == nullptr) {
    copy.attributes.Set("feed", graph.value(leaf.results[0]).name);
  }
  return copy;
}

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_LEAF_COPY_H_
