// The attribute of a kernel that computes again what the forward pass has computed. It says nothing
// about how the kernel computes; figures that compare plans leave such kernels out.
//
// Thread rule: a constant.

#ifndef PENSTOCK_PLANNER_PLAN_RECOMPUTED_MARK_H_
#define PENSTOCK_PLANNER_PLAN_RECOMPUTED_MARK_H_

namespace penstock::planner {

inline constexpr char kRecomputedMark[] = "recomputed";

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_RECOMPUTED_MARK_H_
