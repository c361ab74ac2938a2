// The loss and its gradient do not depend on what all logits of a row have in common.

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/device.h"
#include "base/random.h"
#include "graph/builder.h"
#include "graph/op.h"
#include "kernels/kernel.h"
#include "tests/support/interpreter.h"

namespace penstock::kernels {
namespace {

constexpr int64_t kRows = 8;
constexpr int64_t kClasses = 1000;

class CrossEntropyTest : public ::testing::TestWithParam<double> {
 protected:
  CrossEntropyTest() {
    for (int64_t i = 0; i < kRows * kClasses; ++i) {
      const double draw = 8 * RandomUniform({3, 1, 0}, i) - 4;
      logits_.As<float>()[i] = static_cast<float>(draw + GetParam());
    }
    for (int64_t row = 0; row < kRows; ++row) {
      labels_.As<int64_t>()[row] = row * 100;
      dloss_.As<float>()[row] = 1.0f;
    }
  }

  // loss, max and log_sum of the operator, or of what it becomes over a split vocabulary.
  std::vector<Tensor> Losses(bool is_decomposed) {
    graph::Graph graph;
    graph::GraphBuilder builder(ops_, graph);
    const auto input = [&](const char* name, const Tensor& tensor) {
      return builder.Declare("input", name, tensor.type());
    };
    const std::vector<graph::ValueId> operands = {input("logits", logits_),
                                                  input("labels", labels_)};
    const graph::Op* op = ops_.Find("cross_entropy");
    const auto id = graph.Add(op, operands, {}, {}, 3);
    EXPECT_TRUE(id.ok()) << id.status();
    const graph::Node node = graph.node(*id);
    std::vector<graph::ValueId> results(node.results.begin(), node.results.end());
    if (is_decomposed) {
      const auto replacement = op->Decompose(builder, node, {.factor = 1, .num_parts = 2});
      EXPECT_TRUE(replacement.ok()) << replacement.status();
      results = *replacement;
    }
    EXPECT_TRUE(builder.status().ok()) << builder.status();
    for (graph::ValueId result : results) graph.mutable_returns().push_back({result, {}});
    const auto values =
        testing::Interpret(graph, kernels_, {{"logits", logits_}, {"labels", labels_}});
    EXPECT_TRUE(values.ok()) << values.status();
    return *values;
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const KernelRegistry kernels_ = CpuKernels();
  Tensor logits_{TensorType{DType::kF32, {kRows, kClasses}}};
  Tensor labels_{TensorType{DType::kI64, {kRows}}};
  Tensor dloss_{TensorType{DType::kF32, {kRows}}};
};

TEST_P(CrossEntropyTest, LossAndGradientAreThoseOfTheDifferences) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  for (bool is_decomposed : {false, true}) {
    SCOPED_TRACE(is_decomposed ? "decomposed" : "whole");
    const std::vector<Tensor> results = Losses(is_decomposed);
    ASSERT_EQ(results.size(), 3);
    KernelSpec spec;
    spec.op = "cross_entropy_grad";
    const std::vector<Tensor> operands = {logits_, labels_, results[1], results[2], dloss_};
    for (const Tensor& operand : operands) {
      spec.inputs.push_back(testing::WholeTile(operand.type()));
    }
    spec.outputs = {testing::WholeTile(logits_.type())};
    const auto gradient = testing::RunKernel(kernels_, *device, spec, operands);
    ASSERT_TRUE(gradient.ok()) << gradient.status();
    for (int64_t row = 0; row < kRows; ++row) {
      const float* x = logits_.As<float>() + row * kClasses;
      const double max = *std::max_element(x, x + kClasses);
      double sum = 0;
      for (int64_t i = 0; i < kClasses; ++i) sum += std::exp(x[i] - max);
      const int64_t label = labels_.As<int64_t>()[row];
      const double loss = std::log(sum) - (x[label] - max);
      EXPECT_NEAR(results[0].As<float>()[row], loss, 3e-7 * loss) << "row " << row;
      EXPECT_EQ(results[1].As<float>()[row], max);
      for (int64_t i = 0; i < kClasses; ++i) {
        const double p = std::exp(x[i] - max) / sum;
        const double expected = i == label ? p - 1 : p;
        ASSERT_NEAR((*gradient)[0].As<float>()[row * kClasses + i], expected,
                    2e-6 * std::abs(expected))
            << "row " << row << ", class " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Offsets, CrossEntropyTest, ::testing::Values(0.0, 1e4, -1e4, 1e6, -1e6));

// Of a confident row, too: log(1 + x) for a small x, wherever the maximum lies, and of ties.
TEST(CrossEntropyKernelTest, SmallLossesKeepTheirDigits) {
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  struct Case {
    float max;
    int64_t classes;
    int64_t label;
    int64_t num_max = 1;
  };
  const Case cases[] = {{17, 3, 0},  {16, 3, 0},         {20, 64, 0},    {10, 3, 0},
                        {14, 40, 0}, {14, 40, 39},       {1, 7, 3},      {30, 1000, 500},
                        {60, 5, 2},  {5, 1, 0},          {12, 40, 0, 2}, {0, 9, 4, 9},
                        {-3, 9, 4},  {17, 300, 299, 150}};
  for (const Case& test : cases) {
    SCOPED_TRACE(::testing::Message() << test.max << ", " << test.classes << ", " << test.label);
    Tensor logits(TensorType{DType::kF32, {1, test.classes}});
    Tensor labels(TensorType{DType::kI64, {1}});
    float* x = logits.As<float>();
    for (int64_t i = 0; i < test.classes; ++i) x[i] = -0.25f * static_cast<float>(i % 3);
    for (int64_t i = 0; i < test.num_max; ++i) x[(test.label + i) % test.classes] = test.max;
    labels.As<int64_t>()[0] = test.label;
    KernelSpec spec;
    spec.op = "cross_entropy";
    spec.inputs = {testing::WholeTile(logits.type()), testing::WholeTile(labels.type())};
    spec.outputs = {testing::WholeTile({DType::kF32, {1}})};
    const auto loss =
        testing::RunKernel(CpuKernels(), *device, spec, std::vector<Tensor>{logits, labels});
    ASSERT_TRUE(loss.ok()) << loss.status();
    const int64_t top = std::max_element(x, x + test.classes) - x;
    double others = 0;
    for (int64_t i = 0; i < test.classes; ++i) {
      if (i != top) others += std::exp(static_cast<double>(x[i]) - x[top]);
    }
    const double expected =
        std::log1p(others) - (static_cast<double>(x[test.label]) - static_cast<double>(x[top]));
    EXPECT_NEAR((*loss)[0].As<float>()[0], expected, 1e-6 * expected);
  }
}

}  // namespace
}  // namespace penstock::kernels
