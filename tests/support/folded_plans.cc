#include "tests/support/folded_plans.h"

#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/policy/policy.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/zero.h"

namespace penstock::testing {

planner::FoldedPlan FoldedTrainingPlan(const FoldedExample& example) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  const int64_t batch = 4 * example.dp * example.microbatches;
  const int64_t hidden = example.hidden;
  const std::string time =
      example.microbatches > 1 ? StrCat("mb=", example.microbatches, " temporal, ") : "";
  const std::string text = StrCat(
      "mesh m = [", time, "dp=", example.dp, ", tp=", example.tp, "]\ngraph g {\n",
      "  %x = input : f32[", batch, ", 6] @[", example.microbatches > 1 ? "mb." : "", "dp, _]\n",
      "  %w = parameter : f32[6, ", hidden, "] @[_, tp]\n", "  %h = matmul(%x, %w) : f32[", batch,
      ", ", hidden, "]\n", "  %a = tanh(%h) : f32[", batch, ", ", hidden, "]\n",
      "  %v = parameter : f32[", hidden, ", 5] @[tp, _]\n", "  %y = matmul(%a, %v) : f32[", batch,
      ", 5]\n", "  %loss = sum_squares(%y) : f32[]\n", "  return %loss @[]\n}\n");
  absl::StatusOr<graph::Graph> forward = graph::ParseGraph(text, "example", ops);
  EXPECT_TRUE(forward.ok()) << forward.status();
  absl::StatusOr<graph::Graph> graph = graph::BuildTrainingGraph(ops, *forward, {});
  EXPECT_TRUE(graph.ok()) << graph.status();
  if (example.zero > 0) {
    const absl::Status split = planner::SplitOverReplicas(example.zero, *graph);
    EXPECT_TRUE(split.ok()) << split;
  }
  const absl::Status staged = planner::AssignStages(example.num_stages, *graph);
  EXPECT_TRUE(staged.ok()) << staged;
  planner::CompileOptions options;
  options.policies = &policies;
  options.kernels = kernels::TraitsOf(kernels, 1);
  options.fold = example.fold;
  absl::StatusOr<planner::FoldedPlan> plan =
      planner::CompileFolded(ops, *std::move(graph), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : planner::FoldedPlan();
}

}  // namespace penstock::testing
