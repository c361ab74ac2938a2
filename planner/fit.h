// Whether a plan's arenas fit the devices it is to run on. Asked before anything is allocated.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_FIT_H_
#define PENSTOCK_PLANNER_FIT_H_

#include <cstdint>
#include <vector>

#include "absl/status/status.h"

#include "planner/plan/folded_plan.h"

namespace penstock::planner {

// kResourceExhausted when a device of the plan needs more than it has: names the first such
// device, what it needs by class of memory, and how many more do not fit. kInvalidArgument unless
// there is one amount for every device.
absl::Status CheckFits(const FoldedPlan& plan,
                       const std::vector<uint64_t>& memory_bytes_per_device);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_FIT_H_
