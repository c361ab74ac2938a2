// Plans of a small GPT's training step, for tests of what is done with plans.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_TESTS_SUPPORT_GPT_PLAN_H_
#define PENSTOCK_TESTS_SUPPORT_GPT_PLAN_H_

#include <cstdint>
#include <functional>
#include <string>

#include "graph/graph.h"
#include "graph/op.h"
#include "planner/plan/folded_plan.h"
#include "planner/policy/policy.h"
#include "planner/search/machine.h"

namespace penstock::testing {

struct GptPlanOptions {
  std::string strategy = "dp=2,tp=2,pp=2";
  int64_t microbatches = 4;
  int64_t batch = 32;
  std::string policy = "1f1b";
  double dropout = 0.1;
  // planner::CompileOptions::fuses_epilogues.
  std::function<bool(uint32_t first, uint32_t count)> fuses_epilogues = nullptr;
  const planner::Machine* machine = nullptr;  // see planner::CompileOptions
};

// The training step of a GPT of 4 layers and width 32 in f32, laid out by the strategy and cut into
// its stages. A failure is one of the test.
graph::Graph SmallGptStep(const graph::OpRegistry& ops, const GptPlanOptions& options);

// Its plan. Likewise.
planner::FoldedPlan PlanSmallGpt(const GptPlanOptions& options,
                                 const planner::PolicyRegistry& policies);

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_GPT_PLAN_H_
