// Values that all micro-batches of a step form together and that micro-batches read again.
//
// Worked example: y = accumulate(x) over micro-batches, and z = y * x per micro-batch. Tokens of y
// would come once a micro-batch, each with part of the sum. After AddRateCopies, y.sum =
// accumulate(x), y = copy(y.sum) runs once a step, and z reads y.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_LOWER_RATE_COPIES_H_
#define PENSTOCK_PLANNER_LOWER_RATE_COPIES_H_

#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

#include "graph/graph.h"
#include "graph/op.h"

namespace penstock::planner {

// Of each value: whether a node that runs once a micro-batch reads it, as it is or reshaped.
std::vector<bool> FindReadOften(const graph::Graph& graph);

// A value that all micro-batches form together and each of them then reads passes through a phase
// that runs once a step: its tokens come once, whole. Adds the `copy` that does so.
absl::StatusOr<graph::Graph> AddRateCopies(const graph::OpRegistry& ops, const graph::Graph& in);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_LOWER_RATE_COPIES_H_
