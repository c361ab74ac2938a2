// LayerBuilder::MixtureOfExperts against loops that know nothing of its operators, and its
// gradients against central differences.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/random.h"
#include "base/strings.h"
#include "graph/builder.h"
#include "graph/gradients.h"
#include "graph/layers.h"
#include "graph/op.h"
#include "tests/support/interpreter.h"

namespace penstock::testing {
namespace {

using graph::Graph;
using graph::GraphBuilder;
using graph::LayerBuilder;
using graph::ValueId;

constexpr int64_t kGroups = 3;
constexpr int64_t kTokens = 7;
constexpr int64_t kWidth = 4;

using Matrix = std::vector<std::vector<double>>;

Tensor Draw(const Shape& shape, uint32_t stream) {
  Tensor tensor({DType::kF64, shape});
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    tensor.As<double>()[i] = 2 * RandomUniform({.seed = 5, .stream = stream}, i) - 1;
  }
  return tensor;
}

// One layer, its parameters and its results by loops.
struct Layer {
  LayerBuilder::Experts sizes;
  std::map<std::string, Tensor> feeds;  // x, moe.router, moe.w1, moe.w2, weight of each result

  explicit Layer(const LayerBuilder::Experts& sizes) : sizes(sizes) {
    const int64_t e = sizes.experts;
    feeds["x"] = Draw({kGroups, kTokens, kWidth}, 1);
    feeds["moe.router"] = Draw({kWidth, e}, 2);
    feeds["moe.w1"] = Draw({e, kWidth, sizes.hidden}, 3);
    feeds["moe.w2"] = Draw({e, sizes.hidden, kWidth}, 4);
    feeds["c"] = Draw({kGroups, kTokens, kWidth}, 5);
  }

  double At(const std::string& name, int64_t i) const { return feeds.at(name).As<double>()[i]; }

  // Returns the layer's result, the balance term, and their sum with each element of the result
  // times one of c.
  Graph Build(const graph::OpRegistry& ops) const {
    Graph graph;
    GraphBuilder builder(ops, graph);
    LayerBuilder layers(builder, DType::kF64, /*dropout=*/0);
    const TensorType type = feeds.at("x").type();
    const ValueId x = builder.Declare("parameter", "x", type);
    ValueId balance = graph::kNoValue;
    const ValueId y = layers.MixtureOfExperts(x, "moe", sizes, 1, 1, &balance);
    const ValueId product = builder.Add("mul", {y, builder.Declare("input", "c", type)});
    const ValueId sum =
        builder.Add("reduce_sum", {product}, {{"axes", graph::AttrValue::Ints({0, 1, 2})}}, "sum");
    const ValueId loss = builder.Add("add", {sum, balance}, {}, "loss");
    EXPECT_TRUE(builder.status().ok()) << builder.status();
    graph.mutable_returns() = {{loss, {}}, {y, {}}, {balance, {}}};
    return graph;
  }

  // An expert on one token.
  std::vector<double> Expert(int64_t e, int64_t token) const {
    std::vector<double> y(kWidth, 0.0);
    for (int64_t h = 0; h < sizes.hidden; ++h) {
      double up = 0;
      for (int64_t d = 0; d < kWidth; ++d) {
        up += At("x", token * kWidth + d) * At("moe.w1", (e * kWidth + d) * sizes.hidden + h);
      }
      const double active =
          0.5 * up * (1 + std::tanh(std::sqrt(2 / M_PI) * (up + 0.044715 * up * up * up)));
      for (int64_t d = 0; d < kWidth; ++d) {
        y[d] += active * At("moe.w2", (e * sizes.hidden + h) * kWidth + d);
      }
    }
    return y;
  }

  std::vector<double> Probabilities(int64_t token) const {
    std::vector<double> p(sizes.experts, 0.0);
    double sum = 0;
    for (int64_t e = 0; e < sizes.experts; ++e) {
      for (int64_t d = 0; d < kWidth; ++d) {
        p[e] += At("x", token * kWidth + d) * At("moe.router", d * sizes.experts + e);
      }
      sum += p[e] = std::exp(p[e]);
    }
    for (double& value : p) value /= sum;
    return p;
  }

  struct Results {
    Matrix y;  // a row a token
    double balance = 0;
    int num_dropped = 0;
  };

  Results Evaluate() const {
    Results results;
    results.y.assign(kGroups * kTokens, std::vector<double>(kWidth, 0.0));
    for (int64_t group = 0; group < kGroups; ++group) {
      Matrix p;
      std::vector<std::vector<int64_t>> ranked;  // experts, the best first
      for (int64_t t = 0; t < kTokens; ++t) {
        p.push_back(Probabilities(group * kTokens + t));
        std::vector<int64_t> order;
        for (int64_t e = 0; e < sizes.experts; ++e) order.push_back(e);
        std::sort(order.begin(), order.end(),
                  [&](int64_t a, int64_t b) { return p[t][a] > p[t][b]; });
        ranked.push_back(order);
      }
      std::vector<double> chosen(sizes.experts, 0.0);
      for (int64_t j = 0; j < sizes.top_k; ++j) {
        for (int64_t t = 0; t < kTokens; ++t) {
          const int64_t e = ranked[t][j];
          if (chosen[e]++ >= static_cast<double>(sizes.capacity)) {
            ++results.num_dropped;
            continue;
          }
          double weight = p[t][e];
          if (sizes.top_k > 1) {
            double sum = 0;
            for (int64_t i = 0; i < sizes.top_k; ++i) sum += p[t][ranked[t][i]];
            weight /= sum;
          }
          const std::vector<double> y = Expert(e, group * kTokens + t);
          for (int64_t d = 0; d < kWidth; ++d) {
            results.y[group * kTokens + t][d] += weight * y[d];
          }
        }
      }
      for (int64_t e = 0; e < sizes.experts; ++e) {
        double mean = 0;
        for (int64_t t = 0; t < kTokens; ++t) mean += p[t][e] / kTokens;
        const double share = chosen[e] / static_cast<double>(kTokens * sizes.top_k);
        results.balance +=
            sizes.balance_weight * static_cast<double>(sizes.experts) * share * mean / kGroups;
      }
    }
    return results;
  }
};

struct Case {
  LayerBuilder::Experts sizes;
  bool drops = false;
};

class MixtureOfExpertsTest : public ::testing::TestWithParam<Case> {
 protected:
  absl::StatusOr<std::vector<Tensor>> Run(const Graph& graph, const Layer& layer) const {
    return Interpret(graph, kernels_, layer.feeds);
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
};

TEST_P(MixtureOfExpertsTest, AgreesWithLoops) {
  const Layer layer(GetParam().sizes);
  const Layer::Results expected = layer.Evaluate();
  EXPECT_EQ(expected.num_dropped > 0, GetParam().drops) << expected.num_dropped;
  const auto values = Run(layer.Build(ops_), layer);
  ASSERT_TRUE(values.ok()) << values.status();
  for (int64_t i = 0; i < (*values)[1].num_elements(); ++i) {
    EXPECT_NEAR((*values)[1].As<double>()[i], expected.y[i / kWidth][i % kWidth], 1e-12) << i;
  }
  EXPECT_NEAR(*(*values)[2].As<double>(), expected.balance, 1e-12);
}

TEST_P(MixtureOfExpertsTest, GradientsMatchDifferences) {
  Layer layer(GetParam().sizes);
  const Graph forward = layer.Build(ops_);
  Graph loss = layer.Build(ops_);
  loss.mutable_returns().resize(1);
  const absl::StatusOr<Graph> graph = graph::AddGradients(ops_, loss);
  ASSERT_TRUE(graph.ok()) << graph.status();
  const auto values = Run(*graph, layer);
  ASSERT_TRUE(values.ok()) << values.status();
  const std::vector<std::string> parameters = {"x", "moe.router", "moe.w1", "moe.w2"};
  ASSERT_EQ(values->size(), parameters.size() + 1);
  constexpr double kStep = 1e-5;
  for (size_t p = 0; p < parameters.size(); ++p) {
    Tensor& parameter = layer.feeds[parameters[p]];
    double largest = 0;
    for (int64_t i = 0; i < parameter.num_elements(); ++i) {
      double* element = parameter.As<double>() + i;
      const double at = *element;
      double difference = 0;
      for (const double sign : {1.0, -1.0}) {
        *element = at + sign * kStep;
        const auto moved = Run(forward, layer);
        ASSERT_TRUE(moved.ok()) << moved.status();
        difference += sign * *(*moved)[0].As<double>();
      }
      *element = at;
      const double gradient = (*values)[p + 1].As<double>()[i];
      EXPECT_NEAR(gradient, difference / (2 * kStep), 1e-7 * std::max(1.0, std::abs(gradient)))
          << parameters[p] << ", element " << i;
      largest = std::max(largest, std::abs(gradient));
    }
    // With one expert there is nothing to choose, and the router has no gradient.
    if (layer.sizes.experts > 1 || parameters[p] != "moe.router") {
      EXPECT_GT(largest, 1e-3) << parameters[p];
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Sizes, MixtureOfExpertsTest,
    ::testing::Values(
        Case{{.experts = 4, .top_k = 1, .capacity = 2, .hidden = 5, .balance_weight = 0.5}, true},
        Case{{.experts = 4, .top_k = 2, .capacity = 4, .hidden = 5, .balance_weight = 0.5}, true},
        Case{{.experts = 5, .top_k = 3, .capacity = 3, .hidden = 3, .balance_weight = 2}, true},
        Case{{.experts = 4, .top_k = 2, .capacity = kTokens, .hidden = 5, .balance_weight = 1}},
        Case{{.experts = 1, .top_k = 1, .capacity = kTokens, .hidden = 5, .balance_weight = 1}}),
    [](const auto& info) {
      const LayerBuilder::Experts& sizes = info.param.sizes;
      return StrCat("Top", sizes.top_k, "Of", sizes.experts, "Capacity", sizes.capacity);
    });

}  // namespace
}  // namespace penstock::testing
