// Policies from plug-in libraries (policy_plugin.h).
//
// Thread rule: any thread. The library stays loaded as long as the policy lives.

#ifndef PENSTOCK_PLANNER_POLICY_LOAD_POLICY_H_
#define PENSTOCK_PLANNER_POLICY_LOAD_POLICY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "planner/policy/policy.h"

namespace penstock::planner {

// The policy of the library, by the name `path`. Errors: there is no such library, it cannot be
// loaded, does not export a policy, or one of another version.
//
// The code of the library is trusted as the process itself is. What it decides is checked like the
// orders of any policy, and what it throws is an error.
absl::StatusOr<std::unique_ptr<const Policy>> LoadPolicy(const std::string& path);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_LOAD_POLICY_H_
