// How large the file of a plan is: as large as its distinct programs, whatever the number of
// devices that run them, and in proportion to the layers of a stage.

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/plan/plan_io.h"
#include "planner/policy/policy.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {
namespace {

struct Planned {
  double file_bytes = 0;
  uint64_t actors = 0;
  size_t programs = 0;
};

// Of a gpt whose devices have two sequences in each micro-batch.
Planned PlanOf(const Strategy& strategy, int64_t layers, int64_t microbatches) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const graph::ModelRegistry models = graph::BuiltinModels();
  const PolicyRegistry policies = BuiltinPolicies();
  const kernels::KernelRegistry kernels = kernels::CpuKernels();
  const graph::Model& gpt = *models.FindModel("gpt");
  graph::ModelConfig config;
  config.layers = layers;
  config.heads = 4;
  config.width = 128;
  config.context = 16;
  config.vocabulary = 256;
  config.dropout = 0;
  graph::Graph graph =
      *graph::BuildTrainingGraph(ops,
                                 *graph::BuildModelGraph(ops, gpt, config, graph::ModelUse::kTrain,
                                                         2 * strategy.dp * microbatches),
                                 {});
  EXPECT_TRUE(ApplyStrategy(strategy, microbatches, gpt.tensor_splits, graph).ok());
  EXPECT_TRUE(AssignStages(strategy.num_stages(), graph).ok());
  CompileOptions options;
  options.policies = &policies;
  options.kernels = kernels::TraitsOf(kernels, 1);
  options.chunks_per_group = static_cast<int>(strategy.vpp);
  const absl::StatusOr<FoldedPlan> plan = CompileFolded(ops, std::move(graph), options);
  EXPECT_TRUE(plan.ok()) << plan.status();
  if (!plan.ok()) return {};
  const absl::StatusOr<std::string> bytes = PlanToBytes(*plan);
  EXPECT_TRUE(bytes.ok()) << bytes.status();
  if (!bytes.ok()) return {};
  return {static_cast<double>(bytes->size()), Count(*plan).actors, plan->programs.size()};
}

// Without ZeRO, which leaves more tensors whole where parts would be too small.
TEST(PlanSizeTest, DevicesOfOneProgramAddNothing) {
  for (const Strategy& strategy :
       {Strategy{.dp = 2}, Strategy{.dp = 2, .tp = 2}, Strategy{.dp = 2, .tp = 2, .pp = 2},
        Strategy{.dp = 2, .tp = 2, .sp = true}}) {
    SCOPED_TRACE(ToString(strategy));
    const Planned few = PlanOf(strategy, 2, 2);
    Strategy wide = strategy;
    wide.dp = 64;
    const Planned many = PlanOf(wide, 2, 2);
    EXPECT_EQ(many.programs, few.programs);
    EXPECT_GE(many.actors, 31 * few.actors);
    EXPECT_NEAR(many.file_bytes / few.file_bytes, 1, 0.03);
  }
}

// Twice as many layers more are twice as many bytes more, in one stage and in each of two.
TEST(PlanSizeTest, LayersOfAStageAddAsMuchEach) {
  for (const int64_t pp : {1, 2}) {
    SCOPED_TRACE(StrCat("pp=", pp));
    const Strategy strategy = {.dp = 2, .tp = 2, .pp = pp};
    const double few = PlanOf(strategy, 2 * pp, 2).file_bytes;
    const double more = PlanOf(strategy, 4 * pp, 2).file_bytes;
    const double most = PlanOf(strategy, 8 * pp, 2).file_bytes;
    ASSERT_GT(more, few);
    EXPECT_NEAR((most - more) / (more - few), 2, 0.1);
  }
}

}  // namespace
}  // namespace penstock::planner
