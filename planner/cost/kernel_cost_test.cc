#include "planner/cost/kernel_cost.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

TilePlan Tile(Shape shape) {
  TilePlan tile;
  tile.shape = std::move(shape);
  return tile;
}

TEST(KernelCostTest, AnOperatorSaysWhatItCosts) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  KernelPlan product = {"matmul", {}, {Tile({2, 3}), Tile({3, 5})}, {Tile({2, 5})}};
  EXPECT_EQ(KernelCost(ops, product).flops, 2 * 2 * 3 * 5);
  EXPECT_EQ(KernelCost(ops, product).bytes, 4 * (6 + 15 + 10));
  product.accumulate = true;  // the sum is read, too
  EXPECT_EQ(KernelCost(ops, product).bytes, 4 * (6 + 15 + 10 + 10));
}

TEST(KernelCostTest, OthersCopy) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  // What is fed has no tile on the other side.
  EXPECT_EQ(KernelCost(ops, {"feed", {}, {}, {Tile({8})}}).bytes, 2 * 32);
  EXPECT_EQ(KernelCost(ops, {"pack", {}, {Tile({8}), Tile({4})}, {Tile({12})}}).bytes, 2 * 48);
  EXPECT_EQ(KernelCost(ops, {"pack", {}, {Tile({8})}, {Tile({12})}}).flops, 0);
}

class CheckKernelTilesTest : public ::testing::Test {
 protected:
  // The tile [begin of `shape`] of a tensor.
  static TilePlan PartOf(Shape global, Shape shape) {
    TilePlan tile = Tile(std::move(shape));
    tile.offset = Shape(global.size(), 0);
    tile.microbatch_stride = tile.offset;
    tile.global = std::move(global);
    return tile;
  }
  static TilePlan Whole(const Shape& shape) { return PartOf(shape, shape); }

  std::string Check(KernelPlan spec) const {
    return std::string(CheckKernelTiles(ops_, {std::move(spec)}).message());
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
};

TEST_F(CheckKernelTilesTest, AcceptsPartsThatFit) {
  EXPECT_EQ(Check({"matmul",
                   {},
                   {PartOf({8, 6}, {4, 3}), PartOf({6, 10}, {3, 10})},
                   {PartOf({8, 10}, {4, 10})}}),
            "");
  EXPECT_EQ(Check({"local_slice", {}, {PartOf({8}, {4})}, {PartOf({8}, {2})}}), "");
  EXPECT_EQ(Check({"feed", {}, {}, {Whole({8})}}), "");
  EXPECT_EQ(Check({"constant", {{"value", 0.0}}, {}, {Whole({8})}}), "");
}

TEST_F(CheckKernelTilesTest, RefusesWhatCostsCannotBeTakenOf) {
  EXPECT_EQ(Check({"embedding", {}, {Whole({8, 4})}, {Whole({2, 4})}}),
            "kernel 0 'embedding' does not fit its tiles: embedding: takes 2 operands, not 1");
  EXPECT_EQ(Check({"matmul", {}, {Whole({8, 6}), Whole({6, 10})}, {}}),
            "kernel 0 'matmul' does not fit its tiles: it has no output");
  EXPECT_EQ(Check({"pack", {}, {Whole({8})}, {}}),
            "kernel 0 'pack' does not fit its tiles: it has no output");
  EXPECT_THAT(Check({"matmul", {}, {Whole({8, 6}), Whole({5, 10})}, {Whole({8, 10})}}),
              ::testing::StartsWith("kernel 0 'matmul' does not fit its tiles: matmul: "));
  EXPECT_THAT(Check({"matmul", {}, {Whole({8, 6}), Whole({6, 10})}, {Whole({10, 8})}}),
              ::testing::HasSubstr("output 0 is of f32[10, 8], expected f32[8, 10]"));
  EXPECT_EQ(Check({"einsum",
                   {{"equation", std::string("mk,kn->mn")}},
                   {PartOf({8, 6}, {4, 6}), PartOf({6, 10}, {3, 10})},
                   {PartOf({8, 10}, {4, 10})}}),
            "kernel 0 'einsum' does not fit its tiles: dimension 0 of input 1 has 3 elements where "
            "another tile has 6");
}

}  // namespace
}  // namespace penstock::planner
