// Layers that a model repeats, and the model with fewer of them: what is planned for three layers
// tells what ninety-six cost.
//
// Two nodes are alike if they have the same operator, attributes and result types, the same split
// hint, and their operands either are the same values or were made equally many nodes before them.
// Streams of random numbers and deviations of initial values do not count. A run of copies is a
// sequence of nodes that is alike itself, shifted by the length of one copy.
//
// Example: the nodes t0 t1 | a0 b0 | a1 b1 | a2 b2 | a3 b3 | u, in which b reads the a before it, a
// reads the b (or t1) before it, and u reads b3: first_node 2, nodes_per_copy 2, num_copies 4.
// With 3 copies, the nodes a3 and b3 are gone, and u reads b2.
//
// A model may have several runs: those of an encoder and of a decoder, or dense layers before ones
// with experts. Layers of two kinds that take turns are one run, of pairs.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_REPEATED_LAYERS_H_
#define PENSTOCK_PLANNER_STRATEGY_REPEATED_LAYERS_H_

#include <vector>

#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/models/model.h"

namespace penstock::planner {

struct RepeatedLayers {
  graph::NodeId first_node = 0;
  int nodes_per_copy = 0;
  int num_copies = 0;  // 0: the graph repeats nothing

  friend bool operator==(const RepeatedLayers&, const RepeatedLayers&) = default;
};

// Fewer copies are not worth treating as repeated.
inline constexpr int kLeastLayers = 4;

// The run that covers most nodes, with at least `min_copies` copies whose last two alone are read
// by what follows.
RepeatedLayers FindRepeatedLayers(const graph::Graph& graph,
                                  absl::Span<const graph::SplitHint> hints, int min_copies);

// All runs, in the order of the graph: that one, and those that cover most of what comes before and
// behind it, and so on. Of these, runs of single nodes and those of less than one in
// kLeastPartOfRun of the graph's nodes do not count.
inline constexpr int kLeastPartOfRun = 16;
std::vector<RepeatedLayers> FindRepeatedRuns(const graph::Graph& graph,
                                             absl::Span<const graph::SplitHint> hints,
                                             int min_copies);

// Each two layers as one, if a layer has so few nodes that splits by columns and by rows may take
// turns from one to the next; nothing if too few are left.
RepeatedLayers InPairs(const RepeatedLayers& layers);
// Of each run; those of which nothing is left are omitted.
std::vector<RepeatedLayers> InPairs(absl::Span<const RepeatedLayers> runs);

// The run that covers most of the forward nodes, whatever follows it. REQUIRES: forward nodes come
// first, as in a training step.
RepeatedLayers FindForwardLayers(const graph::Graph& graph, int min_copies);
// Likewise, all runs.
std::vector<RepeatedLayers> FindForwardRuns(const graph::Graph& graph, int min_copies);

// The graph with the first `num_copies` copies. REQUIRES: FindRepeatedLayers found the layers in
// the graph, and 2 <= num_copies <= layers.num_copies.
graph::Graph WithCopies(const graph::Graph& graph, const RepeatedLayers& layers, int num_copies);
// Of each run. REQUIRES: FindRepeatedRuns found the runs in the graph.
graph::Graph WithCopies(graph::Graph graph, absl::Span<const RepeatedLayers> runs, int num_copies);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_REPEATED_LAYERS_H_
