// Checks the indices and shardings of a folded plan, so that expanding it needs no checks, and how
// much memory its expansion takes. The plan that it expands to is checked like any other
// (check_structure.h).
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_

#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

#include "planner/plan/folded_plan.h"

namespace penstock::planner {

// What a small file can make a reader allocate.
inline constexpr uint64_t kMaxFoldedDevices = 1 << 17;
// Of all devices that are expanded together: actors, with their operands and a part for each 32
// bytes of their names, channels, registers and phases: about 64 bytes each.
inline constexpr uint64_t kMaxExpandedParts = 1 << 27;
// Members and counts of collectives, and transfers.
inline constexpr uint64_t kMaxExpandedMembers = 1 << 26;
inline constexpr size_t kMaxMeshAxes = 64;

// kInvalidArgument, naming what leads nowhere and where it may lead.
absl::Status CheckFoldedReferences(const FoldedPlan& folded);

// kResourceExhausted: expanding the programs of `devices` would take more than the limits above;
// the message says what may be done instead. REQUIRES: CheckFoldedReferences accepts the plan.
absl::Status CheckExpandedSize(const FoldedPlan& folded, absl::Span<const uint32_t> devices);
absl::Status CheckExpandedSize(const FoldedPlan& folded);  // of all devices

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_CHECK_FOLDED_PLAN_H_
