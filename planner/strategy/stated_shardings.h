// Shardings that a user states for values by pattern, "h{0-11}.mlp.w1 @[_, tp]": hints that a
// strategy keeps, whatever else it splits. They hold for any value of a training step: parameters,
// activations, gradients (w.grad) and states of the optimiser (w.m). A search keeps them as well;
// layers for which they differ count as different.
//
// Patterns are those of MatchesPattern (graph/models/model.h), shardings those of the text format.
// Axes are mb, dp, ep, cp and tp, or those of the mesh in a graph file. An axis that the strategy
// does not have counts as one device. Of the values that a pattern matches, those with as many
// dimensions as the sharding count. Of several hints for a value the last one holds.
//
// Example: with dp=2, {"*.m @[dp, _]", "wte.m @[_, _]"} splits the first moments of all matrices
// but those of the embedding over both replicas.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_STATED_SHARDINGS_H_
#define PENSTOCK_PLANNER_STRATEGY_STATED_SHARDINGS_H_

#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "graph/graph.h"
#include "graph/models/model.h"

namespace penstock::planner {

// Marks a status as one of a stated sharding, which is what it names.
inline constexpr char kStatedShardingPayload[] = "penstock/stated-sharding";

// "PATTERN @[...]", with or without '%' before the pattern.
absl::StatusOr<graph::SplitHint> ParseStatedSharding(std::string_view text);

// An error, with kStatedShardingPayload, for a stated sharding that is for no value of the graph.
absl::Status CheckStatedShardings(absl::Span<const graph::SplitHint> hints,
                                  const graph::Graph& graph);

// Gives values the shardings that are stated for them; other hints count for nothing here. Errors
// name the hint and the value that it does not suit, and carry kStatedShardingPayload.
// `only_forward`: states of the optimiser and what follows the forward pass are left as they are.
// REQUIRES: the graph has a mesh.
absl::Status ApplyStatedShardings(absl::Span<const graph::SplitHint> hints, graph::Graph& graph,
                                  bool only_forward = false);

// By value, whether a sharding is stated for it.
std::vector<bool> HaveStatedShardings(absl::Span<const graph::SplitHint> hints,
                                      const graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_STATED_SHARDINGS_H_
