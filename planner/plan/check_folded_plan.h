// Checks the indices, shardings and sizes of a folded plan, so that expanding it needs no checks
// and a bounded amount of memory. The plan that it expands to is checked like any other
// (check_structure.h).
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"

#include "planner/plan/folded_plan.h"

namespace penstock::planner {

// Of all devices together: what a small file can make a reader allocate.
inline constexpr uint64_t kMaxFoldedDevices = 1 << 17;
// Actors, with their operands and a part for each 32 bytes of their names, channels, registers and
// phases: about 64 bytes each.
inline constexpr uint64_t kMaxExpandedParts = 1 << 27;
// Members and counts of collectives, and transfers.
inline constexpr uint64_t kMaxExpandedMembers = 1 << 26;
inline constexpr size_t kMaxMeshAxes = 64;

// kInvalidArgument, naming what leads nowhere and where it may lead.
absl::Status CheckFoldedReferences(const FoldedPlan& folded);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_
