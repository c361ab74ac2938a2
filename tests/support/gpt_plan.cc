#include "tests/support/gpt_plan.h"

#include <utility>

#include "gtest/gtest.h"

#include "graph/models/model.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock::testing {

graph::Graph SmallGptStep(const graph::OpRegistry& ops, const GptPlanOptions& options) {
  const graph::ModelRegistry models = graph::BuiltinModels();
  const graph::Model& model = *models.FindModel("gpt");
  graph::ModelConfig config = model.defaults;
  config.layers = 4;
  config.width = 32;
  config.heads = 4;
  config.context = 16;
  config.dropout = options.dropout;
  const planner::Strategy strategy = **planner::ParseStrategy(options.strategy);
  graph::Graph forward =
      *graph::BuildModelGraph(ops, model, config, graph::ModelUse::kTrain, options.batch);
  graph::Graph graph = *graph::BuildTrainingGraph(ops, std::move(forward), {});
  const absl::Status applied =
      planner::ApplyStrategy(strategy, options.microbatches, model.tensor_splits, graph);
  EXPECT_TRUE(applied.ok()) << applied;
  const absl::Status staged = planner::AssignStages(strategy.num_stages(), graph);
  EXPECT_TRUE(staged.ok()) << staged;
  return graph;
}

planner::FoldedPlan PlanSmallGpt(const GptPlanOptions& options,
                                 const planner::PolicyRegistry& policies) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const planner::Strategy strategy = **planner::ParseStrategy(options.strategy);
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  planner::CompileOptions compile;
  compile.policy = options.policy;
  compile.policies = &policies;
  compile.kernels = kernels::TraitsOf(kernels, 1);
  compile.chunks_per_group = static_cast<int>(strategy.vpp);
  compile.strategy = options.strategy;
  compile.fuses_epilogues = options.fuses_epilogues;
  compile.machine = options.machine;
  absl::StatusOr<planner::FoldedPlan> plan =
      planner::CompileFolded(ops, SmallGptStep(ops, options), compile);
  EXPECT_TRUE(plan.ok()) << plan.status();
  return plan.ok() ? *std::move(plan) : planner::FoldedPlan();
}

}  // namespace penstock::testing
