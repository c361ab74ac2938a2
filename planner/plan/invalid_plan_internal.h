// What the checks of a plan answer.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_INVALID_PLAN_INTERNAL_H_
#define PENSTOCK_PLANNER_PLAN_INVALID_PLAN_INTERNAL_H_

#include "absl/status/status.h"

#include "base/strings.h"

namespace penstock::planner::internal {

template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(StrCat(parts...));
}

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_PLAN_INVALID_PLAN_INTERNAL_H_
