#include "graph/gradients.h"

#include <algorithm>

#include "gtest/gtest.h"

#include "graph/builder.h"
#include "graph/text.h"

namespace penstock::graph {
namespace {

class GradientsTest : public ::testing::Test {
 protected:
  Graph Parse(std::string_view text) {
    auto graph = ParseGraph(text, "test", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : Graph();
  }
  Graph Gradients(std::string_view text) {
    auto graph = AddGradients(ops_, Parse(text));
    EXPECT_TRUE(graph.ok()) << graph.status();
    return graph.ok() ? *std::move(graph) : Graph();
  }
  std::string Error(std::string_view text) {
    const auto graph = AddGradients(ops_, Parse(text));
    return graph.ok() ? "" : std::string(graph.status().message());
  }
  static const Node& Producer(const Graph& graph, std::string_view name) {
    const ValueId value = graph.FindValue(name);
    EXPECT_NE(value, kNoValue) << name << " in\n" << PrintGraph(graph);
    return graph.node(graph.value(value).producer);
  }

  const OpRegistry ops_ = BuiltinOps();
};

constexpr std::string_view kTwoLayers = R"(
  graph g {
    %x = input : f32[8, 16]
    %w1 = parameter : f32[16, 32]
    %w2 = parameter : f32[32, 4]
    %h = matmul(%x, %w1) : f32[8, 32] stage 0
    %a = relu(%h) : f32[8, 32] stage 0
    %y = matmul(%a, %w2) : f32[8, 4] stage 1
    %s = reduce_sum(%y) {axes=[0, 1]} : f32[] stage 1
    return %s
  })";

TEST_F(GradientsTest, ReturnsLossAndOneGradientAParameter) {
  const Graph graph = Gradients(kTwoLayers);
  ASSERT_EQ(graph.returns().size(), 3);
  EXPECT_EQ(graph.value(graph.returns()[0].value).name, "s");
  EXPECT_EQ(graph.value(graph.returns()[1].value).name, "w1.grad");
  EXPECT_EQ(graph.value(graph.returns()[2].value).name, "w2.grad");
  EXPECT_EQ(graph.value(graph.returns()[1].value).type, (TensorType{DType::kF32, {16, 32}}));
}

TEST_F(GradientsTest, TellsInputFromWeightGradients) {
  const Graph graph = Gradients(kTwoLayers);
  for (std::string_view name : {"s.grad", "y.grad", "a.grad", "h.grad"}) {
    EXPECT_EQ(Producer(graph, name).phase, Phase::kBackward) << name;
  }
  for (std::string_view name : {"w1.grad", "w2.grad"}) {
    EXPECT_EQ(Producer(graph, name).phase, Phase::kWeightBackward) << name;
  }
  EXPECT_EQ(graph.FindValue("x.grad"), kNoValue);
}

TEST_F(GradientsTest, BackwardNodesFollowTheirForwardNode) {
  const Graph graph = Gradients(kTwoLayers);
  EXPECT_EQ(Producer(graph, "w1.grad").stage, 0);
  EXPECT_EQ(Producer(graph, "w2.grad").stage, 1);
  EXPECT_EQ(Producer(graph, "a.grad").stage, 1);
  EXPECT_EQ(Producer(graph, "h.grad").stage, 0);
  const NodeId forward = Producer(graph, "w1.grad").forward;
  ASSERT_NE(forward, kNoNode);
  EXPECT_EQ(&graph.node(forward), &Producer(graph, "h"));
  EXPECT_EQ(Producer(graph, "h").forward, kNoNode);
}

// Everything that is left of the backward part leads to a gradient that is returned.
TEST_F(GradientsTest, LeavesOutWhatNobodyNeeds) {
  const Graph graph = Gradients(kTwoLayers);
  const auto users = graph.Users();
  for (ValueId value = 0; value < graph.num_values(); ++value) {
    const bool is_returned = std::any_of(graph.returns().begin(), graph.returns().end(),
                                         [&](const Return& r) { return r.value == value; });
    const Node& producer = graph.node(graph.value(value).producer);
    if (producer.phase == Phase::kForward || producer.results.size() > 1) continue;
    EXPECT_TRUE(is_returned || !users[value].empty()) << graph.value(value).name;
  }
}

TEST_F(GradientsTest, WeightOnlyPathsAreWeightGradients) {
  const Graph graph = Gradients(R"(
    graph g {
      %x = input : f32[8, 16]
      %w = parameter : f32[32, 16]
      %t = transpose(%w) {permutation=[1, 0]} : f32[16, 32]
      %y = matmul(%x, %t) : f32[8, 32]
      %s = sum_squares(%y) : f32[]
      return %s
    })");
  EXPECT_EQ(Producer(graph, "t.grad").phase, Phase::kWeightBackward);
  EXPECT_EQ(Producer(graph, "w.grad").phase, Phase::kWeightBackward);
  EXPECT_EQ(Producer(graph, "y.grad").phase, Phase::kBackward);
}

TEST_F(GradientsTest, SumsOverSeveralUses) {
  const Graph graph = Gradients(R"(
    graph g {
      %w = parameter : f32[4] stage 3
      %a = exp(%w) : f32[4]
      %b = mul(%a, %w) : f32[4]
      %s = sum_squares(%b) : f32[]
      return %s
    })");
  const Node& sum = Producer(graph, "w.grad");
  EXPECT_EQ(sum.op->name(), "add");
  EXPECT_EQ(sum.stage, 3);
}

TEST_F(GradientsTest, BindsResidualsAndKeepsNames) {
  const Graph graph = Gradients(R"(
    mesh m = [dp=2]
    graph g {
      %x = input : f32[8, 16] @[dp, _]
      %w = parameter : f32[16]
      %y = rms_norm(%x, %w) {epsilon=0.001} : f32[8, 16] @[dp, ?]
      %y.1 = neg(%y) : f32[8, 16]
      %s = sum_squares(%y.1) : f32[]
      return %s
    })");
  const Node& norm = Producer(graph, "y");
  ASSERT_EQ(norm.results.size(), 2);
  EXPECT_EQ(graph.value(norm.results[1]).name, "y.1_");
  EXPECT_EQ(norm.attributes.GetDouble("epsilon", 0), 0.001);
  ASSERT_TRUE(graph.value(norm.results[0]).sharding.has_value());
  EXPECT_EQ(graph.value(norm.results[0]).sharding->dims[0].axes.size(), 1);
  EXPECT_EQ(Producer(graph, "y.1").op->name(), "neg");
}

// The gradient of x reads the sums for the scale and the bias before they are rounded.
TEST_F(GradientsTest, BatchNormsIn16BitsAddUpInF32) {
  const Graph graph = Gradients(R"(
    graph g {
      %x = parameter : bf16[8, 4, 3]
      %scale = parameter : bf16[4]
      %bias = parameter : bf16[4]
      %y = batch_norm(%x, %scale, %bias) : bf16[8, 4, 3]
      %s = sum_squares(%y) : bf16[]
      return %s
    })");
  ASSERT_EQ(graph.returns().size(), 4);
  EXPECT_EQ(graph.value(graph.returns()[1].value).type, (TensorType{DType::kBF16, {8, 4, 3}}));
  for (int i : {2, 3}) {
    EXPECT_EQ(graph.value(graph.returns()[i].value).type, (TensorType{DType::kBF16, {4}}));
  }
  const Node& of_x = Producer(graph, "x.grad");
  ASSERT_EQ(of_x.op->name(), "batch_norm_grad");
  for (int i : {5, 6}) {
    const Value& sum = graph.value(of_x.operands[i]);
    EXPECT_EQ(sum.type, (TensorType{DType::kF32, {4}}));
    EXPECT_EQ(graph.node(sum.producer).op->name(), "batch_norm_weight_grad");
  }
}

TEST_F(GradientsTest, UnreachedParametersGetZeros) {
  const Graph graph = Gradients(R"(
    graph g {
      %w = parameter : f32[4]
      %u = parameter : f32[2, 3] stage 1
      %n = parameter : i64[2]
      %s = sum_squares(%w) : f32[]
      return %s
    })");
  ASSERT_EQ(graph.returns().size(), 4);
  const Node& zeros = Producer(graph, "u.grad");
  EXPECT_EQ(zeros.op->name(), "constant");
  EXPECT_EQ(zeros.stage, 1);
  EXPECT_EQ(zeros.phase, Phase::kWeightBackward);
  EXPECT_EQ(graph.value(graph.returns()[3].value).type, (TensorType{DType::kI64, {2}}));
}

TEST_F(GradientsTest, EndsAtIntegersAndComparisons) {
  const Graph graph = Gradients(R"(
    graph g {
      %w = parameter : f32[4]
      %i = cast(%w) {dtype=i64} : i64[4]
      %f = cast(%i) {dtype=f32} : f32[4]
      %s = sum_squares(%f) : f32[]
      return %s
    })");
  EXPECT_EQ(Producer(graph, "w.grad").op->name(), "constant");
}

// The shape of a constant is that of its statement.
TEST_F(GradientsTest, LeavesConstantsAlone) {
  const Graph graph = Gradients(R"(
    graph g {
      %w = parameter : f32[4]
      %c = constant {value=2.0} : f32[4]
      %y = mul(%w, %c) : f32[4]
      %s = sum_squares(%y) : f32[]
      return %s
    })");
  EXPECT_EQ(Producer(graph, "w.grad").op->name(), "mul");
  EXPECT_EQ(graph.FindValue("c.grad"), kNoValue);
}

TEST_F(GradientsTest, SayWhatIsWrong) {
  EXPECT_EQ(Error(R"(graph g {
                       %w = parameter : f32[4]
                       return %w
                     })"),
            "gradients: %w is f32[4]; gradients are taken of a float scalar");
  EXPECT_EQ(Error(R"(graph g {
                       %w = parameter : f32[]
                       return %w, %w
                     })"),
            "gradients: the graph returns 2 values; gradients are taken of one");
  EXPECT_EQ(Error(R"(graph g {
                       %w = parameter : f32[4]
                       %g = gelu_grad(%w, %w) : f32[4]
                       %s = sum_squares(%g) : f32[]
                       return %s
                     })"),
            "gradients: gelu_grad, which makes %g, has no gradient");
  EXPECT_EQ(Error(R"(graph g {
                       %w = parameter : f32[2, 4]
                       %l = parameter : i64[2]
                       %c, %d, %e = cross_entropy(%w, %l) : f32[2], f32[2], f32[2]
                       %s = sum_squares(%e) : f32[]
                       return %s
                     })"),
            "gradients: %e is an optional result of cross_entropy; gradients flow through the "
            "others only");
}

TEST_F(GradientsTest, ResultVerifiesAndRoundTrips) {
  const Graph graph = Gradients(kTwoLayers);
  const std::string text = PrintGraph(graph);
  const auto parsed = ParseGraph(text, "printed", ops_);
  ASSERT_TRUE(parsed.ok()) << parsed.status() << "\n" << text;
  std::string difference;
  EXPECT_TRUE(GraphsEqual(graph, *parsed, &difference)) << difference;
}

}  // namespace
}  // namespace penstock::graph
