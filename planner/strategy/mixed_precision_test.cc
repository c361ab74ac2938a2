#include "planner/strategy/mixed_precision.h"

#include <map>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "graph/gradients.h"
#include "graph/models/convnet.h"
#include "graph/models/gpt.h"
#include "graph/models/model.h"
#include "graph/op.h"
#include "graph/text.h"
#include "graph/training.h"
#include "graph/verify.h"
#include "planner/opt.h"
#include "planner/strategy/strategy.h"

namespace penstock::planner {
namespace {

using ::testing::AnyOf;

class MixedPrecisionTest : public ::testing::Test {
 protected:
  // `text` and `expected` as the pass prints them.
  void ExpectRewritten(const std::string& text, const std::string& expected) const {
    const auto actual = Optimize(text, "in.pst", "mixed-precision:bf16,verify", ops_);
    const auto wanted = Optimize(expected, "out.pst", "verify", ops_);
    ASSERT_TRUE(actual.ok()) << actual.status();
    ASSERT_TRUE(wanted.ok()) << wanted.status();
    EXPECT_EQ(*actual, *wanted);
  }

  graph::Graph Training() const {
    graph::ModelConfig config = graph::GptModel().defaults;
    config.layers = 2;
    config.width = 64;
    config.heads = 2;
    config.context = 16;
    return Training(graph::GptModel(), config);
  }

  graph::Graph Training(const graph::Model& model, const graph::ModelConfig& config) const {
    auto forward =
        graph::BuildModelGraph(ops_, model, config, graph::ModelUse::kTrain, /*batch=*/4);
    EXPECT_TRUE(forward.ok()) << forward.status();
    auto training = graph::BuildTrainingGraph(ops_, *std::move(forward), {});
    EXPECT_TRUE(training.ok()) << training.status();
    return *std::move(training);
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
};

TEST_F(MixedPrecisionTest, CastsOperandsOnceAndKeepsWhatIsReturned) {
  ExpectRewritten(R"(graph g {
  %x = input : f32[4, 8]
  %w = parameter : f32[8, 8]
  %p = matmul(%x, %w) : f32[4, 8]
  %a = gelu(%p) : f32[4, 8]
  %q = matmul(%a, %w) : f32[4, 8]
  %s = softmax(%q) : f32[4, 8]
  %r = add(%s, %q) : f32[4, 8]
  %m = reduce_mean(%a) {axes=[1]} : f32[4]
  return %r, %m, %p
})",
                  R"(graph g {
  %x = input : f32[4, 8]
  %w = parameter : f32[8, 8]
  %x.bf16 = cast(%x) {dtype=bf16} : bf16[4, 8]
  %w.bf16 = cast(%w) {dtype=bf16} : bf16[8, 8]
  %p = matmul(%x.bf16, %w.bf16) : bf16[4, 8]
  %a = gelu(%p) : bf16[4, 8]
  %q = matmul(%a, %w.bf16) {dtype=f32} : f32[4, 8]
  %s = softmax(%q) : f32[4, 8]
  %r = add(%s, %q) : f32[4, 8]
  %m = reduce_mean(%a) {axes=[1], dtype=f32} : f32[4]
  %p.f32 = cast(%p) {dtype=f32} : f32[4, 8]
  return %r, %m, %p.f32
})");
}

TEST_F(MixedPrecisionTest, GradientsOfTheWeightsOfConvolutionsAreF32) {
  ExpectRewritten(R"(graph g {
  %x = input : f32[2, 3, 8, 8]
  %dy = input : f32[2, 4, 6, 6]
  %dw = conv2d_weight_grad(%x, %dy) {kernel=[3, 3]} : f32[4, 3, 3, 3]
  return %dw
})",
                  R"(graph g {
  %x = input : f32[2, 3, 8, 8]
  %dy = input : f32[2, 4, 6, 6]
  %x.bf16 = cast(%x) {dtype=bf16} : bf16[2, 3, 8, 8]
  %dy.bf16 = cast(%dy) {dtype=bf16} : bf16[2, 4, 6, 6]
  %dw = conv2d_weight_grad(%x.bf16, %dy.bf16) {dtype=f32, kernel=[3, 3]} : f32[4, 3, 3, 3]
  return %dw
})");
}

// Its scale and bias are read in 16 bits, its statistics stay f32.
TEST_F(MixedPrecisionTest, NoCastStandsBetweenConvolutionsAndBatchNorms) {
  ExpectRewritten(R"(graph g {
  %x = input : f32[2, 3, 8, 8]
  %w = parameter : f32[4, 3, 3, 3]
  %s = parameter : f32[4]
  %b = parameter : f32[4]
  %u = parameter : f32[5, 4, 3, 3]
  %p = conv2d(%x, %w) : f32[2, 4, 6, 6]
  %n, %m, %v = batch_norm(%p, %s, %b) : f32[2, 4, 6, 6], f32[4], f32[4]
  %a = relu(%n) : f32[2, 4, 6, 6]
  %q = conv2d(%a, %u) : f32[2, 5, 4, 4]
  %sum = reduce_sum(%q) {axes=[0, 1, 2, 3]} : f32[]
  return %sum, %m, %v
})",
                  R"(graph g {
  %x = input : f32[2, 3, 8, 8]
  %w = parameter : f32[4, 3, 3, 3]
  %s = parameter : f32[4]
  %b = parameter : f32[4]
  %u = parameter : f32[5, 4, 3, 3]
  %x.bf16 = cast(%x) {dtype=bf16} : bf16[2, 3, 8, 8]
  %w.bf16 = cast(%w) {dtype=bf16} : bf16[4, 3, 3, 3]
  %p = conv2d(%x.bf16, %w.bf16) : bf16[2, 4, 6, 6]
  %s.bf16 = cast(%s) {dtype=bf16} : bf16[4]
  %b.bf16 = cast(%b) {dtype=bf16} : bf16[4]
  %n, %m, %v = batch_norm(%p, %s.bf16, %b.bf16) : bf16[2, 4, 6, 6], f32[4], f32[4]
  %a = relu(%n) : bf16[2, 4, 6, 6]
  %u.bf16 = cast(%u) {dtype=bf16} : bf16[5, 4, 3, 3]
  %q = conv2d(%a, %u.bf16) : bf16[2, 5, 4, 4]
  %sum = reduce_sum(%q) {axes=[0, 1, 2, 3], dtype=f32} : f32[]
  return %sum, %m, %v
})");
}

TEST_F(MixedPrecisionTest, BatchNormsWithGivenStatisticsReadThemInF32) {
  ExpectRewritten(R"(graph g {
  %x = input : f32[2, 4, 6, 6]
  %s = parameter : f32[4]
  %b = parameter : f32[4]
  %m = state : f32[4]
  %v = state : f32[4]
  %y = batch_norm_inference(%x, %s, %b, %m, %v) : f32[2, 4, 6, 6]
  %sum = reduce_sum(%y) {axes=[0, 1, 2, 3]} : f32[]
  return %sum
})",
                  R"(graph g {
  %x = input : f32[2, 4, 6, 6]
  %s = parameter : f32[4]
  %b = parameter : f32[4]
  %m = state : f32[4]
  %v = state : f32[4]
  %x.bf16 = cast(%x) {dtype=bf16} : bf16[2, 4, 6, 6]
  %s.bf16 = cast(%s) {dtype=bf16} : bf16[4]
  %b.bf16 = cast(%b) {dtype=bf16} : bf16[4]
  %y = batch_norm_inference(%x.bf16, %s.bf16, %b.bf16, %m, %v) : bf16[2, 4, 6, 6]
  %sum = reduce_sum(%y) {axes=[0, 1, 2, 3], dtype=f32} : f32[]
  return %sum
})");
}

// The gradient of the operand reads the sums, too, and as they are.
TEST_F(MixedPrecisionTest, GradientsOfTheWeightsOfBatchNormsAreF32) {
  ExpectRewritten(R"(graph g {
  %dy = input : f32[2, 4, 6, 6]
  %x = input : f32[2, 4, 6, 6]
  %s = parameter : f32[4]
  %m = input : f32[4]
  %v = input : f32[4]
  %ds, %db = batch_norm_weight_grad(%dy, %x, %m, %v) : f32[4], f32[4]
  %dx = batch_norm_grad(%dy, %x, %s, %m, %v, %ds, %db) : f32[2, 4, 6, 6]
  %sum = reduce_sum(%dx) {axes=[0, 1, 2, 3]} : f32[]
  return %sum, %ds, %db
})",
                  R"(graph g {
  %dy = input : f32[2, 4, 6, 6]
  %x = input : f32[2, 4, 6, 6]
  %s = parameter : f32[4]
  %m = input : f32[4]
  %v = input : f32[4]
  %dy.bf16 = cast(%dy) {dtype=bf16} : bf16[2, 4, 6, 6]
  %x.bf16 = cast(%x) {dtype=bf16} : bf16[2, 4, 6, 6]
  %ds, %db = batch_norm_weight_grad(%dy.bf16, %x.bf16, %m, %v) {dtype=f32} : f32[4], f32[4]
  %s.bf16 = cast(%s) {dtype=bf16} : bf16[4]
  %dx = batch_norm_grad(%dy.bf16, %x.bf16, %s.bf16, %m, %v, %ds, %db) : bf16[2, 4, 6, 6]
  %sum = reduce_sum(%dx) {axes=[0, 1, 2, 3], dtype=f32} : f32[]
  return %sum, %ds, %db
})");
}

// What layers add to, from the embedding on.
TEST_F(MixedPrecisionTest, ResidualSumsAreF32WhereThatIsAskedFor) {
  for (const bool residuals_in_f32 : {false, true}) {
    graph::Graph graph = Training();
    ASSERT_TRUE(MixPrecision(ops_, DType::kBF16, graph, residuals_in_f32).ok());
    ASSERT_TRUE(graph::VerifyGraph(graph).ok()) << graph::VerifyGraph(graph);
    int num_sums = 0;
    for (const graph::Node& node : graph.nodes()) {
      const std::string_view op = node.op->name();
      const bool is_sum = op == "embedding" || op == "add";
      if (node.phase != graph::Phase::kForward || !is_sum) continue;
      const graph::Value& value = graph.value(node.results[0]);
      if (value.type.shape.size() != 3) continue;
      ++num_sums;
      EXPECT_EQ(value.type.dtype, residuals_in_f32 ? DType::kF32 : DType::kBF16) << value.name;
    }
    EXPECT_GE(num_sums, 5);  // the embedding and two a layer
  }
}

// Of tensors like images only the input and the weights of convolutions.
TEST_F(MixedPrecisionTest, ATrainingStepOfAConvnetCastsNoActivations) {
  graph::ModelConfig config = graph::ConvnetModel().defaults;
  config.width = 4;
  graph::Graph graph = Training(graph::ConvnetModel(), config);
  ASSERT_TRUE(MixPrecision(ops_, DType::kBF16, graph).ok());
  ASSERT_TRUE(graph::VerifyGraph(graph).ok()) << graph::VerifyGraph(graph);
  for (const graph::Node& node : graph.nodes()) {
    if (node.op->name() != "cast") continue;
    const graph::Value& value = graph.value(node.operands[0]);
    if (value.type.shape.size() != 4) continue;
    EXPECT_THAT(std::string(graph.node(value.producer).op->name()), AnyOf("input", "parameter"))
        << value.name;
  }
}

// More operands than a mask of operands has bits.
TEST_F(MixedPrecisionTest, ManyOperandsFollowAlike) {
  constexpr int kNumOperands = 40;
  std::string operands = "%p";
  for (int i = 1; i < kNumOperands; ++i) operands += ", %p";
  const std::string inputs = "graph g {\n  %x = input : f32[4, 8]\n  %w = parameter : f32[8, 8]\n";
  const std::string joined = "  %c = concat(" + operands + ") {axis=0} : ";
  ExpectRewritten(inputs + "  %p = matmul(%x, %w) : f32[4, 8]\n" + joined +
                      "f32[160, 8]\n"
                      "  %q = matmul(%c, %w) : f32[160, 8]\n"
                      "  return %q\n}",
                  inputs +
                      "  %x.bf16 = cast(%x) {dtype=bf16} : bf16[4, 8]\n"
                      "  %w.bf16 = cast(%w) {dtype=bf16} : bf16[8, 8]\n"
                      "  %p = matmul(%x.bf16, %w.bf16) : bf16[4, 8]\n" +
                      joined +
                      "bf16[160, 8]\n"
                      "  %q = matmul(%c, %w.bf16) {dtype=f32} : f32[160, 8]\n"
                      "  return %q\n}");
}

// The backward pass reads %p and %q in f32, %p on a later stage.
TEST_F(MixedPrecisionTest, CastsForTheBackwardPassOnlyWhereItMayReadThem) {
  ExpectRewritten(R"(graph g {
  %x = input : f32[4, 8] stage 0
  %w = parameter : f32[8, 8] stage 0
  %p = matmul(%x, %w) : f32[4, 8] stage 0
  %q = gelu(%p) : f32[4, 8] stage 1
  %r = matmul(%q, %w) : f32[4, 8] stage 1
  %t = softmax(%p) : f32[4, 8] stage 1 phase backward
  %u = softmax(%q) : f32[4, 8] stage 1 phase backward
  return %r, %t, %u
})",
                  R"(graph g {
  %x = input : f32[4, 8] stage 0
  %w = parameter : f32[8, 8] stage 0
  %x.bf16 = cast(%x) {dtype=bf16} : bf16[4, 8] stage 0
  %w.bf16 = cast(%w) {dtype=bf16} : bf16[8, 8] stage 0
  %p = matmul(%x.bf16, %w.bf16) : bf16[4, 8] stage 0
  %q = gelu(%p) : bf16[4, 8] stage 1
  %r = matmul(%q, %w.bf16) {dtype=f32} : f32[4, 8] stage 1
  %p.f32 = cast(%p) {dtype=f32} : f32[4, 8] stage 0
  %t = softmax(%p.f32) : f32[4, 8] stage 1 phase backward
  %q.f32 = cast(%q) {dtype=f32} : f32[4, 8] stage 1 phase backward
  %u = softmax(%q.f32) : f32[4, 8] stage 1 phase backward
  return %r, %t, %u
})");
}

TEST_F(MixedPrecisionTest, LeavesOtherTypesAlone) {
  const std::string text = R"(graph g {
  %x = input : f64[4, 8]
  %w = parameter : f64[8, 8]
  %p = matmul(%x, %w) : f64[4, 8]
  return %p
})";
  ExpectRewritten(text, text);
}

TEST_F(MixedPrecisionTest, ATrainingStepHasProductsIn16BitsAndUpdatesInF32) {
  graph::Graph graph = Training();
  ASSERT_TRUE(MixPrecision(ops_, DType::kBF16, graph).ok());
  ASSERT_TRUE(graph::VerifyGraph(graph).ok()) << graph::VerifyGraph(graph);
  int num_products = 0;
  std::map<std::string, int> num_casts;
  for (const graph::Node& node : graph.nodes()) {
    const std::string name(node.op->name());
    if (name == "matmul" || name == "einsum") {
      ++num_products;
      for (const graph::ValueId operand : node.operands) {
        EXPECT_EQ(graph.value(operand).type.dtype, DType::kBF16) << name;
      }
    }
    if (name == "cast") ++num_casts[graph.value(node.operands[0]).name];
    for (const graph::ValueId operand : node.operands) {
      if (node.phase != graph::Phase::kUpdate) continue;
      EXPECT_NE(graph.value(operand).type.dtype, DType::kBF16) << name;
    }
    // Gradients of weights are sums in f32, not rounded ones.
    if (name == "adamw") {
      const graph::Node& gradient = graph.node(graph.value(node.operands[1]).producer);
      EXPECT_NE(gradient.op->name(), "cast") << graph.value(node.operands[1]).name;
    }
  }
  EXPECT_EQ(num_products, 3 * (2 * 4 + 1));
  // Each parameter once: 12 a layer, wte, wpe and the last norm's two; wpe by its broadcast.
  EXPECT_EQ(num_casts["wte"], 1);
  EXPECT_EQ(num_casts["h0.attn.qkv_w"], 1);
  const graph::Value& loss = graph.value(graph.returns()[0].value);
  EXPECT_EQ(loss.type.dtype, DType::kF32);
  EXPECT_EQ(loss.name, "loss");
}

// At ZeRO level 3 a device casts its part of a weight, and all gather parts of 16 bits.
TEST_F(MixedPrecisionTest, CastsOfWhatIsGatheredPerUseAreGatheredPerUse) {
  graph::Graph graph = Training();
  const auto strategy = ParseStrategy("dp=2,zero=3");
  ASSERT_TRUE(strategy.ok() && strategy->has_value());
  ASSERT_TRUE(ApplyStrategy(**strategy, 2, {}, graph).ok());
  ASSERT_TRUE(MixPrecision(ops_, DType::kBF16, graph).ok());
  const graph::ValueId weight = graph.FindValue("h0.mlp.w1");
  const graph::ValueId cast = graph.FindValue("h0.mlp.w1.bf16");
  ASSERT_NE(cast, graph::kNoValue);
  EXPECT_TRUE(graph.node(graph.value(cast).producer).attributes.GetBool("per_use", false));
  EXPECT_EQ(graph.value(cast).sharding, graph.value(weight).sharding);
}

}  // namespace
}  // namespace penstock::planner
