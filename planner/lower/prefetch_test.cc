#include "planner/lower/prefetch.h"

#include <string>
#include <string_view>
#include <vector>

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

class PrefetchTest : public testing::PlannerFixture {
 protected:
  // The order of products and gathers by the names of their results: "wait" before one that follows
  // another node, "+" behind one that is in a bucket with the next.
  std::vector<std::string> Turns(std::string_view text, int64_t bytes_ahead) const {
    const graph::Graph graph = MustParse(text);
    const absl::StatusOr<std::vector<NodePhase>> phases = AssignPhases(graph, {});
    EXPECT_TRUE(phases.ok()) << phases.status();
    std::vector<std::string> order;
    if (!phases.ok()) return order;
    for (const ScheduledNode& scheduled : OrderNodes(graph, *phases, {.bytes = bytes_ahead})) {
      const graph::Node& node = graph.node(scheduled.node);
      if (node.op->has_declared_type() || scheduled.part == ScheduledNode::Part::kFinish) continue;
      const bool has_next = scheduled.bucket >= 0 && !scheduled.ends_bucket;
      order.push_back(StrCat(scheduled.is_gated ? "wait " : "", graph.value(node.results[0]).name,
                             has_next ? "+" : ""));
    }
    return order;
  }
};

// Three layers of a weight each, 64 bytes gathered.
constexpr std::string_view kLayers = R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %a = parameter : f32[4, 4] @[dp, _]
  %b = parameter : f32[4, 4] @[dp, _]
  %c = parameter : f32[4, 4] @[dp, _]
  %ga = all_gather(%a) {per_use=true} : f32[4, 4] @[_, _]
  %A = matmul(%x, %ga) : f32[8, 4] @[dp, _]
  %gb = all_gather(%b) {per_use=true} : f32[4, 4] @[_, _]
  %B = matmul(%A, %gb) : f32[8, 4] @[dp, _]
  %gc = all_gather(%c) {per_use=true} : f32[4, 4] @[_, _]
  %C = matmul(%B, %gc) : f32[8, 4] @[dp, _]
  return %C @[dp, _]
})";

TEST_F(PrefetchTest, OneGatherIsAheadHoweverLittleMemoryThereIs) {
  EXPECT_THAT(Turns(kLayers, 0), ElementsAre("ga", "gb", "A", "wait gc", "B", "C"));
}

TEST_F(PrefetchTest, MemoryLetsMoreBeAhead) {
  EXPECT_THAT(Turns(kLayers, 3 * 64), ElementsAre("ga", "gb", "gc", "A", "B", "C"));
  EXPECT_THAT(Turns(kLayers, 3 * 64 - 1), ElementsAre("ga", "gb", "A", "wait gc", "B", "C"));
}

// With mixed precision the casts of parameters run before the step, and what they make is gathered
// as parameters are.
TEST_F(PrefetchTest, CastsOfParametersAreGatheredLikeParameters) {
  std::string text = "mesh m = [dp=2]\ngraph g {\n  %x0 = input : bf16[8, 4] @[dp, _]\n";
  for (int i = 1; i <= 3; ++i) {
    StrAppend(&text, "  %w", i, " = parameter : f32[4, 4] @[dp, _]\n", "  %c", i, " = cast(%w", i,
              ") {dtype=bf16, per_use=true} : bf16[4, 4] @[dp, _]\n", "  %g", i, " = all_gather(%c",
              i, ") {per_use=true} : bf16[4, 4] @[_, _]\n", "  %x", i, " = matmul(%x", i - 1,
              ", %g", i, ") : bf16[8, 4] @[dp, _]\n");
  }
  StrAppend(&text, "  return %x3 @[dp, _]\n}");
  EXPECT_THAT(Turns(text, 0),
              ElementsAre("c2", "c3", "c1", "g1", "g2", "x1", "wait g3", "x2", "x3"));
}

// What follows the first gather is gathered two at a time, while one pair is used.
TEST_F(PrefetchTest, SmallGathersAreOneBucket) {
  std::string text = "mesh m = [dp=2]\ngraph g {\n  %x0 = input : f32[8, 4] @[dp, _]\n";
  for (int i = 1; i <= 6; ++i) {
    StrAppend(&text, "  %w", i, " = parameter : f32[4, 4] @[dp, _]\n", "  %g", i,
              " = all_gather(%w", i, ") {per_use=true} : f32[4, 4] @[_, _]\n", "  %x", i,
              " = matmul(%x", i - 1, ", %g", i, ") : f32[8, 4] @[dp, _]\n");
  }
  StrAppend(&text, "  return %x6 @[dp, _]\n}");
  EXPECT_THAT(Turns(text, 4 * 64), ElementsAre("g1", "g2+", "g3", "x1", "wait g4+", "wait g5", "x2",
                                               "wait g6", "x3", "x4", "x5", "x6"));
}

TEST_F(PrefetchTest, WhatIsHeldForALaterUseCounts) {
  // %a is read again by the last product, so %c has to wait.
  EXPECT_THAT(Turns(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %a = parameter : f32[4, 4] @[dp, _]
  %b = parameter : f32[4, 4] @[dp, _]
  %c = parameter : f32[4, 4] @[dp, _]
  %ga = all_gather(%a) {per_use=true} : f32[4, 4] @[_, _]
  %A = matmul(%x, %ga) : f32[8, 4] @[dp, _]
  %N = neg(%A) : f32[8, 4] @[dp, _]
  %gb = all_gather(%b) {per_use=true} : f32[4, 4] @[_, _]
  %B = matmul(%N, %gb) : f32[8, 4] @[dp, _]
  %M = neg(%B) : f32[8, 4] @[dp, _]
  %gc = all_gather(%c) {per_use=true} : f32[4, 4] @[_, _]
  %C = matmul(%M, %gc) : f32[8, 4] @[dp, _]
  %D = matmul(%C, %ga) : f32[8, 4] @[dp, _]
  return %D @[dp, _]
})",
                    2 * 64),
              ElementsAre("ga", "gb", "A", "N", "wait gc", "B", "M", "C", "D"));
}

// What has been passed to a device goes on once the kernel before it has run.
TEST_F(PrefetchTest, ARingHoldsTwoPartsAtATime) {
  EXPECT_THAT(Turns(R"(mesh m = [cp=3]
graph g {
  %x = input : f32[6] @[cp]
  %y = neg(%x) : f32[6] @[cp]
  %y1 = permute(%y) {axis=0, shift=2} : f32[6] @[cp]
  %a = exp(%y) : f32[6] @[cp]
  %y2 = permute(%y1) {axis=0, shift=2} : f32[6] @[cp]
  %b = add(%a, %y1) : f32[6] @[cp]
  %c = add(%b, %y2) : f32[6] @[cp]
  %c1 = permute(%c) {axis=0, shift=2} : f32[6] @[cp]
  return %c1 @[cp]
})",
                    1 << 20),
              ElementsAre("y", "y1", "a", "wait y2", "b", "c", "c1"));
}

TEST_F(PrefetchTest, OtherRedistributionsStayWhereTheyAre) {
  EXPECT_THAT(Turns(R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %a = parameter : f32[4, 4] @[dp, _]
  %y = neg(%x) : f32[8, 4] @[dp, _]
  %z = all_gather(%y) : f32[8, 4] @[_, _]
  %w = neg(%z) : f32[8, 4] @[_, _]
  %ga = all_gather(%a) : f32[4, 4] @[_, _]
  %A = matmul(%w, %ga) : f32[8, 4] @[_, _]
  return %A @[_, _]
})",
                    1 << 20),
              ElementsAre("y", "z", "w", "ga", "A"));
}

}  // namespace
}  // namespace penstock::planner
