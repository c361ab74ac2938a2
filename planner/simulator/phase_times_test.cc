#include "planner/simulator/phase_times.h"

#include <utility>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/cluster/presets.h"
#include "planner/simulator/simulate_plan.h"
#include "tests/support/gpt_plan.h"

namespace penstock::planner {
namespace {

// Where nothing overlaps, a step takes as long as its phases, on whatever machine.
TEST(PredictPhasesTest, PhasesAddUpToTheStep) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const PolicyRegistry policies = BuiltinPolicies();
  // While a collective keeps the kernels waiting, copies go on, more of them than a sum can tell.
  const std::pair<const char*, double> cases[] = {
      {"dp=1", 0.05}, {"tp=2", 0.05}, {"offload=all", 0.05}, {"tp=2,offload=activations", 0.15}};
  for (const auto& [strategy, tolerance] : cases) {
    for (const char* preset : {"hgx-h100:1", "v100-ib100:1"}) {
      SCOPED_TRACE(StrCat(strategy, " on ", preset));
      testing::GptPlanOptions options;
      options.strategy = strategy;
      FoldedPlan plan = testing::PlanSmallGpt(options, policies);
      const Machine machine = {*FindClusterPreset(preset)};
      const absl::StatusOr<Simulation> simulation = SimulatePlan(plan, ops, policies, machine);
      ASSERT_TRUE(simulation.ok()) << simulation.status();
      ASSERT_TRUE(PredictPhases(ops, machine, &plan).ok());
      double step_s = 0;
      for (const PhasePlan& phase : plan.ProgramOnDevice(0).phases) {
        step_s += phase.predicted_s * FiringsPerStep(plan.common, phase);
      }
      EXPECT_NEAR(step_s / simulation->step_s, 1, tolerance);
    }
  }
}

// A message takes what its link needs.
TEST(PredictPhasesTest, MessagesTakeTheirLinks) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const PolicyRegistry policies = BuiltinPolicies();
  testing::GptPlanOptions options;
  options.strategy = "pp=2";
  FoldedPlan plan = testing::PlanSmallGpt(options, policies);
  const Machine machine = {*FindClusterPreset("hgx-h100:1")};
  ASSERT_TRUE(PredictPhases(ops, machine, &plan).ok());
  int num_messages = 0;
  for (const DevicePlan& program : plan.programs) {
    for (const PhasePlan& phase : program.phases) {
      if (phase.num_actors != 1) continue;
      if (program.actors[phase.first_actor].kind != ActorKind::kSend) continue;
      ++num_messages;
      EXPECT_GE(phase.predicted_s, machine.cluster.PathLatencyS(0, 1));
      EXPECT_LT(phase.predicted_s, 1e-3);
    }
  }
  EXPECT_GT(num_messages, 0);
}

}  // namespace
}  // namespace penstock::planner
