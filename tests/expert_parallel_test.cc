// What expert parallelism costs: the collectives of planned training steps of the model moe, by
// kind and bytes, and the memory of the experts.

#include <algorithm>
#include <cstdint>
#include <map>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"

#include "graph/models/model.h"
#include "graph/models/moe.h"
#include "graph/training.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"
#include "tests/support/planner_fixture.h"

namespace penstock::testing {
namespace {

using graph::ModelConfig;
using graph::Phase;
using planner::Plan;
using planner::Strategy;

// Bytes that the first device receives in one step, by kind of collective.
using ExpertTraffic = std::map<CollectiveKind, int64_t>;

ExpertTraffic TrafficOf(const Plan& plan) {
  ExpertTraffic traffic;
  for (size_t i = 0; i < plan.collectives.size(); ++i) {
    const CollectiveSpec& spec = plan.collectives[i];
    if (std::find(spec.devices.begin(), spec.devices.end(), 0u) == spec.devices.end()) continue;
    const auto n = static_cast<int64_t>(spec.devices.size());
    const int64_t in = InputCount(spec, 0);
    const int64_t out = OutputCount(spec, 0);
    int64_t elements = 0;
    switch (spec.kind) {
      case CollectiveKind::kAllReduce:
        elements = 2 * in * (n - 1) / n;
        break;
      case CollectiveKind::kReduceScatter:
        elements = in - out;
        break;
      case CollectiveKind::kAllToAll:
        elements = out - spec.counts[0];
        break;
      default:
        elements = out - in;
    }
    const int64_t times = plan.collective_per_microbatch[i] ? plan.num_microbatches : 1;
    traffic[spec.kind] += elements * static_cast<int64_t>(ByteSize(spec.dtype)) * times;
  }
  return traffic;
}

int64_t Total(const ExpertTraffic& traffic) {
  int64_t total = 0;
  for (const auto& [kind, bytes] : traffic) total += bytes;
  return total;
}

bool IsOfExperts(std::string_view name) {
  return graph::MatchesPattern("*.moe.w1*", name) || graph::MatchesPattern("*.moe.w2*", name);
}

class ExpertParallelTest : public PlannerFixture {
 protected:
  static constexpr int64_t kBatch = 16;

  // Two layers of 8 experts, 2 for each token; an expert has 20 places for the 64 tokens of a
  // sequence.
  static ModelConfig Config() {
    ModelConfig config;
    config.layers = 2;
    config.width = 32;
    config.heads = 2;
    config.context = 64;
    config.dropout = 0;
    return config;
  }

  static int64_t TokenBytes(const ModelConfig& config, int64_t devices, int64_t batch = kBatch) {
    return batch / devices * config.context * config.width * 4;
  }
  // Of a device's share of the tokens at the experts.
  static int64_t PlaceBytes(const ModelConfig& config, int64_t devices) {
    const int64_t places = config.experts * ExpertCapacity(config, graph::ModelUse::kTrain);
    return kBatch / devices * places * config.width * 4;
  }

  graph::Graph TrainingGraph(const ModelConfig& config, const Strategy& strategy,
                             int64_t microbatches = 1, int64_t batch = kBatch) const {
    const graph::ModelRegistry models = graph::BuiltinModels();
    const graph::Model& model = *models.FindModel("moe");
    absl::StatusOr<graph::Graph> forward =
        graph::BuildModelGraph(ops_, model, config, graph::ModelUse::kTrain, batch);
    EXPECT_TRUE(forward.ok()) << forward.status();
    absl::StatusOr<graph::Graph> graph =
        graph::BuildTrainingGraph(ops_, *std::move(forward), graph::TrainingOptions());
    EXPECT_TRUE(graph.ok()) << graph.status();
    absl::Status status =
        planner::ApplyStrategy(strategy, microbatches, model.tensor_splits, *graph);
    EXPECT_TRUE(status.ok()) << status;
    status = planner::AssignStages(strategy.num_stages(), *graph);
    EXPECT_TRUE(status.ok()) << status;
    return *std::move(graph);
  }

  // Redistributions by operator, of the forward pass, or of the backward pass without the update.
  static std::map<std::string, int> Redistributions(const graph::Graph& lowered, bool is_forward) {
    std::map<std::string, int> counts;
    for (const graph::Node& node : lowered.nodes()) {
      const std::string op(node.op->name());
      const bool is_collective =
          op.starts_with("all_") || op == "reduce_scatter" || op == "permute";
      if (!is_collective || node.phase == Phase::kUpdate) continue;
      if ((node.phase == Phase::kForward) != is_forward) continue;
      const std::string& name = lowered.value(node.results[0]).name;
      EXPECT_FALSE(IsOfExperts(name) && op == "all_gather") << "weights are gathered: " << name;
      ++counts[op];
    }
    return counts;
  }

  // Bytes of the parameters that a device holds, of experts or of the rest.
  static int64_t ParameterBytes(const Plan& plan, uint32_t device, bool of_experts) {
    int64_t bytes = 0;
    for (const planner::StatePlan& state : plan.states) {
      if (!state.is_parameter || IsOfExperts(state.name) != of_experts) continue;
      for (const planner::StatePlacement& placement : state.placements) {
        if (placement.device == device) bytes += static_cast<int64_t>(placement.tile.num_bytes());
      }
    }
    return bytes;
  }
};

// Two all_to_alls a layer forward and two backward, of nothing but the tokens at the experts; no
// gather. Gradients of experts are not reduced at all, because a device has all tokens of its
// experts.
TEST_F(ExpertParallelTest, TokensMoveTwiceALayerEachWay) {
  const ModelConfig config = Config();
  const Strategy strategy = {.dp = 4, .ep = 4};
  const graph::Graph lowered = Lower(TrainingGraph(config, strategy));
  std::map<std::string, int> forward = Redistributions(lowered, /*is_forward=*/true);
  std::map<std::string, int> backward = Redistributions(lowered, /*is_forward=*/false);
  EXPECT_EQ(forward, (std::map<std::string, int>{{"all_to_all", 4}, {"all_reduce", 1}}));  // loss
  EXPECT_EQ(backward["all_to_all"], 4);
  backward.erase("all_to_all");
  backward.erase("all_reduce");
  EXPECT_THAT(backward, ::testing::IsEmpty());
  for (const std::string& statement : Statements(lowered, "all_to_all")) {
    EXPECT_THAT(statement, ::testing::HasSubstr(" : f32[8, 16, 20, 32] @["));
  }
  for (const std::string& statement : Statements(lowered, "all_reduce")) {
    EXPECT_THAT(statement, ::testing::Not(::testing::HasSubstr(".moe.w")));
  }

  const Plan plan = Compile(TrainingGraph(config, strategy));
  ExpertTraffic traffic = TrafficOf(plan);
  EXPECT_EQ(traffic[CollectiveKind::kAllToAll], 8 * PlaceBytes(config, 4) * 3 / 4);
  // Gradients of the other parameters; the loss and the norm are a few scalars.
  const int64_t reduced = 2 * ParameterBytes(plan, 0, /*of_experts=*/false) * 3 / 4;
  EXPECT_GE(traffic[CollectiveKind::kAllReduce], reduced);
  EXPECT_LE(traffic[CollectiveKind::kAllReduce], reduced + 64);
  EXPECT_EQ(traffic.size(), 2u);
}

// With ep below dp, tokens move within groups of ep devices, and gradients of experts are reduced
// over the rest of dp alone.
TEST_F(ExpertParallelTest, GradientsOfExpertsAreReducedOverTheRestOfDataParallelism) {
  const ModelConfig config = Config();
  const Plan plan = Compile(TrainingGraph(config, {.dp = 8, .ep = 4}));
  int64_t expert_elements = 0;
  for (const CollectiveSpec& spec : plan.collectives) {
    if (spec.kind == CollectiveKind::kAllToAll) {
      EXPECT_EQ(spec.devices.size(), 4u);
    }
    if (spec.devices == std::vector<uint32_t>{0, 4}) expert_elements += InputCount(spec, 0);
  }
  const int64_t held = ParameterBytes(plan, 0, /*of_experts=*/true) / 4;
  EXPECT_GE(expert_elements, held);
  EXPECT_LE(expert_elements, held + 8);
  ExpertTraffic traffic = TrafficOf(plan);
  EXPECT_EQ(traffic[CollectiveKind::kAllToAll], 8 * PlaceBytes(config, 8) * 3 / 4);
  const int64_t others = ParameterBytes(plan, 0, /*of_experts=*/false);
  const int64_t reduced = 2 * others * 7 / 8 + 2 * (held * 4) / 2;
  EXPECT_GE(traffic[CollectiveKind::kAllReduce], reduced - 8);
  EXPECT_LE(traffic[CollectiveKind::kAllReduce], reduced + 64);
  EXPECT_EQ(traffic.size(), 2u);
}

TEST_F(ExpertParallelTest, MicrobatchesMoveTheSameBytes) {
  const ModelConfig config = Config();
  ExpertTraffic traffic = TrafficOf(Compile(TrainingGraph(config, {.dp = 4, .ep = 4}, 4)));
  EXPECT_EQ(traffic[CollectiveKind::kAllToAll], 8 * PlaceBytes(config, 4) * 3 / 4);
  EXPECT_EQ(traffic.size(), 2u);
}

// Beside tensor parallelism the experts are split both ways, and nothing of them is gathered.
TEST_F(ExpertParallelTest, TensorParallelismSplitsEachExpert) {
  const ModelConfig config = Config();
  const Strategy strategy = {.dp = 4, .tp = 2, .ep = 4};
  const graph::Graph lowered = Lower(TrainingGraph(config, strategy));
  EXPECT_EQ(Redistributions(lowered, /*is_forward=*/true)["all_to_all"], 4);
  EXPECT_EQ(Redistributions(lowered, /*is_forward=*/false)["all_to_all"], 4);
  EXPECT_THAT(Statements(lowered, "all_gather"), ::testing::IsEmpty());
  const Plan plan = Compile(TrainingGraph(config, strategy));
  const Plan whole = Compile(TrainingGraph(config, {}));
  EXPECT_EQ(ParameterBytes(plan, 0, /*of_experts=*/true) * 8,
            ParameterBytes(whole, 0, /*of_experts=*/true));
}

// Places are top_k * capacity_factor = 2.5 times as many as tokens. Over two devices it is cheaper
// that each gets the other's tokens (as often as there are devices besides it) and adds up what its
// experts make of them: 1 against 2.5 / 2. So the planner gathers and scatters tokens instead, once
// each way, and nothing of the size of the places moves.
TEST_F(ExpertParallelTest, TwoDevicesExchangeTokensWhereThatMovesLess) {
  ModelConfig config = Config();
  const Strategy strategy = {.dp = 2, .ep = 2};
  const graph::Graph lowered = Lower(TrainingGraph(config, strategy));
  EXPECT_THAT(Statements(lowered, "all_to_all"), ::testing::IsEmpty());
  // Tokens and, for each token, two slots and two weights; and back.
  EXPECT_EQ(Redistributions(lowered, /*is_forward=*/true),
            (std::map<std::string, int>{
                {"all_gather", 2 * 3}, {"reduce_scatter", 2}, {"all_reduce", 1}}));
  const ExpertTraffic gathered = TrafficOf(Compile(TrainingGraph(config, strategy)));
  const int64_t exchanged =
      gathered.at(CollectiveKind::kAllGather) + gathered.at(CollectiveKind::kReduceScatter);
  EXPECT_GE(exchanged, 2 * 4 * TokenBytes(config, 2));
  EXPECT_LT(exchanged, 8 * PlaceBytes(config, 2) / 2);

  // With one expert a token there are 1.25 places a token: 1.25 / 2 against 1.
  config.top_k = 1;
  const ExpertTraffic moved = TrafficOf(Compile(TrainingGraph(config, strategy)));
  EXPECT_EQ(moved.at(CollectiveKind::kAllToAll), 8 * PlaceBytes(config, 2) / 2);
  EXPECT_EQ(moved.size(), 2u);
}

TEST_F(ExpertParallelTest, MemoryOfExpertsIsDividedByEp) {
  const ModelConfig config = Config();
  const Plan whole = Compile(TrainingGraph(config, {.dp = 8}));
  const int64_t experts = ParameterBytes(whole, 0, /*of_experts=*/true);
  EXPECT_EQ(experts, 2 * 2 * 8 * 32 * 128 * 4);
  for (const int64_t ep : {2, 4, 8}) {
    const Plan plan = Compile(TrainingGraph(config, {.dp = 8, .ep = ep}));
    for (uint32_t device = 0; device < 8; ++device) {
      EXPECT_EQ(ParameterBytes(plan, device, /*of_experts=*/true), experts / ep) << ep;
      EXPECT_EQ(ParameterBytes(plan, device, /*of_experts=*/false),
                ParameterBytes(whole, device, /*of_experts=*/false))
          << ep;
    }
    // The moments of the optimiser too.
    EXPECT_EQ(whole.devices[0].state_bytes - plan.devices[0].state_bytes,
              static_cast<uint64_t>(3 * (experts - experts / ep)));
  }
}

// Sixteen experts of width 1,024 on four devices, batch 32: their gradients are far larger than
// their tokens.
TEST_F(ExpertParallelTest, WideExpertsMoveFewerBytesThanDataParallelism) {
  ModelConfig config = Config();
  config.layers = 1;
  config.width = 1024;
  config.heads = 8;
  config.experts = 16;
  config.context = 16;
  const int64_t split = Total(TrafficOf(Compile(TrainingGraph(config, {.dp = 4, .ep = 4}, 1, 32))));
  const int64_t whole = Total(TrafficOf(Compile(TrainingGraph(config, {.dp = 4}, 1, 32))));
  EXPECT_LT(split * 10, whole) << split << " bytes with ep, " << whole << " without";
}

}  // namespace
}  // namespace penstock::testing
