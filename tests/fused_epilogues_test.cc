// A training step whose products are joined with their epilogues has, on the CPU, the bits of the
// one without, in f32 and f64, and nearly its numbers in bf16.

#include <cmath>
#include <cstring>
#include <map>
#include <string>

#include "gtest/gtest.h"

#include "base/random.h"
#include "base/tensor.h"
#include "graph/models/model.h"
#include "graph/training.h"
#include "kernels/kernel.h"
#include "planner/strategy/fuse_epilogues.h"
#include "planner/strategy/mixed_precision.h"
#include "tests/support/interpreter.h"

namespace penstock::testing {
namespace {

class FusedStepTest : public ::testing::Test {
 protected:
  graph::Graph Training(const std::string& name, DType dtype) const {
    const graph::Model& model = *models_.FindModel(name);
    graph::ModelConfig config = model.defaults;
    config.layers = kLayers;
    config.width = 64;
    config.heads = 4;
    config.context = 16;
    config.dropout = 0;
    config.dtype = dtype;
    auto forward = graph::BuildModelGraph(ops_, model, config, graph::ModelUse::kTrain, 4);
    EXPECT_TRUE(forward.ok()) << forward.status();
    auto training = graph::BuildTrainingGraph(ops_, *std::move(forward), {});
    EXPECT_TRUE(training.ok()) << training.status();
    return *std::move(training);
  }

  std::map<std::string, Tensor> Feeds(const graph::Graph& graph) const {
    std::map<std::string, Tensor> feeds;
    uint32_t stream = 0;
    for (const graph::Node& node : graph.nodes()) {
      if (!node.op->has_declared_type()) continue;
      const graph::Value& value = graph.value(node.results[0]);
      Tensor tensor(value.type);
      const RandomKey key{.seed = 5, .stream = ++stream};
      for (int64_t i = 0; i < tensor.num_elements(); ++i) {
        const double drawn = RandomUniform(key, static_cast<uint64_t>(i));
        switch (value.type.dtype) {
          case DType::kF64:
            tensor.As<double>()[i] = 0.2 * (drawn - 0.5);
            break;
          case DType::kF32:
            tensor.As<float>()[i] = static_cast<float>(0.2 * (drawn - 0.5));
            break;
          case DType::kI64:
            tensor.As<int64_t>()[i] = static_cast<int64_t>(40 * drawn);
            break;
          default:
            tensor.As<int32_t>()[i] = static_cast<int32_t>(40 * drawn);
        }
      }
      feeds[value.name] = std::move(tensor);
    }
    return feeds;
  }

  // The step without the pass and with it.
  void Run(graph::Graph graph, Interpretation* apart, Interpretation* joined) const {
    const std::map<std::string, Tensor> feeds = Feeds(graph);
    auto first = InterpretStep(graph, kernels_, feeds);
    ASSERT_TRUE(first.ok()) << first.status();
    const int num_nodes = graph.num_nodes();
    ASSERT_EQ(planner::FuseEpilogues(
                  ops_, [](const graph::Graph&, int) { return true; }, graph),
              absl::OkStatus());
    // In each layer of either model, at least two residuals and what flows back along them.
    EXPECT_LE(graph.num_nodes(), num_nodes - kLayers * 4);
    auto second = InterpretStep(graph, kernels_, feeds);
    ASSERT_TRUE(second.ok()) << second.status();
    *apart = *std::move(first);
    *joined = *std::move(second);
    ASSERT_EQ(joined->assigned.size(), apart->assigned.size());
    EXPECT_GT(apart->assigned.size(), 20u);
  }

  static constexpr int kLayers = 2;
  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const graph::ModelRegistry models_ = graph::BuiltinModels();
  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
};

TEST_F(FusedStepTest, UpdatesAreTheSameToTheBit) {
  for (const std::string model : {"gpt", "llama"}) {
    for (const DType dtype : {DType::kF32, DType::kF64}) {
      SCOPED_TRACE(model);
      Interpretation apart;
      Interpretation joined;
      Run(Training(model, dtype), &apart, &joined);
      if (HasFatalFailure()) return;
      for (const auto& [name, tensor] : apart.assigned) {
        const Tensor& other = joined.assigned.at(name);
        ASSERT_EQ(other.num_bytes(), tensor.num_bytes());
        EXPECT_EQ(std::memcmp(other.data(), tensor.data(), tensor.num_bytes()), 0) << name;
      }
    }
  }
}

// The product and its sum with the bias are rounded to bf16 each, where they were once together.
TEST_F(FusedStepTest, LossesInMixedPrecisionAreNearlyTheSame) {
  graph::Graph graph = Training("gpt", DType::kF32);
  ASSERT_EQ(planner::MixPrecision(ops_, DType::kBF16, graph), absl::OkStatus());
  Interpretation apart;
  Interpretation joined;
  Run(std::move(graph), &apart, &joined);
  if (HasFatalFailure()) return;
  ASSERT_EQ(apart.returns.size(), joined.returns.size());
  const float loss = *apart.returns[0].As<float>();
  EXPECT_NEAR(*joined.returns[0].As<float>(), loss, 1e-3 * std::abs(loss));
  // Gradients, too: the first moments are a part of them.
  int num_moments = 0;
  for (const auto& [name, tensor] : apart.assigned) {
    if (name.size() < 2 || name.substr(name.size() - 2) != ".m") continue;
    ++num_moments;
    const Tensor& other = joined.assigned.at(name);
    double difference = 0;
    double size = 0;
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      const double value = tensor.As<float>()[i];
      difference += std::pow(other.As<float>()[i] - value, 2);
      size += value * value;
    }
    EXPECT_LT(std::sqrt(difference), 3e-2 * std::sqrt(size)) << name;
  }
  EXPECT_GT(num_moments, 10);
}

}  // namespace
}  // namespace penstock::testing
