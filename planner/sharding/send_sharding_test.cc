#include "planner/sharding/send_sharding.h"

#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "planner/sharding/execution_sharding.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

// Latency, for which most of the tensors here are too small, counts only where a test says so.
constexpr SendCosts kFree = {.byte_between_stages = 4, .collective = 0, .copied_byte = 0.25};

class SendShardingTest : public testing::PlannerFixture {
 protected:
  // How a value of this type and sharding on `mesh` is sent to stages that read it as `needed`.
  std::string Choose(std::string_view mesh, std::string_view type, std::string_view held,
                     const std::vector<std::vector<std::string>>& needed,
                     const SendCosts& costs = kFree) {
    const graph::Mesh parsed = MustParse(Text(mesh, type, held)).meshes()[0];
    SendChooser chooser(parsed, costs);
    std::vector<std::vector<graph::Sharding>> shardings;
    for (const std::vector<std::string>& of_stage : needed) {
      shardings.emplace_back();
      for (const std::string& each : of_stage) {
        shardings.back().push_back(Sharding(mesh, type, each));
      }
    }
    const graph::Graph graph = MustParse(Text(mesh, type, held));
    return ToString(parsed,
                    chooser.Choose(graph.value(0).type, Sharding(mesh, type, held), shardings));
  }

 private:
  static std::string Text(std::string_view mesh, std::string_view type, std::string_view held) {
    return StrCat("mesh m = ", mesh, "\ngraph g {\n  %x = input : ", type, " ", held,
                  "\n  return %x\n}");
  }
  graph::Sharding Sharding(std::string_view mesh, std::string_view type, std::string_view text) {
    const graph::Graph graph = MustParse(Text(mesh, type, text));
    return ClosedSharding(graph.meshes()[0], graph.value(0));
  }
};

TEST_F(SendShardingTest, EveryDeviceSendsAPartOfWhatAllHold) {
  EXPECT_EQ(Choose("[tp=4]", "f32[64, 32]", "@[_, _]", {{"@[_, _]"}}), "@[tp, _]");
}

TEST_F(SendShardingTest, WhatIsSplitAlreadyStays) {
  EXPECT_EQ(Choose("[tp=4]", "f32[64, 32]", "@[_, tp]", {{"@[_, tp]"}}), "@[_, tp]");
  EXPECT_EQ(Choose("[tp=4]", "f32[64, 32]", "@[_, tp]", {{"@[_, _]"}}), "@[_, tp]");
}

TEST_F(SendShardingTest, OnlyTheAxesThatAreLeftAreUsed) {
  EXPECT_EQ(Choose("[dp=2, tp=4]", "f32[64, 32]", "@[dp, _]", {{"@[dp, _]"}}), "@[dp.tp, _]");
  EXPECT_EQ(Choose("[dp=2, tp=4]", "f32[64, 32]", "@[_, tp]", {{"@[_, tp]"}}), "@[dp, tp]");
  EXPECT_EQ(Choose("[tp=8]", "f32[64, 32]", "@[tp:(1)2, _]", {{"@[tp:(1)2, _]"}}), "@[tp, _]");
}

TEST_F(SendShardingTest, TheReceiverDecidesWhereItReadsParts) {
  EXPECT_EQ(Choose("[tp=4]", "f32[64, 32]", "@[_, _]", {{"@[_, tp]"}}), "@[_, tp]");
  // Two stages are spared an all_to_all, and the third puts columns in order.
  EXPECT_EQ(Choose("[tp=4]", "f32[64, 32]", "@[_, _]", {{"@[_, tp]"}, {"@[_, tp]"}, {"@[_, _]"}}),
            "@[_, tp]");
}

TEST_F(SendShardingTest, PrefersDimensionsThatDivide) {
  EXPECT_EQ(Choose("[tp=4]", "f32[6, 32]", "@[_, _]", {{"@[_, _]"}}), "@[_, tp]");
  EXPECT_EQ(Choose("[tp=8]", "f32[4, 6]", "@[_, _]", {{"@[_, _]"}}), "@[tp:(1)4, tp:(4)2]");
  // Nothing divides: parts of 2, 2, 2 and 1.
  EXPECT_EQ(Choose("[tp=4]", "f32[7]", "@[_]", {{"@[_]"}}), "@[tp]");
}

// Rows of a batch of one come one after another too.
TEST_F(SendShardingTest, PrefersPartsThatLieOneAfterAnother) {
  EXPECT_EQ(Choose("[tp=4]", "f32[1, 64, 32]", "@[_, _, _]", {{"@[_, _, _]"}}), "@[_, tp, _]");
  EXPECT_EQ(Choose("[mb=8 temporal, tp=4]", "f32[8, 64, 32]", "@[mb, _, _]", {{"@[mb, _, _]"}}),
            "@[mb, tp, _]");
}

TEST_F(SendShardingTest, SumsAreScatteredBeforeTheyAreSent) {
  EXPECT_EQ(Choose("[tp=4]", "f32[64, 32]", "@[_, _] partial(sum, tp)", {{"@[_, _]"}}), "@[tp, _]");
}

TEST_F(SendShardingTest, TermsThatTheReaderAddsStayTerms) {
  const std::string terms = "@[_, _] partial(sum, tp)";
  EXPECT_EQ(Choose("[tp=4]", "f32[64, 32]", terms, {{terms}}), terms);
}

TEST_F(SendShardingTest, ScalarsStayWhole) {
  EXPECT_EQ(Choose("[tp=4]", "f32[]", "@[]", {{"@[]"}}), "@[]");
  EXPECT_EQ(Choose("[tp=4]", "f32[]", "@[] partial(sum, tp)", {{"@[]"}}), "@[] partial(sum, tp)");
}

// At 2 devices, half of 21.3 KiB saves as much time as the collective takes.
TEST_F(SendShardingTest, SmallTensorsAreNotWorthTheLatency) {
  const auto choose = [&](std::string_view type) {
    return Choose("[tp=2]", type, "@[_]", {{"@[_]"}}, SendCosts());
  };
  EXPECT_EQ(choose("f32[5400]"), "@[_]");
  EXPECT_EQ(choose("f32[5500]"), "@[tp]");
}

TEST_F(SendShardingTest, WithoutSlowerLinksNothingIsGained) {
  const SendCosts even = {.byte_between_stages = 1, .collective = 1, .copied_byte = 0};
  EXPECT_EQ(Choose("[tp=4]", "f32[64, 32]", "@[_, _]", {{"@[_, _]"}}, even), "@[_, _]");
}

}  // namespace
}  // namespace penstock::planner
