// Policies made of a comparison: whenever a group is free, it runs the first of its phases that can
// start.
//
// Example: all forwards before all backwards is gpipe.
//
//   MakeGreedyPolicy({.name = "forward-first",
//                     .before = [](const ReadyPhase& a, const ReadyPhase& b) {
//                       return a.phase.kind < b.phase.kind;
//                     }});
//
// Thread rule: the policy is immutable; `before` and `most_held` are called from one thread at a
// time, and must depend on nothing but their arguments.

#ifndef PENSTOCK_PLANNER_POLICY_GREEDY_POLICY_H_
#define PENSTOCK_PLANNER_POLICY_GREEDY_POLICY_H_

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/policy/pipeline.h"
#include "planner/policy/policy.h"

namespace penstock::planner {

struct ReadyPhase {
  PhaseChoice phase;
  int stage = 0;       // virtual
  double ready_s = 0;  // when what it reads had arrived
  double duration_s = 0;
};

// Whether a group runs `a` before `b`: a strict weak order. Of phases that it calls equal, the one
// that was ready first runs first, then the one of the lowest kind, chunk and micro-batch.
using PhaseBefore = std::function<bool(const ReadyPhase& a, const ReadyPhase& b)>;

// The most that a group may keep, in the unit of VirtualStage::activation.
using MostHeld = std::function<double(const Pipeline& pipeline, int group)>;

struct GreedyOptions {
  std::string name = {};
  PolicyNeeds needs = {};
  PhaseBefore before = nullptr;
  MostHeld most_held = nullptr;  // null: no limit but the pipeline's
};

// The order in which the phases start in virtual time. An F waits while it would exceed
// `most_held[group]` (0: no limit). Errors: kResourceExhausted if all groups wait for memory.
absl::StatusOr<PipelineOrders> PlanGreedily(const Pipeline& pipeline, const PhaseBefore& before,
                                            const std::vector<double>& most_held);

// REQUIRES: options.before is not null.
std::unique_ptr<const Policy> MakeGreedyPolicy(GreedyOptions options);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_POLICY_GREEDY_POLICY_H_
