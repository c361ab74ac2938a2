// Sharding propagation: from the shardings that the user wrote to one for every value.
//
// Four levels, each a loop around the next:
// - user priority: dimensions with priority 0 (the default) propagate first, then 1 and so on; a
//   dimension waits closed and empty, its axes kept from others, until its turn;
// - operator priority: through elementwise and shape-preserving operators, then through
//   pass-through factors, then through everything; broadcasts backwards before forwards;
// - conflicts: the larger source wins (factor_propagation.h);
// - basic: what is compatible for all operands and results of an operator.
// Within a level a work list holds the nodes whose neighbourhood changed, in program order at
// first. Shardings only ever grow, so it empties.
//
// Worked example, on [a=2, b=2]: x is @[a, b] and the rest is open.
//
//     %s = add(%x, %y)        the add gives %s and %y @[a?, b?]
//     %d = matmul(%s, %w)     the matmul gives %w @[b?, ?] (its contracted factor) and %d @[a?, ?]
//     return %d               a return is one more user: it becomes @[a?, ?]
//
// Temporal axes are ordinary axes here. Values of different meshes do not share axes, except that
// the micro-batches of a value pass to its readers on other meshes (arrival.h). Partial
// values are left partial: which results become partial follows from their operator, and is decided
// where redistributions are inserted.
//
// After the semantics published for Shardy (openxla/shardy, docs/propagation.md and the behaviour
// its tests fix).
//
// Thread rule: pure function of the graph.

#ifndef PENSTOCK_PLANNER_SHARDING_PROPAGATE_H_
#define PENSTOCK_PLANNER_SHARDING_PROPAGATE_H_

#include <cstdint>

#include "absl/status/status.h"

#include "graph/graph.h"

namespace penstock::planner {

// How much of the hierarchy runs, from the inside out.
enum class PropagationLevel : uint8_t { kBasic, kAggressive, kOpPriority, kUserPriority };

// Gives every value and every return a sharding. Priorities are gone afterwards; below
// kUserPriority they are ignored. REQUIRES: the graph verifies.
absl::Status Propagate(PropagationLevel level, graph::Graph* graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SHARDING_PROPAGATE_H_
