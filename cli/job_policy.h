// The scheduling policy of a job.
//
// Thread rule: pure functions but for the files.

#ifndef PENSTOCK_CLI_JOB_POLICY_H_
#define PENSTOCK_CLI_JOB_POLICY_H_

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "cli/environment.h"
#include "cli/job.h"

#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "planner/strategy/strategy.h"

namespace penstock::cli {

// Whether the text names a file with a policy: orders in CSV, or a plug-in library.
bool IsPolicyFile(std::string_view text);

// Sets parallel.schedule to what --policy says, if anything; paths count from the working folder.
void OverridePolicy(const std::string& policy, Job* job);

// The policy in a CSV file or a plug-in library, by the name `path`.
absl::StatusOr<std::unique_ptr<const planner::Policy>> ReadPolicyFile(const std::string& path);

// The registered policies and, if parallel.schedule is a file, the one in that. Errors point at the
// key, or into the file.
absl::StatusOr<planner::PolicyRegistry> PoliciesOf(const Registries& registries, const Job& job);

// The job's policy if that is a plug-in library which decides while the plan runs, for the
// processes that run the plan; else empty.
std::string PolicyLibraryOf(const Job& job, const planner::Plan& plan);

// Gives the strategy what parallel.recompute says. An error: it says something else itself.
absl::Status SetRecompute(const Job& job, planner::Strategy* strategy);

// Gives the strategy as many chunks a pipeline stage as the job or its policy says. Errors: that
// contradicts the strategy or the policy.
absl::Status SetChunks(const Job& job, const planner::Policy& policy, planner::Strategy* strategy);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_JOB_POLICY_H_
