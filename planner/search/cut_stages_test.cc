#include "planner/search/cut_stages.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

TEST(CutEvenlyTest, BalancesTheLargestPart) {
  EXPECT_THAT(CutEvenly({1, 1, 1, 1, 1, 1}, 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(CutEvenly({5, 1, 1, 1, 1, 1}, 2), ElementsAre(0, 1));
  EXPECT_THAT(CutEvenly({1, 1, 1, 9}, 3), ElementsAre(0, 2, 3));
  EXPECT_THAT(CutEvenly({0, 0, 0}, 3), ElementsAre(0, 1, 2));
  EXPECT_THAT(CutEvenly({3, 2, 4, 1}, 1), ElementsAre(0));
}

TEST(CutEvenlyTest, KeepsEachPartWithinItsMemory) {
  CutMemory memory;
  memory.kept_bytes.assign(6, 1);
  memory.in_flight_bytes.assign(6, 1);
  memory.in_flight = {3, 2, 1};
  memory.limit_bytes.assign(3, 100);
  EXPECT_THAT(CutEvenly({1, 1, 1, 1, 1, 1}, 3, &memory), ElementsAre(0, 2, 4));
  // An element takes 4, 3 and 2 bytes in the parts: 1, 2 and 3 of them fit.
  memory.limit_bytes.assign(3, 7);
  EXPECT_THAT(CutEvenly({1, 1, 1, 1, 1, 1}, 3, &memory), ElementsAre(0, 1, 3));
  memory.limit_bytes.assign(3, 5);
  EXPECT_TRUE(CutEvenly({1, 1, 1, 1, 1, 1}, 3, &memory).empty());
}

TEST(CutEvenlyTest, GivesSlowerPartsLess) {
  const std::vector<double> fast(12, 1);
  const std::vector<double> slow(12, 2);
  EXPECT_THAT(CutEvenly({{fast, slow}}), ElementsAre(0, 8));
  EXPECT_THAT(CutEvenly({{slow, fast}}), ElementsAre(0, 4));
  EXPECT_THAT(CutEvenly({{fast, slow, fast, slow}}), ElementsAre(0, 4, 6, 10));
}

TEST(CutEvenlyTest, KeepsPartsWithinTheirOwnMemory) {
  const std::vector<double> cost(6, 1);
  CutMemory memory;
  memory.kept_bytes.assign(6, 1);
  memory.in_flight_bytes.assign(6, 0);
  memory.in_flight = {1, 1};
  memory.limit_bytes = {2, 6};
  EXPECT_THAT(CutEvenly(cost, 2, &memory), ElementsAre(0, 2));
  memory.limit_bytes = {6, 1};
  EXPECT_THAT(CutEvenly(cost, 2, &memory), ElementsAre(0, 5));
  memory.limit_bytes = {3, 2};
  EXPECT_TRUE(CutEvenly(cost, 2, &memory).empty());
}

// Random costs by part and memory, against all cuts.
TEST(CutEvenlyTest, NoOtherCutIsFaster) {
  std::mt19937 random(5);
  const auto pick = [&](int most) { return static_cast<double>(random() % (most + 1)); };
  int num_impossible = 0;
  for (int round = 0; round < 300; ++round) {
    const int num_parts = 1 + static_cast<int>(random() % 4);
    const int count = num_parts + static_cast<int>(random() % 6);
    std::vector<std::vector<double>> costs(num_parts, std::vector<double>(count));
    std::vector<double> cost(count);
    for (double& c : cost) c = pick(9);
    CutMemory memory;
    for (std::vector<double>& of_part : costs) {
      const double factor = 1 + pick(3);
      for (int i = 0; i < count; ++i) of_part[i] = factor * cost[i];
      memory.in_flight.push_back(1 + static_cast<int>(random() % 3));
      memory.limit_bytes.push_back(10 + pick(40));
    }
    for (int i = 0; i < count; ++i) {
      memory.kept_bytes.push_back(pick(5));
      memory.in_flight_bytes.push_back(pick(3));
    }
    const auto slowest = [&](const std::vector<int>& starts) {
      double largest = 0;
      for (int part = 0; part < num_parts; ++part) {
        const int end = part + 1 < num_parts ? starts[part + 1] : count;
        double seconds = 0;
        double bytes = 0;
        for (int i = starts[part]; i < end; ++i) {
          seconds += costs[part][i];
          bytes += memory.kept_bytes[i] + memory.in_flight[part] * memory.in_flight_bytes[i];
        }
        if (bytes > memory.limit_bytes[part]) return std::numeric_limits<double>::infinity();
        largest = std::max(largest, seconds);
      }
      return largest;
    };
    double best = std::numeric_limits<double>::infinity();
    std::vector<int> starts = {0};
    const std::function<void()> extend = [&] {
      if (static_cast<int>(starts.size()) == num_parts) {
        best = std::min(best, slowest(starts));
        return;
      }
      for (int next = starts.back() + 1; next < count; ++next) {
        starts.push_back(next);
        extend();
        starts.pop_back();
      }
    };
    extend();
    const std::vector<int> cut = CutEvenly(costs, &memory);
    if (best == std::numeric_limits<double>::infinity()) {
      ++num_impossible;
      EXPECT_TRUE(cut.empty()) << "round " << round;
      continue;
    }
    ASSERT_EQ(static_cast<int>(cut.size()), num_parts) << "round " << round;
    EXPECT_NEAR(slowest(cut), best, 1e-6 * best) << "round " << round;
  }
  EXPECT_GT(num_impossible, 10);
  EXPECT_LT(num_impossible, 200);
}

}  // namespace
}  // namespace penstock::planner
