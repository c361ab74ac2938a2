// Constructs the V schedule of Qi et al., "Zero Bubble Pipeline Parallelism" (2023), with the
// greedy algorithm of the authors (https://github.com/sail-sg/zero-bubble-pipeline-parallelism).
// Where theirs finds orders for equal stages, these are the same.
//
//   1. F0 passes the groups there and back (vee_passes.h). While a group waits for it to return, it
//      runs more F of chunk 0, as far as memory permits.
//   2. The first B starts at the first group. Until it reaches another group, that group runs F of
//      both chunks in turn.
//   3. In rounds: one B on each group, then one F, of the later pass if its input is there. Before
//      each, W make room in memory and fill the time until its input arrives.
//   4. The W that are left.
//
// Each phase starts as soon as its group is free and its input has arrived, so all times are known.
// Where stages differ, a wait counts as harmful only if it makes its group the last to end.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_ZERO_BUBBLE_V_PLAN_H_
#define PENSTOCK_PLANNER_POLICY_ZERO_BUBBLE_V_PLAN_H_

#include <optional>
#include <vector>

#include "planner/policy/phase.h"
#include "planner/policy/pipeline.h"

namespace penstock::planner::internal {

struct ZeroBubbleVOptions {
  // The most that each group may keep, in the unit of VirtualStage::activation.
  std::vector<double> memory_limits;
  // The share of its activation that a B frees, for memory_limits; its W frees the rest.
  double share_freed_by_b = 0.5;
  // Whether F of chunk 0 leave memory for an F of chunk 1. Such a plan never runs out of memory:
  // the oldest unfinished micro-batch can always go on.
  bool keeps_room = false;
  // If a wait would make a group the last to end, a W may fill it although it takes longer than the
  // wait. Always before B of chunk 0, and before other phases as these say (B: of chunk 1).
  bool fills_short_waits_for_f = true;
  bool fills_short_waits_for_b = true;
  // By group, for how long it may wait in total before W fill its short waits. Empty: 0.
  std::vector<double> may_wait_s;
};

struct ZeroBubbleVPlan {
  PipelineOrders orders;
  double span_s = 0;  // as Timeline::span_s
  // By group, for how long it could wait without being the last to end.
  std::vector<double> slack_s;
  std::vector<double> peak_activations;  // as Timeline::peak_activations, until W ends
};

// Nothing if groups run out of memory. REQUIRES: kVee, two chunks, and each group can keep an
// activation of both.
std::optional<ZeroBubbleVPlan> PlanZeroBubbleV(const Pipeline& pipeline,
                                               const ZeroBubbleVOptions& options);

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_POLICY_ZERO_BUBBLE_V_PLAN_H_
