// A plan as text for people: what `penstock show` prints, and how messages name a plan's parts.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_SHOW_PLAN_H_
#define PENSTOCK_PLANNER_PLAN_SHOW_PLAN_H_

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"

namespace penstock::planner {

std::string_view Name(Lane lane);                     // "compute", "once", "floating"
std::string_view Name(RegisterClass register_class);  // "state", "channel", "workspace"

// "device 0 phase F". REQUIRES: the indices exist.
std::string DescribePhase(const Plan& plan, uint32_t device, uint32_t phase);

// "actor 3 'h1.matmul' (device 0, phase F)". REQUIRES: the indices exist, and CheckReferences
// (check_references.h) accepts the plan's phases.
std::string DescribeActor(const Plan& plan, uint32_t device, uint32_t actor);

// The phase that `actor` belongs to. REQUIRES: as DescribeActor.
uint32_t PhaseOfActor(const DevicePlan& device, uint32_t actor);

// Everything but the actors: devices with their phases and memory, collectives by kind, transfers.
// Devices that differ in nothing shown are listed together. REQUIRES: as DescribeActor.
std::string ShowPlan(const Plan& plan);

// The same of a folded plan, of which no more than the first device of each program is expanded;
// kernels are those of the programs. REQUIRES: CheckFoldedReferences accepts it.
absl::StatusOr<std::string> ShowPlan(const FoldedPlan& folded);

// One device: registers by name (of the state that lies there, or of the first actor that writes
// it), phases with their actors in planned order, and channels between phases, a
// line each. An error when the plan has no such device. REQUIRES: CheckReferences accepts the plan.
absl::StatusOr<std::string> ShowDevice(const Plan& plan, uint32_t device);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_SHOW_PLAN_H_
