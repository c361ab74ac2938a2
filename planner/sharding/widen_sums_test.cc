#include "planner/sharding/widen_sums.h"

#include <string>
#include <string_view>

#include "gmock/gmock.h"

#include "planner/opt.h"
#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class WidenSumsTest : public testing::PlannerFixture {
 protected:
  graph::Graph Widen(std::string_view text) const {
    graph::Graph graph = InsertReshards(MustParse(text));
    EXPECT_TRUE(WidenSums(ops_, graph).ok());
    const absl::Status verified = graph::VerifyGraph(graph);
    EXPECT_TRUE(verified.ok()) << verified << "\n" << graph::PrintGraph(graph);
    return graph;
  }
};

TEST_F(WidenSumsTest, AProductLeavesItsPartInF32AndTheSumIsRounded) {
  constexpr std::string_view kText = R"(mesh m = [tp=2]
graph g {
  %x = input : bf16[4, 8] @[_, tp]
  %w = parameter : bf16[8, 4] @[tp, _]
  %p = matmul(%x, %w) : bf16[4, 4] @[_, _]
  %y = tanh(%p) : bf16[4, 4] @[_, _]
  return %y @[_, _]
})";
  const auto printed =
      Optimize(kText, "g.pst", "propagate,insert-reshards,widen-sums,lower-reshards,verify", ops_);
  ASSERT_TRUE(printed.ok()) << printed.status();
  EXPECT_EQ(*printed, R"(mesh m = [tp=2]

graph g {
  %x = input : bf16[4, 8] @[_, tp]
  %w = parameter : bf16[8, 4] @[tp, _]
  %p.local = matmul(%x, %w) {dtype=f32} : f32[4, 4] @[_, _] partial(sum, tp)
  %p.f32 = all_reduce(%p.local) : f32[4, 4] @[_, _]
  %p = cast(%p.f32) {dtype=bf16} : bf16[4, 4] @[_, _]
  %y = tanh(%p) : bf16[4, 4] @[_, _]
  return %y @[_, _]
}
)");
}

TEST_F(WidenSumsTest, PartsThatAreAddedFirstAreAddedInF32) {
  const graph::Graph graph = Widen(R"(mesh m = [tp=2]
graph g {
  %x = input : f16[4, 8] @[_, tp]
  %v = parameter : f16[8, 4] @[tp, _]
  %w = parameter : f16[8, 4] @[tp, _]
  %a = matmul(%x, %v) : f16[4, 4]
  %b = matmul(%x, %w) : f16[4, 4]
  %y = add(%a, %b) : f16[4, 4]
  return %y @[tp, _]
})");
  EXPECT_THAT(
      Statements(graph, "add"),
      ElementsAre("%y.local = add(%a.local, %b.local) : f32[4, 4] @[_, _] partial(sum, tp)"));
  EXPECT_THAT(Statements(graph, "reshard"),
              ElementsAre("%y.f32 = reshard(%y.local) : f32[4, 4] @[tp, _]"));
  EXPECT_THAT(Statements(graph, "cast"),
              ElementsAre("%y = cast(%y.f32) {dtype=f16} : f16[4, 4] @[tp, _]"));
}

// The rows of a table that is split over them.
TEST_F(WidenSumsTest, PartsOfOtherOperatorsAreCast) {
  const graph::Graph graph = Widen(R"(mesh m = [tp=2]
graph g {
  %table = parameter : bf16[8, 4] @[tp, _]
  %ids = input : i32[6]
  %x = embedding(%table, %ids) : bf16[6, 4] @[_, _]
  return %x @[_, _]
})");
  EXPECT_THAT(
      Statements(graph, "cast"),
      ElementsAre("%x.local.f32 = cast(%x.local) {dtype=f32} : f32[6, 4] @[_, _] partial(sum, tp)",
                  "%x = cast(%x.f32) {dtype=bf16} : bf16[6, 4] @[_, _]"));
}

// As with train.gradient_dtype, and what is f32 anyway.
TEST_F(WidenSumsTest, SumsThatTheProgramRoundsStayAsTheyAre) {
  constexpr std::string_view kText = R"(mesh m = [dp=2]
graph g {
  %x = input : f32[8, 4] @[dp, _]
  %dz = input : f32[8, 6] @[dp, _]
  %dw = matmul(%x, %dz) {transpose_a=true} : f32[4, 6]
  %low = cast(%dw) {dtype=bf16, partial_sums="round"} : bf16[4, 6]
  %sum = cast(%low) {dtype=f32} : f32[4, 6] @[_, _]
  %dv = matmul(%dz, %x) {transpose_a=true} : f32[6, 4] @[_, _]
  return %sum @[_, _], %dv @[_, _]
})";
  const graph::Graph before = InsertReshards(MustParse(kText));
  EXPECT_THAT(Statements(before, "reshard"), ::testing::SizeIs(2));
  EXPECT_EQ(graph::PrintGraph(Widen(kText)), graph::PrintGraph(before));
}

TEST_F(WidenSumsTest, WithoutSumsNothingChanges) {
  const graph::Graph graph = Widen(R"(mesh m = [tp=2]
graph g {
  %x = input : bf16[4, 8] @[tp, _]
  %y = tanh(%x) : bf16[4, 8] @[_, _]
  return %y @[_, _]
})");
  EXPECT_THAT(Statements(graph, "cast"), IsEmpty());
}

}  // namespace
}  // namespace penstock::planner
