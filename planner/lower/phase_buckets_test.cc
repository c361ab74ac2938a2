#include "planner/lower/phase_buckets.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class PhaseBucketsTest : public testing::PlannerFixture {
 protected:
  // A step whose update gathers parameters of these numbers of elements (of 4 bytes) over two
  // devices, in this order.
  static std::string Gathers(const std::vector<int>& sizes) {
    std::string text = "mesh m = [dp=2]\ngraph g {\n";
    for (size_t i = 0; i < sizes.size(); ++i) {
      const std::string type = StrCat("f32[", sizes[i], "]");
      StrAppend(&text, "  %x", i, " = input : ", type, " @[dp]\n", "  %f", i, " = exp(%x", i,
                ") : ", type, " @[dp]\n", "  %n", i, " = neg(%f", i, ") : ", type,
                " @[dp] phase update\n", "  %g", i, " = all_gather(%n", i, ") : ", type,
                " @[_] phase update\n");
    }
    text += "  return ";
    for (size_t i = 0; i < sizes.size(); ++i) StrAppend(&text, i == 0 ? "" : ", ", "%g", i);
    return text + "\n}";
  }

  // The names of what each bucket makes.
  std::vector<std::vector<std::string>> Buckets(const std::string& text,
                                                const BucketLimits& limits) const {
    const graph::Graph graph = MustParse(text);
    const absl::StatusOr<std::vector<NodePhase>> phases = AssignPhases(graph, {});
    EXPECT_TRUE(phases.ok()) << phases.status();
    std::vector<std::vector<std::string>> names;
    if (!phases.ok()) return names;
    for (const std::vector<graph::NodeId>& bucket : FormPhaseBuckets(graph, *phases, limits)) {
      std::vector<std::string>& of_bucket = names.emplace_back();
      for (const graph::NodeId id : bucket) {
        of_bucket.push_back(graph.value(graph.node(id).results[0]).name);
      }
    }
    return names;
  }
};

// The example of the header, in words of 4 bytes instead of MB.
TEST_F(PhaseBucketsTest, TheLastOfAPhaseRunsByItself) {
  const std::string four = Gathers({2, 2, 2, 2});
  EXPECT_THAT(Buckets(four, {.bytes = 16}), ElementsAre(ElementsAre("g0", "g1")));
  EXPECT_THAT(Buckets(four, {.bytes = 24}), ElementsAre(ElementsAre("g0", "g1", "g2")));
  EXPECT_THAT(Buckets(four, {.bytes = 15}), IsEmpty());
  EXPECT_THAT(Buckets(four, {.bytes = 0}), IsEmpty());
  EXPECT_THAT(Buckets(Gathers({2, 2}), {.bytes = 1024}), IsEmpty());
}

TEST_F(PhaseBucketsTest, BucketsAreFilledInTheOrderOfThePhase) {
  EXPECT_THAT(Buckets(Gathers({2, 6, 2, 4, 2}), {.bytes = 32}),
              ElementsAre(ElementsAre("g0", "g1"), ElementsAre("g2", "g3")));
  // What is larger than a bucket is in none.
  EXPECT_THAT(Buckets(Gathers({2, 20, 2, 2, 2}), {.bytes = 32}),
              ElementsAre(ElementsAre("g2", "g3")));
}

TEST_F(PhaseBucketsTest, LinksMayHaveALimitOfTheirOwn) {
  const BucketLimits limits = {
      .bytes = 1024,
      .bytes_over = [](CollectiveKind kind, const std::vector<graph::AxisRef>& axes) -> int64_t {
        EXPECT_EQ(kind, CollectiveKind::kAllGather);
        EXPECT_EQ(axes.size(), 1u);
        return 16;
      }};
  EXPECT_THAT(Buckets(Gathers({2, 2, 2, 2}), limits), ElementsAre(ElementsAre("g0", "g1")));
}

TEST_F(PhaseBucketsTest, WhatIsReadInItsPhaseDoesNotWait) {
  std::string text = Gathers({2, 2, 2, 2});
  text.replace(text.find("  %x1"), 0, "  %r = exp(%g0) : f32[2] @[_] phase update\n");
  text.replace(text.find("return "), 7, "return %r, ");
  EXPECT_THAT(Buckets(text, {.bytes = 16}), ElementsAre(ElementsAre("g1", "g2")));
}

}  // namespace
}  // namespace penstock::planner
