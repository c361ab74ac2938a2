// The policies that BuiltinPolicies registers, one function each.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_POLICIES_INTERNAL_H_
#define PENSTOCK_PLANNER_POLICY_POLICIES_INTERNAL_H_

#include <memory>

#include "planner/policy/policy.h"

namespace penstock::planner::internal {

// Forwards and backwards in fixed patterns (loop_policies.cc).
std::unique_ptr<const Policy> MakeGPipe();
std::unique_ptr<const Policy> MakeOneForwardOneBackward();
std::unique_ptr<const Policy> MakeEagerOneForwardOneBackward();
std::unique_ptr<const Policy> MakeInterleaved();
std::unique_ptr<const Policy> MakeLoopedBreadthFirst();

// Zero bubble (zero_bubble_policies.cc).
std::unique_ptr<const Policy> MakeZeroBubbleH1();
std::unique_ptr<const Policy> MakeZeroBubbleH2();
std::unique_ptr<const Policy> MakeZeroBubble1p();
std::unique_ptr<const Policy> MakeZeroBubble2p();

// With a V-shaped placement (vee_policies.cc, controllable_memory_policies.cc).
std::unique_ptr<const Policy> MakeZeroBubbleV();
std::unique_ptr<const Policy> MakeVHalf();
std::unique_ptr<const Policy> MakeVMin();
std::unique_ptr<const Policy> MakeDualPipeV();

// From both ends (bidirectional_policies.cc).
std::unique_ptr<const Policy> MakeChimera();
std::unique_ptr<const Policy> MakeDualPipe();

// Planned by search (best_order_policy.cc).
std::unique_ptr<const Policy> MakeBestOrder();

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_POLICY_POLICIES_INTERNAL_H_
