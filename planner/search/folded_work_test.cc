#include "planner/search/folded_work.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/builder.h"
#include "graph/layers.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "planner/cluster/presets.h"
#include "planner/compile.h"
#include "planner/pass.h"
#include "planner/search/cut_stages.h"
#include "planner/search/estimate.h"
#include "planner/search/join_stages.h"
#include "planner/search/search.h"
#include "planner/strategy/stages.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {
namespace {

constexpr int64_t kBatch = 64;
constexpr int64_t kTokens = 256;
constexpr int64_t kWidth = 512;
constexpr int64_t kHeads = 8;

class FoldedWorkTest : public ::testing::Test {
 protected:
  // Blocks of attention and a product, and narrower ones behind them; `cross`: beside them, and
  // each reads what the others make.
  graph::Graph EncoderDecoder(int encoders, int decoders, bool cross = true) {
    graph::Graph graph("encoder_decoder");
    graph::GraphBuilder builder(ops_, graph);
    graph::LayerBuilder layers(builder, DType::kF32, 0);
    const TensorType type = {DType::kF32, {kBatch, kTokens, kWidth}};
    graph::ValueId x = builder.Declare("input", "x", type);
    for (int i = 0; i < encoders; ++i) {
      const graph::NameScope scope(builder, StrCat("e", i));
      x = builder.Add("add", {x, layers.CausalSelfAttention(layers.LayerNorm(x, "ln"), "attn",
                                                            kHeads, 0.02, 0.02)});
      x = builder.Add("add",
                      {x, layers.Mlp(layers.LayerNorm(x, "ln2"), "mlp", 4 * kWidth, 0.02, 0.02)});
    }
    const graph::ValueId encoded = layers.LayerNorm(x, "encoded");
    graph::ValueId y = cross ? builder.Declare("input", "y", type) : encoded;
    for (int i = 0; i < decoders; ++i) {
      const graph::NameScope scope(builder, StrCat("d", i));
      graph::ValueId read = layers.LayerNorm(y, "ln");
      if (cross) read = builder.Add("add", {read, encoded});
      y = builder.Add("add", {y, layers.Mlp(read, "mlp", 2 * kWidth, 0.02, 0.02)});
    }
    const graph::ValueId loss =
        builder.Add("reduce_mean", {builder.Add("square", {layers.LayerNorm(y, "out")})},
                    {{"axes", graph::AttrValue::Ints({0, 1, 2})}}, "loss");
    EXPECT_TRUE(builder.status().ok()) << builder.status();
    graph.mutable_returns().push_back({loss, std::nullopt});
    return graph;
  }

  absl::Status Lower(graph::Graph& graph) const {
    for (const Pass& pass : passes_) {
      if (absl::Status status = pass.run(graph); !status.ok()) return status;
    }
    return absl::OkStatus();
  }

  // Compares the model's work with that of `forward`, segment for segment, and of what passes
  // between stages, however they are joined. `is_exact`: else joined stages may be charged with
  // more.
  void ExpectWorkOfTheWhole(const FoldedModel& model, const graph::Graph& forward,
                            const std::vector<graph::SplitHint>& hints, bool is_exact) const {
    const Machine machine = {*FindClusterPreset("dgx-a100:2")};
    const graph::Graph whole = *graph::BuildTrainingGraph(ops_, forward, {});
    for (const auto& [strategy, microbatches] :
         {std::pair(Strategy{2, 2}, 1), std::pair(Strategy{4, 1}, 4),
          std::pair(Strategy{1, 4}, 2)}) {
      SCOPED_TRACE(ToString(strategy));
      const auto measure = [&](graph::Graph graph) {
        EXPECT_TRUE(ApplyStrategy(strategy, microbatches, hints, graph).ok());
        EXPECT_TRUE(Lower(graph).ok());
        return *MeasureWork(graph, machine, {.num_groups = 4});
      };
      graph::Graph cut = whole;
      ASSERT_TRUE(AssignStagesAt(model.starts(), cut).ok());
      const ModelWork expected = measure(cut);
      const ModelWork unfolded = model.Unfold(measure(model.graph()));
      ASSERT_EQ(unfolded.stages.size(), expected.stages.size());
      for (size_t s = 0; s < expected.stages.size(); ++s) {
        const StageWork& a = unfolded.stages[s];
        const StageWork& b = expected.stages[s];
        EXPECT_NEAR(a.forward.seconds(), b.forward.seconds(), 1e-6 * b.forward.seconds()) << s;
        EXPECT_NEAR(a.backward.seconds(), b.backward.seconds(), 1e-6 * b.backward.seconds()) << s;
        EXPECT_DOUBLE_EQ(a.memory.parameters, b.memory.parameters) << s;
        EXPECT_NEAR(a.memory.activations, b.memory.activations, 64) << s;
        EXPECT_NEAR(a.memory.gradients, b.memory.gradients, 64) << s;
      }
      for (const int num_stages : {2, 4}) {
        const std::vector<double> cost(expected.stages.size(), 1);
        const std::vector<int> starts = CutEvenly(cost, num_stages);
        EstimateOptions options;
        options.policy = policies_.Find("1f1b");
        const StepEstimate a = *EstimateStep(Join(unfolded, starts), machine, options);
        const StepEstimate b = *EstimateStep(Join(expected, starts), machine, options);
        EXPECT_NEAR(a.step_s, b.step_s, (is_exact ? 1e-4 : 1e-2) * b.step_s);
        for (size_t g = 0; g < b.groups.size(); ++g) {
          const double bytes = a.groups[g].memory.total();
          const double expected_bytes = b.groups[g].memory.total();
          if (is_exact) {
            EXPECT_NEAR(bytes, expected_bytes, 1e-3 * expected_bytes);
          } else {
            EXPECT_GE(bytes, (1 - 1e-3) * expected_bytes);
          }
        }
      }
    }
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const PolicyRegistry policies_ = BuiltinPolicies();
  const std::vector<Pass> passes_ = EstimatePasses(ops_);
  const std::vector<graph::SplitHint> hints_ = {
      {"*.attn.qkv_w", 2, "heads"}, {"*.attn.qkv_b", 1, "heads"}, {"*.attn.proj_w", 0, "heads"},
      {"*.mlp.w1", 1, "units"},     {"*.mlp.b1", 0, "units"},     {"*.mlp.w2", 0, "units"}};
};

TEST_F(FoldedWorkTest, ThreeLayersOfEachKindAreKept) {
  const FoldedModel small = *FoldedModel::Create(ops_, EncoderDecoder(6, 8), hints_, {});
  ASSERT_EQ(small.runs().size(), 2u);
  EXPECT_EQ(small.runs()[0].num_copies, 6);
  EXPECT_EQ(small.runs()[1].num_copies, 8);
  const FoldedModel three = *FoldedModel::Create(ops_, EncoderDecoder(3, 3), hints_, {});
  EXPECT_EQ(small.graph().num_nodes(), three.graph().num_nodes());
  const FoldedModel large = *FoldedModel::Create(ops_, EncoderDecoder(24, 32), hints_, {});
  EXPECT_EQ(large.graph().num_nodes(), three.graph().num_nodes());
  EXPECT_GE(large.num_segments(), 24 + 32);
}

// Gradients of values that all layers read are sums over layers, which stages are charged with as
// if they sent their terms: never less than there is.
class TwoKindsTest : public FoldedWorkTest, public ::testing::WithParamInterface<bool> {};

TEST_P(TwoKindsTest, WorkIsThatOfTheWholeModel) {
  const bool cross = GetParam();
  const graph::Graph forward = EncoderDecoder(7, 9, cross);
  const FoldedModel model = *FoldedModel::Create(ops_, forward, hints_, {});
  ASSERT_EQ(model.runs().size(), 2u);
  ExpectWorkOfTheWhole(model, forward, hints_, !cross);
}

INSTANTIATE_TEST_SUITE_P(WithAndWithoutCrossReads, TwoKindsTest, ::testing::Bool());

TEST_F(FoldedWorkTest, WorkOfAGptIsThatOfTheWholeModel) {
  const graph::ModelRegistry models = graph::BuiltinModels();
  const graph::Model& gpt = *models.FindModel("gpt");
  graph::ModelConfig config = models.FindPreset("gpt2-124m")->config;
  config.layers = 9;
  const graph::Graph forward =
      *graph::BuildModelGraph(ops_, gpt, config, graph::ModelUse::kTrain, 32);
  const FoldedModel model = *FoldedModel::Create(ops_, forward, gpt.tensor_splits, {});
  ASSERT_EQ(model.runs().size(), 1u);
  EXPECT_EQ(model.runs()[0].num_copies, 9);
  const graph::Graph whole = *graph::BuildTrainingGraph(ops_, forward, {});
  EXPECT_LT(model.graph().num_nodes(), whole.num_nodes() / 2);
  ExpectWorkOfTheWhole(model, forward, gpt.tensor_splits, /*is_exact=*/true);
}

// So a search takes no longer for more layers.
TEST_F(FoldedWorkTest, MoreLayersOfTwoKindsAreEstimatedByAsManyNodes) {
  const Machine machine = {*FindClusterPreset("dgx-a100:1")};
  for (const int times : {1, 4}) {
    const graph::Graph forward = EncoderDecoder(6 * times, 6 * times);
    SearchProblem problem;
    problem.ops = &ops_;
    problem.forward = &forward;
    problem.hints = hints_;
    problem.machine = &machine;
    problem.policies = {policies_.Find("1f1b")};
    problem.num_devices = 8;
    int most_nodes = 0;
    problem.lower = [&](graph::Graph& graph) {
      most_nodes = std::max(most_nodes, graph.num_nodes());
      return Lower(graph);
    };
    const absl::StatusOr<SearchResult> result = FindStrategy(problem);
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->num_layers, 12 * times);
    const FoldedModel three = *FoldedModel::Create(ops_, EncoderDecoder(3, 3), hints_, {});
    EXPECT_EQ(most_nodes, three.graph().num_nodes());
  }
}

}  // namespace
}  // namespace penstock::planner
