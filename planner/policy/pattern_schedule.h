// Turns a pattern that repeats for every micro-batch into a schedule of a V-shaped pipeline: the
// method of Qi et al., "Pipeline Parallelism with Controllable Memory" (2024), as their planner
// (https://github.com/sail-sg/zero-bubble-pipeline-parallelism) applies it, with the same orders.
//
// A pattern says in which slots a group runs the passes (vee_passes.h) of micro-batch 0. A slot
// fits one phase, and the next slot can read its result. Micro-batch m runs 6m slots later, because
// each micro-batch needs F, B and W of two chunks. W run in the slots that are left. So the pattern
// decides how long a group keeps a micro-batch, and how many it keeps at once.
//
//   1. In the warm-up and the cool-down, slots are idle. Phases move to earlier ones, as far as
//      their inputs and the peak memory of the pattern permit.
//   2. All phases move to the earliest slots that keep the order of each group.
//   3. Steps 1 and 2 are repeated for the cool-down alone. This time W move last, into the slots
//      that the other phases leave idle.
//
// Example: 2 groups with patterns {0, 3, 4, 7} and {1, 2, 5, 6}, 3 micro-batches. A prime marks
// chunk 1:
//   group 0: F0 F1 F0' B0' W0' B0 W0 F1' B1' W1' F2 B1 W1 F2' B2' W2' B2 W2
//   group 1: F0 F0' B0' B0 F1 F1' W0' W0 B1' B1 F2 F2' W1' W1 B2' B2 W2' W2
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_PATTERN_SCHEDULE_H_
#define PENSTOCK_PLANNER_POLICY_PATTERN_SCHEDULE_H_

#include <array>
#include <vector>

#include "planner/policy/phase.h"
#include "planner/policy/vee_passes.h"

namespace penstock::planner::internal {

inline constexpr int kPatternPeriod = 6;

// The slots of micro-batch 0 on one group, by pass.
using Pattern = std::array<int, kNumVeePasses>;

// The orders of all groups, with F, B and W. REQUIRES: every pass reads earlier slots only, the
// slots of a group differ modulo kPatternPeriod, and num_microbatches >= 1.
PipelineOrders OrdersOfPattern(const std::vector<Pattern>& pattern_of_group, int num_microbatches);

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_POLICY_PATTERN_SCHEDULE_H_
