// Proves that a plan is well formed, that its memory is disjoint and that it cannot deadlock. A
// plan that does not verify is refused before anything is allocated.
//
// In this order: references and structure (check_references.h, check_structure.h), memory
// (check_memory.h), an untimed run (fire_plan.h), and the global order of collectives: within the
// compute lane and within the once lane, a device starts collectives in the order of
// Plan::collectives, so that all members of all groups agree. (Transports that run collectives on
// one stream, NCCL for one, need that even where the plan's own channels would not.)
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_PLAN_VERIFY_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_VERIFY_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/plan/plan.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

struct PlanVerification {
  // Of each device: state, channel slots in use and live workspace, at their highest in the untimed
  // run. Never more than the arena; less where lanes are not busy together or credits are not used.
  std::vector<uint64_t> peak_live_bytes;
  uint64_t firings = 0;  // of actors, in one step
};

// kInvalidArgument: a rule is broken; the message names the device, actor or phase, and the numbers
// found and expected. kFailedPrecondition: a deadlock; the message names its cycle. kNotFound: the
// plan leaves an order to its policy, which the registry lacks.
absl::StatusOr<PlanVerification> VerifyPlan(const Plan& plan, const PolicyRegistry& policies);

// The last of these rules. REQUIRES: CheckReferences and CheckStructure accept the plan.
absl::Status CheckCollectiveOrder(const Plan& plan);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_VERIFY_PLAN_H_
