// Assigns the nodes of a graph to pipeline stages.
//
// The forward operators, in graph order, are cut into contiguous stages so that the slowest stage
// is as fast as possible (forward and backward work together). Cuts lie where little crosses them:
// between the blocks of a transformer one activation crosses, in the middle of one several do.
//
// Everything else follows:
//   parameters, inputs, constants   the stage of their first forward user; a weight that several
//                                   stages read (tied embeddings) belongs to the first
//   backward nodes                  the stage of their forward node; sums of gradients the first
//                                   stage that makes one of them
//   update nodes                    the stage of the parameter or state they update; what combines
//                                   one stage's values only, that stage; scalars of the optimizer
//                                   (step, learning rate, clipping) stage 0
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_STAGES_H_
#define PENSTOCK_PLANNER_STRATEGY_STAGES_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/graph.h"

namespace penstock::planner {

// Sets Node::stage of every node, in [0, num_stages).
// Invariant: a forward node's operands come from its own stage or earlier ones.
absl::Status AssignStages(int num_stages, graph::Graph& graph);

// As AssignStages, but forward nodes stay on the stages and meshes that the graph gives them. The
// other nodes lie on the mesh of their stage. An error names a forward node without a stage.
absl::Status FollowStages(graph::Graph& graph);

// Assigns the nodes of the update that have no stage, for parameters and gradients that have one,
// as AssignStages does.
void AssignUpdateStages(graph::Graph& graph);

// The forward operators that have operands, in graph order: what is cut into stages.
struct ForwardSequence {
  std::vector<graph::NodeId> nodes;
  std::vector<double> cost;      // work of the operator, forward and backward
  std::vector<double> crossing;  // bytes that pass from operators 0..i to those after i
};
ForwardSequence ForwardSequenceOf(const graph::Graph& graph);

// As AssignStages, with the index in the sequence of the first operator of each stage. An error
// unless they begin with 0 and increase.
absl::Status AssignStagesAt(absl::Span<const int> starts, graph::Graph& graph);

// The cut of a sequence into `num_parts` contiguous, non-empty parts: the index of each part's
// first element. cost[i] is the time of element i, crossing[i] what passes from elements 0..i to
// those after i. Minimises the largest part's cost by dynamic programming over cut points; of the
// points only the cheapest to cross are used, unless dearer ones shorten the slowest part by more
// than a tenth for each time that the crossing grows by its cheapest.
//
// Example: cost {1, 1, 1, 1, 1, 1}, crossing {5, 1, 5, 1, 5, 0}, 3 parts: {0, 2, 4}.
//
// REQUIRES: num_parts >= 1, cost.size() == crossing.size() >= num_parts.
std::vector<int> CutSequence(absl::Span<const double> cost, absl::Span<const double> crossing,
                             int num_parts);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_STAGES_H_
