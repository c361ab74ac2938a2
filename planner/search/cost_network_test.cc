#include "planner/search/cost_network.h"

#include <random>

#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

struct Enumerated {
  double cost = std::numeric_limits<double>::infinity();
  double cost_without_limit = std::numeric_limits<double>::infinity();
};

Enumerated EnumerateAll(const CostNetwork& network) {
  Enumerated best;
  std::vector<int> options(network.variables.size(), 0);
  while (true) {
    const double cost = CostOf(network, options);
    best.cost_without_limit = std::min(best.cost_without_limit, cost);
    if (WeightOf(network, options) <= network.weight_limit) best.cost = std::min(best.cost, cost);
    size_t v = 0;
    while (v < options.size() &&
           ++options[v] == static_cast<int>(network.variables[v].costs.size())) {
      options[v++] = 0;
    }
    if (v == options.size()) return best;
  }
}

CostNetwork RandomNetwork(std::mt19937_64& random, int num_variables, double pair_probability) {
  const auto uniform = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  CostNetwork network;
  for (int v = 0; v < num_variables; ++v) {
    CostNetwork::Variable& variable = network.variables.emplace_back();
    const auto num_options = static_cast<int>(uniform(1, 4));
    for (int i = 0; i < num_options; ++i) variable.costs.push_back(uniform(0, 1));
    if (uniform(0, 1) < 0.5) {
      for (int i = 0; i < num_options; ++i) variable.weights.push_back(uniform(0, 1e9));
    }
    for (int other = 0; other < v; ++other) {
      if (uniform(0, 1) >= pair_probability) continue;
      CostNetwork::Pair& pair = network.pairs.emplace_back();
      pair.first = v;
      pair.second = other;
      const size_t count =
          variable.costs.size() * network.variables[static_cast<size_t>(other)].costs.size();
      for (size_t i = 0; i < count; ++i) pair.costs.push_back(uniform(0, 2));
    }
  }
  return network;
}

TEST(CostNetworkTest, TheExampleOfTheHeader) {
  CostNetwork network;
  network.variables = {{{0, 3}, {}}, {{2, 0}, {}}};
  network.pairs = {{0, 1, {0, 5, 1, 0}}};
  const auto best = Minimize(network);
  ASSERT_TRUE(best.ok()) << best.status();
  ASSERT_TRUE(best->has_value());
  EXPECT_EQ((*best)->options, (std::vector<int>{0, 0}));
  EXPECT_EQ((*best)->cost, 2);
  EXPECT_EQ((*best)->num_solved, 0);
}

TEST(CostNetworkTest, AChainIsSolvedByElimination) {
  std::mt19937_64 random(1);
  CostNetwork network;
  for (int v = 0; v < 2000; ++v) {
    network.variables.push_back({{0.1, 0.2, 0.3}, {}});
    if (v == 0) continue;
    CostNetwork::Pair& pair = network.pairs.emplace_back();
    pair.first = v - 1;
    pair.second = v;
    for (int i = 0; i < 9; ++i) {
      pair.costs.push_back(std::uniform_real_distribution<double>(0, 1)(random));
    }
  }
  const auto best = Minimize(network);
  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_EQ((*best)->num_solved, 0);
  EXPECT_NEAR((*best)->bound, (*best)->cost, 1e-9 * (*best)->cost);
}

TEST(CostNetworkTest, NothingIsWithinALimitThatIsTooLow) {
  CostNetwork network;
  network.variables = {{{0, 1}, {5, 4}}, {{0, 1}, {3, 2}}};
  network.weight_limit = 5;
  auto best = Minimize(network);
  ASSERT_TRUE(best.ok()) << best.status();
  EXPECT_FALSE(best->has_value());
  network.weight_limit = 6;
  best = Minimize(network);
  ASSERT_TRUE(best.ok()) << best.status();
  ASSERT_TRUE(best->has_value());
  EXPECT_EQ((*best)->options, (std::vector<int>{1, 1}));
}

TEST(CostNetworkTest, FindsWhatEnumerationFinds) {
  std::mt19937_64 random(7);
  int num_limited = 0;
  for (int i = 0; i < 300; ++i) {
    CostNetwork network = RandomNetwork(random, 2 + i % 8, 0.2 + 0.1 * (i % 7));
    const double cost_without_limit = EnumerateAll(network).cost_without_limit;
    double most = 0;
    for (const CostNetwork::Variable& variable : network.variables) {
      for (const double weight : variable.weights) most += weight;
    }
    network.weight_limit = most * std::uniform_real_distribution<double>(0.1, 0.6)(random);
    const double expected = EnumerateAll(network).cost;
    const auto best = Minimize(network);
    ASSERT_TRUE(best.ok()) << best.status();
    ASSERT_EQ(best->has_value(), expected != std::numeric_limits<double>::infinity()) << i;
    if (!best->has_value()) continue;
    EXPECT_NEAR((*best)->cost, expected, 1e-9) << i;
    EXPECT_LE((*best)->weight, network.weight_limit);
    EXPECT_NEAR((*best)->bound, expected, 1e-6) << i;
    if (expected > cost_without_limit) ++num_limited;
  }
  EXPECT_GE(num_limited, 50);
}

}  // namespace
}  // namespace penstock::planner
