#include "planner/search/cut_stages.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/search/arrange_groups.h"

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

// Devices on one network, `count` of each kind in turn, which differ in memory.
Machine MakeMachine(const std::vector<std::pair<int64_t, int64_t>>& count_and_memory) {
  ClusterSpec spec;
  spec.name = "test";
  int64_t num_devices = 0;
  for (const auto& [count, memory_bytes] : count_and_memory) {
    DeviceKind kind;
    kind.name = StrCat("kind ", spec.kinds.size());
    kind.memory_bytes = memory_bytes;
    kind.memory_bytes_per_s = 1e12;
    kind.peak_flops_per_s.fill(1e12);
    spec.devices.push_back({count, static_cast<int64_t>(spec.kinds.size())});
    spec.kinds.push_back(std::move(kind));
    num_devices += count;
  }
  NetworkLevel level;
  level.name = "node";
  level.fan_out = {num_devices};
  level.bytes_per_s = 1e9;
  spec.levels.push_back(level);
  return {*Cluster::Create(std::move(spec))};
}

TEST(ArrangeGroupsTest, AlikeGroupsStayInTheirOrder) {
  const Machine machine = MakeMachine({{2, 1 << 20}, {1, 2 << 20}});
  EXPECT_THAT(ArrangeGroups(machine, 1, 3),
              ElementsAre(ElementsAre(0, 1, 2), ElementsAre(0, 2, 1), ElementsAre(2, 0, 1)));
  EXPECT_THAT(ArrangeGroups(machine, 1, 2), ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(ArrangeGroups(MakeMachine({{4, 1 << 20}}), 1, 4),
              ElementsAre(ElementsAre(0, 1, 2, 3)));
  // Of 924 orders of twelve groups, those of the two halves.
  const std::vector<std::vector<int>> halves =
      ArrangeGroups(MakeMachine({{12, 1 << 20}, {12, 2 << 20}}), 2, 12);
  EXPECT_THAT(halves, ElementsAre(ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11),
                                  ElementsAre(6, 7, 8, 9, 10, 11, 0, 1, 2, 3, 4, 5)));
}

// Segments of 3 s, each of which passes a value on to the next and gets a gradient back.
ModelWork MakeWork(int num_segments, StageMemory memory) {
  ModelWork work;
  work.num_microbatches = 4;
  for (int segment = 0; segment < num_segments; ++segment) {
    StageWork& stage = work.stages.emplace_back();
    stage.forward.compute_s = 1;
    stage.backward.compute_s = 2;
    stage.memory = memory;
    if (segment == 0) continue;
    StageTransfer transfer;
    transfer.value = segment;
    transfer.from = segment - 1;
    transfer.to = segment;
    work.transfers.push_back(transfer);
    std::swap(transfer.from, transfer.to);
    transfer.value += num_segments;
    transfer.moment = StageTransfer::Moment::kBackward;
    work.transfers.push_back(transfer);
  }
  return work;
}

class CutStagesTest : public ::testing::Test {
 protected:
  CutStagesTest() : policies_(BuiltinPolicies()) { options_.policy = policies_.Find("1f1b"); }

  const PolicyRegistry policies_;
  EstimateOptions options_;
};

// The first of two stages keeps two micro-batches in flight.
TEST_F(CutStagesTest, TheFirstStageIsSmallerWhereMemoryIsShort) {
  const ModelWork work = MakeWork(4, {.activations = 2 << 20});
  const std::vector<const ModelWork*> works = {&work, &work};
  const Machine machine = MakeMachine({{1, 6 << 20}, {1, 10 << 20}});
  const StageCut cut = *CutStages(works, machine, options_);
  EXPECT_TRUE(cut.estimate.fits());
  EXPECT_TRUE(cut.is_limited);
  EXPECT_THAT(cut.starts, ElementsAre(0, 1));
  // The fastest cut is below this limit, but does not fit; what fits takes longer.
  EXPECT_LT(cut.fastest_s, 0.99 * cut.estimate.step_s);
  options_.limit_s = 0.99 * cut.estimate.step_s;
  const StageCut limited = *CutStages(works, machine, options_);
  EXPECT_TRUE(limited.estimate.is_above_limit);
  EXPECT_TRUE(limited.is_limited);
}

// These devices work in the memory of their hosts.
TEST_F(CutStagesTest, WhatLiesOnTheHostCountsWhereMemoryIsShared) {
  const ModelWork work = MakeWork(4, {.host_activations = 2 << 20});
  const std::vector<const ModelWork*> works = {&work, &work};
  const StageCut cut = *CutStages(works, MakeMachine({{1, 6 << 20}, {1, 10 << 20}}), options_);
  EXPECT_TRUE(cut.estimate.fits());
  EXPECT_THAT(cut.starts, ElementsAre(0, 1));
}

TEST_F(CutStagesTest, AllChunksOfAGroupKeepWithinItsMemory) {
  const ModelWork work = MakeWork(12, {.activations = 1 << 20});
  const std::vector<const ModelWork*> works = {&work, &work};
  options_.chunks_per_group = 2;
  const StageCut even = *CutStages(works, MakeMachine({{2, int64_t{1} << 40}}), options_);
  EXPECT_THAT(even.starts, ElementsAre(0, 3, 6, 9));
  const auto needed = static_cast<int64_t>(even.estimate.groups[0].memory.total());
  const Machine machine = MakeMachine({{1, needed * 3 / 4}, {1, int64_t{1} << 40}});
  const StageCut cut = *CutStages(works, machine, options_);
  EXPECT_TRUE(cut.estimate.fits());
  EXPECT_TRUE(cut.is_limited);
  EXPECT_THAT(cut.starts, ElementsAre(0, 2, 6, 8));
}

// The first stage is as large as the second where there is memory for that, on the second device.
TEST(CutOnGroupsTest, TheFirstStageGoesWhereThereIsMemory) {
  const Machine machine = MakeMachine({{1, 6 << 20}, {1, 10 << 20}});
  const ModelWork work = MakeWork(4, {.activations = 2 << 20});
  const std::vector<const ModelWork*> works = {&work, &work};
  const PolicyRegistry policies = BuiltinPolicies();
  EstimateOptions options;
  options.policy = policies.Find("1f1b");
  const StageCut in_order = *CutStages(works, machine, options);
  EXPECT_TRUE(in_order.estimate.fits());
  EXPECT_THAT(in_order.starts, ElementsAre(0, 1));
  const ArrangedCut best = *CutOnGroups(works, ArrangeGroups(machine, 1, 2), machine, options);
  EXPECT_THAT(best.device_groups, ElementsAre(1, 0));
  EXPECT_THAT(best.cut.starts, ElementsAre(0, 2));
  EXPECT_LT(best.cut.estimate.step_s, in_order.estimate.step_s);
  EXPECT_EQ(best.cut.estimate.groups[0].memory_limit_bytes, 10 << 20);
  // Orders are not made for what they cannot bring below a limit.
  options.limit_s = 0.999 * best.cut.estimate.step_s;
  const ArrangedCut limited = *CutOnGroups(works, ArrangeGroups(machine, 1, 2), machine, options);
  EXPECT_TRUE(limited.cut.estimate.is_above_limit);
  EXPECT_NEAR(limited.cut.estimate.step_s, best.cut.estimate.step_s, 1e-6);
}

}  // namespace
}  // namespace penstock::planner
