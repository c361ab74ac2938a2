// ZeRO as shardings (Rajbhandari et al., "ZeRO: Memory optimizations toward training trillion
// parameter models", 2020): what data parallel replicas would hold and compute alike is split over
// them.
//
//   level 1  the optimiser's state: the gradient arrives in parts, each replica updates its part of
//            the parameter, and the new parts are gathered where the parameter lies
//   level 2  gradients too. With several micro-batches the sum over them is kept in parts, so each
//            micro-batch ends with a reduce_scatter. Level 1 keeps the sum whole and scatters it
//            once a step: more memory, less communication. With one micro-batch there is nothing
//            to keep, and the two levels are the same
//   level 3  parameters too: they are gathered in each phase that reads them, and dropped after it
//
// Each is a sharding over the axis "dp" of a state, a parameter or a gradient, and over "ep" and
// "cp" too where those do not split it; at level 3 also the attribute per_use of a parameter.
// Reduce_scatters and all_gathers follow from that.
//
// Worked example, level 2 on [mb=4 temporal, dp=2] for w : f32[64, 32]: w.m and w.v become
// @[dp, _], w.grad @[dp, _] partial(sum, mb), that is summed over dp and not yet over mb; w stays
// whole, replicated(dp).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_STRATEGY_ZERO_H_
#define PENSTOCK_PLANNER_STRATEGY_ZERO_H_

#include <cstdint>

#include "absl/status/status.h"

#include "graph/graph.h"

namespace penstock::planner {

inline constexpr int kMaxZero = 3;

// A tensor whose parts would be smaller than this stays whole: latency would cost more than the
// bytes are worth. Its gradient is reduced in a bucket with others.
inline constexpr int64_t kMinPartBytes = 4096;

// Writes the shardings. A parameter is what an update node (Op::updated_operands) overwrites first,
// its optimiser state the other values that the node overwrites, its gradient the operand of its
// type that is left.
// REQUIRES: the graph has one mesh, with an axis "dp", and the shardings of everything else;
// 1 <= level <= 3.
absl::Status SplitOverReplicas(int level, graph::Graph& graph);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_STRATEGY_ZERO_H_
