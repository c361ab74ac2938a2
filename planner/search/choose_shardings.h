// Chooses how the values of a graph are split over axes of its mesh, so that a step costs least in
// the terms of sharding_network.h, within a limit of memory.
//
// The answer is proven: either the best, or with a bound of what the best may cost
// (cost_network.h).
//
// Thread rule: a pure function; the same problem has the same answer.

#ifndef PENSTOCK_PLANNER_SEARCH_CHOOSE_SHARDINGS_H_
#define PENSTOCK_PLANNER_SEARCH_CHOOSE_SHARDINGS_H_

#include <optional>
#include <vector>

#include "absl/status/statusor.h"

#include "graph/sharding.h"
#include "planner/search/sharding_network.h"

namespace penstock::planner {

struct ShardingChoice {
  std::vector<graph::Sharding> shardings;  // by value; may be partial
  double seconds = 0;
  double bound_s = 0;     // no choice takes less
  double kept_bytes = 0;  // of a device
  int num_variables = 0;  // choices, before and after elimination
  int num_solved = 0;
};

// Nothing if no choice fits into memory. `max_gap` and errors are those of Minimize.
absl::StatusOr<std::optional<ShardingChoice>> ChooseShardings(const ShardingProblem& problem,
                                                              double max_gap = 0);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_CHOOSE_SHARDINGS_H_
