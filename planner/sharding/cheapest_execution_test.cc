#include "planner/sharding/cheapest_execution.h"

#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "tests/support/planner_fixture.h"

namespace penstock::planner {
namespace {

class CheapestExecutionTest : public testing::PlannerFixture {
 protected:
  std::string Choose(std::string_view text, const std::vector<double>& shares = {}) const {
    return ChooseForLastNode(text, [&shares](const NodeToExecute& node) {
      ReshardCache cache(node.mesh);
      return ChooseCheapestExecution(node.mesh, node.rule, node.operand_types, node.result_types,
                                     node.operands, node.results, shares, /*moves_again=*/true,
                                     &cache);
    });
  }
};

TEST_F(CheapestExecutionTest, APartialProductIsScattered) {
  EXPECT_EQ(Choose(R"(mesh m = [a=2]
graph g {
  %x = input : f32[8, 16] @[_, a]
  %w = input : f32[16, 4] @[a, _]
  %y = matmul(%x, %w) : f32[8, 4] @[a, _]
  return %y
})"),
            "@[_, a], @[a, _] -> @[_, _] partial(sum, a)");
}

// The same shardings of a product whose result is the largest of the three.
TEST_F(CheapestExecutionTest, SmallOperandsMoveInsteadOfALargeResult) {
  EXPECT_EQ(Choose(R"(mesh m = [a=2]
graph g {
  %x = input : f32[64, 2] @[_, a]
  %w = input : f32[2, 64] @[a, _]
  %y = matmul(%x, %w) : f32[64, 64] @[a, _]
  return %y
})"),
            "@[a, _], @[_, _] -> @[a, _]");
}

// ZeRO-3: the weight of a data-parallel layer is split over dp and gathered for use, because
// reducing the activations would cost more.
TEST_F(CheapestExecutionTest, SplitWeightsOfLargeBatchesAreGathered) {
  EXPECT_EQ(Choose(R"(mesh m = [dp=4]
graph g {
  %x = input : f32[4096, 64] @[dp, _]
  %w = input : f32[64, 64] @[dp, _]
  %y = matmul(%x, %w) : f32[4096, 64] @[dp, _]
  return %y
})"),
            "@[dp, _], @[_, _] -> @[dp, _]");
}

// Its weight gradient goes to where the weight lies by one reduce_scatter.
TEST_F(CheapestExecutionTest, WeightGradientsOfSplitWeightsAreScattered) {
  EXPECT_EQ(Choose(R"(mesh m = [dp=4]
graph g {
  %x = input : f32[64, 4096] @[_, dp]
  %dy = input : f32[4096, 64] @[dp, _]
  %dw = matmul(%x, %dy) : f32[64, 64] @[dp, _]
  return %dw
})"),
            "@[_, dp], @[dp, _] -> @[_, _] partial(sum, dp)");
}

TEST_F(CheapestExecutionTest, NoAxisGoesUnused) {
  // Leaving b out would move nothing, but both devices on b would do the same work.
  EXPECT_EQ(Choose(R"(mesh m = [a=2, b=2]
graph g {
  %x = input : f32[8, 16] @[_, a]
  %w = input : f32[16, 32] @[b, _]
  %y = matmul(%x, %w) : f32[8, 32]
  return %y
})"),
            "@[_, b], @[b, _] -> @[_, _] partial(sum, b)");
}

TEST_F(CheapestExecutionTest, MicrobatchesStayWhereTheyAre) {
  EXPECT_EQ(Choose(R"(mesh m = [mb=2 temporal, a=2]
graph g {
  %x = input : f32[8, 16] @[mb, a]
  %w = input : f32[16, 4] @[a, _]
  %y = matmul(%x, %w) : f32[8, 4] @[mb.a, _]
  return %y
})"),
            "@[mb, a], @[a, _] -> @[mb, _] partial(sum, a)");
}

// Where the others would move, what stays counts half; and what is gathered for several readers is
// charged to each in part.
TEST_F(CheapestExecutionTest, ResidualStreamsAreGatheredForProducts) {
  constexpr const char* kProjection = R"(mesh m = [tp=2]
graph g {
  %h = input : f32[1024, 64] @[_, tp]
  %w = input : f32[64, 64] @[tp, _]
  %y = matmul(%h, %w) : f32[1024, 64] @[tp, _]
  return %y
})";
  EXPECT_EQ(Choose(kProjection), "@[_, tp], @[tp, _] -> @[_, _] partial(sum, tp)");
  constexpr const char* kGradient = R"(mesh m = [tp=2]
graph g {
  %dy = input : f32[1024, 64] @[tp, _]
  %w = input : f32[64, 64] @[tp, _]
  %dh = matmul(%dy, %w) {transpose_b=true} : f32[1024, 64] @[_, tp]
  return %dh
})";
  EXPECT_EQ(Choose(kGradient), "@[tp, _], @[_, _] -> @[tp, _]");
  EXPECT_EQ(Choose(kGradient, {0.5, 1}), "@[_, _], @[tp, _] -> @[_, tp]");
}

}  // namespace
}  // namespace penstock::planner
