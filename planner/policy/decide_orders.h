// The orders of a policy that decides as a plan runs, as it would decide if phases took the times
// of a pipeline.
//
// Thread rule: a pure function of its arguments, if the policy's schedulers are.

#ifndef PENSTOCK_PLANNER_POLICY_DECIDE_ORDERS_H_
#define PENSTOCK_PLANNER_POLICY_DECIDE_ORDERS_H_

#include "absl/status/statusor.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

// Orders of all groups of the pipeline's first step. A group is asked whenever it is idle and
// something has changed, and sees what a running stage sees (StageView). Groups that have an order
// in `orders`, which are those of PlanPipeline, keep it. Values arrive after the latency and the
// transfer of their edge, as if each transfer had the edge to itself.
//
// Errors: the policy throws, chooses a phase that is not the next of its kind, or chooses nothing
// though nothing is under way; groups wait for each other for ever.
absl::StatusOr<PipelineOrders> DecideOrders(const Policy& policy, const Pipeline& pipeline,
                                            PipelineOrders orders);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_DECIDE_ORDERS_H_
