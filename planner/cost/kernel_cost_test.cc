#include "planner/cost/kernel_cost.h"

#include "gtest/gtest.h"

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

}  // namespace
}  // namespace penstock::planner
