// Chooses what the axis "tp" splits, by cost: tensor and sequence parallelism for graphs that do
// not say how (splits=cost in a strategy), or other splits than a model's.
//
// Dimensions that data parallelism and micro-batches split stay as they are, and so do values whose
// sharding a user states; all others of every value and node may be split over tp, as
// choose_shardings.h finds best for a step on the machine within its memory. Layers that repeat are
// solved once. The micro-batches of a step count as one. The splits are then written as shardings
// of all values, and what the strategy says of zero on top of them.
//
// Memory is that of all stages together, a tenth of each device left for workspaces. Replicas keep
// their share of what zero divides; what is computed again in the backward pass, or goes to the
// host, is not kept.
//
// Example: "tp=2,splits=cost" for relu(x @ u) @ v with large weights and a small batch: u is split
// by columns, v by rows, and the result is summed, as in Megatron.
//
// Thread rule: a pure function; the same graph gets the same splits.

#ifndef PENSTOCK_PLANNER_SEARCH_SPLIT_BY_COST_H_
#define PENSTOCK_PLANNER_SEARCH_SPLIT_BY_COST_H_

#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/models/model.h"
#include "planner/search/machine.h"
#include "planner/strategy/repeated_layers.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {

// Of the least cost: solutions so close to it are good enough.
inline constexpr double kSplitGap = 1e-3;

struct SplitOptions {
  const Machine* machine = nullptr;
  // With which ApplyStrategy laid out the graph: what they state is kept.
  absl::Span<const graph::SplitHint> hints = {};
  int num_groups = 1;                     // of devices: pipeline stages
  std::vector<RepeatedLayers> runs = {};  // of layers, in the graph's forward part
  // Of each run, the layers that the model has, if the graph has fewer of them: the second one
  // stands for those that are left out. Empty: none are.
  std::vector<int> num_layers = {};
};

// REQUIRES: ApplyStrategy has laid out the graph. kResourceExhausted: whatever is split, a device
// has too little memory.
absl::Status SplitByCost(const Strategy& strategy, const SplitOptions& options,
                         graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_SPLIT_BY_COST_H_
