// Which nodes of a training step do the same in every layer: what is decided for one copy of a
// layer holds for all.
//
// The forward nodes of two copies are alike by their place in the layer (repeated_layers.h). From
// there, nodes are alike that have the same operator, attributes and types and
//   - are the same of the nodes that belong to alike forward nodes (gradients), or
//   - read alike values, and otherwise the same (sums of gradients, updates), or
//   - declare the same operand of alike nodes (the optimiser's states).
//
// Example, two layers of h' = matmul(h, w): the nodes h1 and h2 are alike, so are their gradients,
// w1 and w2, the updates of w1 and w2, and the states that those read.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SEARCH_ALIKE_NODES_H_
#define PENSTOCK_PLANNER_SEARCH_ALIKE_NODES_H_

#include <vector>

#include "absl/types/span.h"

#include "graph/graph.h"
#include "planner/strategy/repeated_layers.h"

namespace penstock::planner {

struct AlikeNode {
  graph::NodeId first = 0;  // the first node that it is like; itself where there is none
  int copy = -1;            // of the layer, counted over all runs; -1: of none

  friend bool operator==(const AlikeNode&, const AlikeNode&) = default;
};

// By node. `runs` are those of the forward part, whose nodes come first, in their order.
std::vector<AlikeNode> FindAlikeNodes(const graph::Graph& graph,
                                      absl::Span<const RepeatedLayers> runs);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_ALIKE_NODES_H_
