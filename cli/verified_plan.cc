#include "cli/verified_plan.h"

#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan/check_folded_plan.h"
#include "planner/plan/plan_io.h"
#include "planner/plan/verify_folded_plan.h"
#include "planner/plan/verify_plan.h"

namespace penstock::cli {
namespace {

absl::Status InFile(const std::string& file, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(), StrCat(file, ": ", ToStd(status.message()),
                                            "; `penstock plan` compiles another plan"));
}

}  // namespace

absl::StatusOr<planner::Plan> ReadVerifiedPlan(const std::string& file,
                                               const planner::PolicyRegistry& policies) {
  ASSIGN_OR_RETURN(planner::Plan plan, planner::ReadPlan(file));
  RETURN_IF_ERROR(InFile(file, planner::VerifyPlan(plan, policies).status()));
  return plan;
}

absl::StatusOr<planner::FoldedPlan> ReadVerifiedFoldedPlan(
    const std::string& file, const planner::PolicyRegistry& policies) {
  ASSIGN_OR_RETURN(planner::FoldedPlan folded, planner::ReadFoldedPlan(file));
  if (folded.is_folded() && !planner::CheckExpandedSize(folded).ok()) {
    RETURN_IF_ERROR(InFile(file, planner::VerifyFoldedPlan(folded, policies).status()));
    return folded;
  }
  planner::FoldedPlan whole;
  ASSIGN_OR_RETURN(whole.common, planner::ExpandPlan(folded));
  RETURN_IF_ERROR(InFile(file, planner::VerifyPlan(whole.common, policies).status()));
  return whole;
}

}  // namespace penstock::cli
