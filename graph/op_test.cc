#include "graph/op.h"

#include <fstream>
#include <string>

#include "gtest/gtest.h"

namespace penstock::graph {
namespace {

// A name that the list has twice would be lost silently.
TEST(OpRegistryTest, HasEveryOperatorOfTheList) {
  const OpRegistry ops = BuiltinOps();
  const std::vector<std::string_view> names = ops.Names();
  std::ifstream list(PENSTOCK_SOURCE_DIR "/graph/ops/op_list.cc");
  size_t num_listed = 0;
  for (std::string line; std::getline(list, line);) {
    num_listed += line.find("extern OpPtr") != std::string::npos ? 1 : 0;
  }
  EXPECT_GT(num_listed, 0);
  EXPECT_EQ(names.size(), num_listed);
  for (std::string_view name : names) {
    ASSERT_NE(ops.Find(name), nullptr);
    EXPECT_EQ(ops.Find(name)->name(), name);
  }
  EXPECT_EQ(ops.Find("matmull"), nullptr);
}

TEST(OpRegistryTest, RefusesATakenName) {
  class Twin : public Op {
   public:
    std::string_view name() const override { return "twin"; }
    int min_operands() const override { return 0; }
    absl::StatusOr<std::vector<TensorType>> InferTypes(const OpContext&) const override {
      return std::vector<TensorType>();
    }
    ShardingRule Rule(const OpContext&) const override { return {}; }
  };
  OpRegistry ops;
  EXPECT_TRUE(ops.Add(std::make_unique<Twin>()).ok());
  EXPECT_EQ(ops.Add(std::make_unique<Twin>()).code(), absl::StatusCode::kAlreadyExists);
}

TEST(NearestNameTest, IsTheClosestOrNothing) {
  EXPECT_EQ(NearestName("matmull", {"add", "matmul", "mul"}), "matmul");
  EXPECT_EQ(NearestName("axs", {"axis", "axes"}), "axis");
  EXPECT_EQ(NearestName("convolution", {"add", "matmul", "mul"}), "");
  EXPECT_EQ(NearestName("x", {}), "");
}

TEST(ShardingRuleTest, ElementwiseLeavesScalarsAlone) {
  const TensorType x{DType::kF32, {2, 3}};
  const ShardingRule rule = ShardingRule::Elementwise({x, {DType::kF32, {}}}, {x});
  ASSERT_EQ(rule.factors.size(), 2);
  EXPECT_EQ(rule.factors[1].size, 3);
  EXPECT_EQ(rule.operands[0], (TensorFactors{{0}, {1}}));
  EXPECT_EQ(rule.operands[1], TensorFactors());
  EXPECT_EQ(rule.results[0], (TensorFactors{{0}, {1}}));
}

}  // namespace
}  // namespace penstock::graph
