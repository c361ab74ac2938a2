// The work of a kernel of a plan, from its tiles.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_COST_KERNEL_COST_H_
#define PENSTOCK_PLANNER_COST_KERNEL_COST_H_

#include <vector>

#include "absl/status/status.h"

#include "graph/op.h"
#include "planner/plan/plan.h"

namespace penstock::planner {

// OK if the tiles of each kernel fit its operator as far as costs depend on it: there are as many
// as it takes, those of the whole tensors are of the types that it infers, and dimensions that
// follow one factor are equally long. kInvalidArgument names the kernel. What the planner made
// passes; what was read from a file may not.
absl::Status CheckKernelTiles(const graph::OpRegistry& ops, const std::vector<KernelPlan>& kernels);

// A kernel that is no operator copies its tiles. REQUIRES: CheckKernelTiles accepts the kernel.
graph::OpCost KernelCost(const graph::OpRegistry& ops, const KernelPlan& spec);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_COST_KERNEL_COST_H_
