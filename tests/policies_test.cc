// Every policy trains a GPT on four groups of devices: with the numbers of one device, each group
// running its phases in the planned order, in the engine and in the simulator.

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/session/session.h"
#include "base/random.h"
#include "base/strings.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/cluster/presets.h"
#include "planner/compile.h"
#include "planner/policy/order_csv.h"
#include "planner/policy/pipeline.h"
#include "planner/simulator/simulate_plan.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock {
namespace {

using planner::PhaseChoice;
using planner::Plan;

constexpr int64_t kMicrobatches = 8;
constexpr int64_t kBatch = 8;
constexpr int kSteps = 6;

class PoliciesTest : public ::testing::Test {
 protected:
  Plan PlanOf(const planner::Strategy& strategy, const std::string& policy,
              const planner::PolicyRegistry& policies,
              const std::vector<int>& device_groups = {}) const {
    const graph::Model& model = *models_.FindModel("gpt");
    graph::ModelConfig config = model.defaults;
    config.layers = 8;
    config.width = 16;
    config.heads = 2;
    config.context = 8;
    config.dtype = DType::kF64;
    graph::Graph forward =
        *graph::BuildModelGraph(ops_, model, config, graph::ModelUse::kTrain, kBatch);
    graph::Graph graph = *graph::BuildTrainingGraph(ops_, std::move(forward), {});
    EXPECT_TRUE(planner::ApplyStrategy(strategy, kMicrobatches, model.tensor_splits, graph).ok());
    EXPECT_TRUE(planner::AssignStages(strategy.num_stages(), graph).ok());
    planner::CompileOptions options;
    options.policy = policy;
    options.policies = &policies;
    options.kernels = kernels::TraitsOf(kernels_, 1);
    options.chunks_per_group = static_cast<int>(strategy.vpp);
    options.device_groups = device_groups;
    const absl::StatusOr<Plan> plan = planner::Compile(ops_, std::move(graph), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return plan.value_or(Plan());
  }

  struct Training {
    std::vector<double> losses;
    std::vector<actors::TraceEvent> events;
  };
  Training Train(const Plan& plan) const {
    actors::SessionOptions options;
    options.kernels = &kernels_;
    options.policies = &policies_;
    options.trace = true;
    auto session = actors::Session::Start(plan, options);
    EXPECT_TRUE(session.ok()) << session.status();
    Training training;
    for (int step = 0; step < kSteps; ++step) {
      actors::Feeds feeds;
      for (const planner::FeedPlan& feed : plan.feeds) {
        Tensor tensor(feed.type);
        for (int64_t i = 0; i < tensor.num_elements(); ++i) {
          tensor.As<int32_t>()[i] =
              static_cast<int32_t>(RandomWord({7, static_cast<uint32_t>(step), 0}, i) % 100);
        }
        feeds[feed.name] = std::move(tensor);
      }
      const auto result = (*session)->Run(feeds);
      EXPECT_TRUE(result.ok()) << result.status();
      training.losses.push_back(result->fetches[0].second.template As<double>()[0]);
    }
    training.events = (*session)->TakeTrace();
    return training;
  }

  // The phases of a step in the compute lane of a device, in the order in which they began.
  template <typename Event, typename Begin>
  static std::vector<PhaseChoice> OrderOf(const Plan& plan, const std::vector<Event>& events,
                                          uint32_t device, int64_t step, const Begin& begin) {
    std::vector<std::pair<decltype(begin(events[0])), PhaseChoice>> phases;
    for (const Event& event : events) {
      if (event.device != device || event.step != step || event.actor != planner::kNone) continue;
      const planner::PhasePlan& phase = plan.devices[device].phases[event.phase];
      if (phase.lane != planner::Lane::kCompute) continue;
      phases.push_back(
          {begin(event),
           {phase.kind, static_cast<int>(event.microbatch), static_cast<int>(phase.chunk)}});
    }
    std::stable_sort(phases.begin(), phases.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<PhaseChoice> order;
    for (const auto& [when, phase] : phases) order.push_back(phase);
    return order;
  }

  void ExpectTrains(const planner::Strategy& strategy, const std::string& policy,
                    const planner::PolicyRegistry& policies,
                    const std::vector<int>& device_groups = {}) const {
    const Plan plan = PlanOf(strategy, policy, policies, device_groups);
    ASSERT_EQ(plan.devices.size(), 4u);
    const Training training = Train(plan);
    const Training alone = Train(PlanOf({}, "1f1b", policies_));
    ASSERT_EQ(training.losses.size(), alone.losses.size());
    for (size_t i = 0; i < alone.losses.size(); ++i) {
      EXPECT_NEAR(training.losses[i], alone.losses[i], 1e-9 * alone.losses[i]) << "step " << i;
    }
    const planner::Machine machine = {*planner::FindClusterPreset("hgx-h100:1")};
    planner::SimulationOptions options;
    options.keeps_events = true;
    const absl::StatusOr<planner::Simulation> simulation =
        planner::SimulatePlan(plan, ops_, policies_, machine, options);
    ASSERT_TRUE(simulation.ok()) << simulation.status();
    for (uint32_t d = 0; d < 4; ++d) {
      const std::vector<PhaseChoice>& planned = plan.stages[plan.devices[d].stage].order;
      EXPECT_FALSE(planned.empty());
      EXPECT_EQ(OrderOf(plan, training.events, d, kSteps - 1,
                        [](const actors::TraceEvent& event) { return event.begin_ns; }),
                planned)
          << "device " << d;
      // Phases that take no time in the model begin together.
      const std::vector<PhaseChoice> simulated =
          OrderOf(plan, simulation->events, d, 2,
                  [](const planner::SimulatedEvent& event) { return event.begin_s; });
      EXPECT_EQ(simulated, planned) << "device " << d;
    }
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const graph::ModelRegistry models_ = graph::BuiltinModels();
  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
  const planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
};

class NamedPolicyTest : public PoliciesTest, public ::testing::WithParamInterface<std::string> {};

TEST_P(NamedPolicyTest, TrainsWithTheNumbersOfOneDeviceInThePlannedOrder) {
  const planner::PolicyNeeds needs = policies_.Find(GetParam())->needs();
  planner::Strategy strategy;
  strategy.pp = 4;
  strategy.vpp = needs.min_chunks;
  ExpectTrains(strategy, GetParam(), policies_);
}

INSTANTIATE_TEST_SUITE_P(All, NamedPolicyTest,
                         ::testing::Values("gpipe", "1f1b", "eager-1f1b", "interleaved",
                                           "looped-bfs", "zb-h1", "zb-h2", "zb-1p", "zb-2p", "zb-v",
                                           "v-half", "v-min", "dualpipev", "auto"),
                         [](const auto& test) {
                           std::string name = test.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

// Orders that were written to a file and read again.
TEST_F(PoliciesTest, OrdersOfAFileTrainToo) {
  const planner::Pipeline pipeline =
      *planner::MakePipeline({.num_groups = 4, .num_microbatches = kMicrobatches});
  const std::string csv =
      planner::OrdersToCsv(pipeline, *planner::PlanPipeline(*policies_.Find("zb-h2"), pipeline));
  planner::PolicyRegistry policies = policies_;
  ASSERT_TRUE(
      policies.Add(planner::MakeOrdersPolicy("o.csv", *planner::ParseOrdersCsv(csv, "o.csv")))
          .ok());
  planner::Strategy strategy;
  strategy.pp = 4;
  ExpectTrains(strategy, "o.csv", policies);
}

// Stages on the groups of devices in another order: the first of the pipeline on device 2.
TEST_F(PoliciesTest, GroupsOfDevicesInAnyOrderTrainToo) {
  const std::vector<int> device_groups = {2, 0, 3, 1};
  for (const char* policy : {"1f1b", "zb-v"}) {
    SCOPED_TRACE(policy);
    planner::Strategy strategy;
    strategy.pp = 4;
    strategy.vpp = policies_.Find(policy)->needs().min_chunks;
    ExpectTrains(strategy, policy, policies_, device_groups);
    const Plan plan = PlanOf(strategy, policy, policies_, device_groups);
    const auto embedding =
        std::find_if(plan.states.begin(), plan.states.end(),
                     [](const planner::StatePlan& state) { return state.name == "wte"; });
    ASSERT_NE(embedding, plan.states.end());
    EXPECT_EQ(embedding->placements[0].device, 2u);
  }
}

// They are shown, and refused where they would run.
TEST_F(PoliciesTest, PlansHaveEachStageOnOneGroup) {
  const graph::Model& model = *models_.FindModel("gpt");
  for (const std::string policy : {"chimera", "dualpipe"}) {
    graph::Graph graph = *graph::BuildTrainingGraph(
        ops_, *graph::BuildModelGraph(ops_, model, model.defaults, graph::ModelUse::kTrain, kBatch),
        {});
    ASSERT_TRUE(planner::AssignStages(4, graph).ok());
    planner::CompileOptions options;
    options.policy = policy;
    options.policies = &policies_;
    options.kernels = kernels::TraitsOf(kernels_, 1);
    options.chunks_per_group = 2;
    const absl::Status status = planner::Compile(ops_, std::move(graph), options).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("on two groups of devices"));
  }
}

}  // namespace
}  // namespace penstock
