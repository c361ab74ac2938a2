// For policies that make an order of all kinds of phases, and leave out those that a pipeline does
// not have: B in inference, W where the backward is not split.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_POLICY_PRESENT_PHASES_H_
#define PENSTOCK_PLANNER_POLICY_PRESENT_PHASES_H_

#include <utility>
#include <vector>

#include "planner/policy/phase.h"
#include "planner/policy/policy.h"

namespace penstock::planner::internal {

// The phases of kinds that the group's chunks have, in the same order. If orders of all groups do
// not deadlock, what this leaves of them does not either.
inline std::vector<PhaseChoice> PresentPhases(const StageContext& context,
                                              std::vector<PhaseChoice> order) {
  std::erase_if(order,
                [&](const PhaseChoice& phase) { return !context.has(phase.kind, phase.chunk); });
  return order;
}

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_POLICY_PRESENT_PHASES_H_
