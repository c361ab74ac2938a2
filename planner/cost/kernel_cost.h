// The work of a kernel of a plan, from its tiles.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_COST_KERNEL_COST_H_
#define PENSTOCK_PLANNER_COST_KERNEL_COST_H_

#include "graph/op.h"
#include "planner/plan/plan.h"

namespace penstock::planner {

// A kernel that is no operator copies its tiles.
graph::OpCost KernelCost(const graph::OpRegistry& ops, const KernelPlan& spec);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COST_KERNEL_COST_H_
