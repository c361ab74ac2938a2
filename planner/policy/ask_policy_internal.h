// Calls of policies, which are code of users and may throw.
//
// Thread rule: that of the policy.

#ifndef PENSTOCK_PLANNER_POLICY_ASK_POLICY_INTERNAL_H_
#define PENSTOCK_PLANNER_POLICY_ASK_POLICY_INTERNAL_H_

#include <exception>
#include <string_view>

#include "absl/status/status.h"

#include "base/strings.h"
#include "planner/policy/policy.h"

namespace penstock::planner::internal {

// Calls ask(), and turns what it throws into an error. `where` is for example " at stage 1".
template <typename Ask>
absl::Status AskPolicy(const Policy& policy, std::string_view where, const Ask& ask) {
  const auto threw = [&](std::string_view what) {
    return absl::InvalidArgumentError(
        StrCat("policy '", policy.name(), "' threw", where, ": ", what));
  };
  try {
    ask();
    return absl::OkStatus();
  } catch (const std::exception& error) {
    return threw(error.what());
  } catch (...) {
    return threw("something that is no std::exception");
  }
}

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_POLICY_ASK_POLICY_INTERNAL_H_
