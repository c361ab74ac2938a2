// That every index, sharding and size of a folded plan leads somewhere, so that it can be expanded
// without looking. What it expands to is checked as any plan (check_plan.h).
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"

#include "planner/plan/folded_plan.h"

namespace penstock::planner {

// Of all devices. A small file cannot make a reader allocate more than these.
inline constexpr uint64_t kMaxFoldedDevices = 1 << 17;
inline constexpr uint64_t kMaxExpandedParts = 1 << 28;   // actors, channels, registers and phases
inline constexpr uint64_t kMaxExpandedGroups = 1 << 26;  // members of collectives and transfers

// kInvalidArgument, naming what leads nowhere and where it may lead.
absl::Status CheckFoldedReferences(const FoldedPlan& folded);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_
