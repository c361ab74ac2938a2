// Which products with an epilogue are one launch of the library, and how it sees them.

#include "kernels/cuda/epilogue_plan.h"

#include <optional>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "graph/op.h"
#include "tests/support/interpreter.h"

namespace penstock::kernels::cuda {
namespace {

KernelSpec Spec(const std::string& op, const std::string& equation, std::vector<TensorType> inputs,
                bool binds_all = true) {
  static const graph::OpRegistry ops = graph::BuiltinOps();
  KernelSpec spec;
  spec.op = op;
  spec.attributes = {{"equation", equation}};
  auto results = graph::InferResultTypes(*ops.Find(op), spec.attributes, inputs);
  EXPECT_TRUE(results.ok()) << results.status();
  if (!results.ok()) return spec;
  if (!binds_all) results->resize(1);
  for (const TensorType& type : inputs) spec.inputs.push_back(testing::WholeTile(type));
  for (const TensorType& type : *results) spec.outputs.push_back(testing::WholeTile(type));
  return spec;
}

TensorType BF16(Shape shape) { return {DType::kBF16, std::move(shape)}; }
TensorType F32(Shape shape) { return {DType::kF32, std::move(shape)}; }

TEST(EpiloguePlanTest, TheBiasIsAColumnOfTheColumnMajorProduct) {
  const auto plan = PlanEpilogue(Spec("einsum_bias", "bsd,dchk->bschk",
                                      {BF16({2, 4, 16}), BF16({16, 3, 2, 8}), BF16({3, 2, 8})}));
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->epilogue, BlasEpilogue::kBias);
  EXPECT_EQ(plan->layout.rows, 3 * 2 * 8);
  EXPECT_EQ(plan->layout.columns, 2 * 4);
  EXPECT_EQ(plan->types.operands, DType::kBF16);
  EXPECT_EQ(plan->types.result, DType::kBF16);
  EXPECT_EQ(plan->alignment, 16);
}

TEST(EpiloguePlanTest, GeluKeepsWhatItsGradientReadsIfThatIsBound) {
  const std::vector<TensorType> operands = {F32({6, 16}), F32({16, 24}), F32({24})};
  const auto with = PlanEpilogue(Spec("einsum_bias_gelu", "mk,kn->mn", operands));
  ASSERT_TRUE(with.has_value());
  EXPECT_EQ(with->epilogue, BlasEpilogue::kBiasGeluAux);
  const auto without = PlanEpilogue(Spec("einsum_bias_gelu", "mk,kn->mn", operands, false));
  ASSERT_TRUE(without.has_value());
  EXPECT_EQ(without->epilogue, BlasEpilogue::kBiasGelu);
}

// cuBLASLt wants 8 elements between its columns and addresses at multiples of 16 bytes.
TEST(EpiloguePlanTest, WhatTheGradientReadsHasAlignedColumns) {
  const auto plan = [](int64_t m, int64_t k, int64_t n) {
    return PlanEpilogue(
        Spec("einsum_gelu_grad", "mk,kn->mn", {F32({m, k}), F32({k, n}), F32({m, n})}));
  };
  ASSERT_TRUE(plan(5, 4, 8).has_value());
  EXPECT_EQ(plan(5, 4, 8)->epilogue, BlasEpilogue::kGeluGrad);
  EXPECT_FALSE(plan(5, 4, 12).has_value());  // 12 elements
  EXPECT_FALSE(plan(5, 3, 8).has_value());   // 12 bytes between rows of the first operand
}

TEST(EpiloguePlanTest, LongSumsAreFasterWithoutTheGradientOfGelu) {
  const auto plan = [](int64_t k, TensorType (*type)(Shape)) {
    return PlanEpilogue(
        Spec("einsum_gelu_grad", "mk,kn->mn", {type({8, k}), type({k, 16}), type({8, 16})}));
  };
  EXPECT_TRUE(plan(3072, BF16).has_value());
  EXPECT_FALSE(plan(4096, BF16).has_value());
  EXPECT_TRUE(plan(4096, F32).has_value());
}

// The vector of a bias may lie anywhere, as long as its elements do.
TEST(EpiloguePlanTest, ABiasNeedsTheAlignmentOfItsMatrices) {
  const auto plan =
      PlanEpilogue(Spec("einsum_bias", "mk,kn->mn", {F32({6, 3}), F32({3, 5}), F32({5})}));
  ASSERT_TRUE(plan.has_value());
  EXPECT_EQ(plan->alignment, 4);
}

TEST(EpiloguePlanTest, AMatrixIsAddedWithABiasAndWithout) {
  const auto both =
      PlanEpilogue(Spec("einsum_bias", "bmk,kn->bmn",
                        {BF16({2, 9, 16}), BF16({16, 24}), BF16({24}), BF16({2, 9, 24})}));
  ASSERT_TRUE(both.has_value());
  EXPECT_EQ(both->epilogue, BlasEpilogue::kBiasAdd);
  EXPECT_EQ(both->layout.rows, 24);
  EXPECT_EQ(both->layout.columns, 2 * 9);
  // Without a bias the product may lie in any way that the library has.
  for (const std::string result : {"mn", "nm"}) {
    const auto alone = PlanEpilogue(
        Spec("einsum_bias", "mk,kn->" + result,
             {F32({4, 8}), F32({8, 16}), result == "mn" ? F32({4, 16}) : F32({16, 4})}));
    ASSERT_TRUE(alone.has_value()) << result;
    EXPECT_EQ(alone->epilogue, BlasEpilogue::kAdd);
    EXPECT_EQ(alone->layout.is_swapped, result == "mn");
  }
}

TEST(EpiloguePlanTest, OtherProductsTakeSeveralLaunches) {
  // A batch of matrices, for each of which the bias has a row.
  EXPECT_FALSE(PlanEpilogue(Spec("einsum_bias", "bmk,bkn->bmn",
                                 {F32({2, 4, 8}), F32({2, 8, 8}), F32({4, 8})}))
                   .has_value());
  // Rows of the result are those of the second operand.
  EXPECT_FALSE(PlanEpilogue(Spec("einsum_bias", "mk,kn->nm", {F32({4, 8}), F32({8, 16}), F32({4})}))
                   .has_value());
  EXPECT_FALSE(PlanEpilogue(Spec("einsum_bias", "mk,kn->nm",
                                 {F32({4, 8}), F32({8, 16}), F32({4}), F32({16, 4})}))
                   .has_value());
  // In f64.
  const TensorType f64 = {DType::kF64, {8, 8}};
  EXPECT_FALSE(
      PlanEpilogue(Spec("einsum_bias", "mk,kn->mn", {f64, f64, {DType::kF64, {8}}})).has_value());
}

}  // namespace
}  // namespace penstock::kernels::cuda
