#include "transport/reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/half.h"

namespace penstock::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::Truly;

template <typename T>
std::vector<T> Fold(ReduceOp op, const std::vector<T>& a, const std::vector<T>& b) {
  std::vector<T> out(a.size());
  FindFold(op, DTypeOf<T>())(a.data(), b.data(), out.data(), static_cast<int64_t>(a.size()));
  return out;
}

TEST(ReduceTest, EveryOperation) {
  const std::vector<float> a = {1, -2, 3}, b = {5, 0.5, -4};
  EXPECT_THAT(Fold(ReduceOp::kSum, a, b), ElementsAre(6, -1.5, -1));
  EXPECT_THAT(Fold(ReduceOp::kProd, a, b), ElementsAre(5, -1, -12));
  EXPECT_THAT(Fold(ReduceOp::kMax, a, b), ElementsAre(5, 0.5, 3));
  EXPECT_THAT(Fold(ReduceOp::kMin, a, b), ElementsAre(1, -2, -4));
}

TEST(ReduceTest, IntegersWrapAround) {
  EXPECT_THAT(Fold<int8_t>(ReduceOp::kSum, {127, -128}, {1, -1}), ElementsAre(-128, 127));
  EXPECT_THAT(Fold<uint8_t>(ReduceOp::kProd, {16}, {17}), ElementsAre(16));
  EXPECT_THAT(Fold<int32_t>(ReduceOp::kProd, {1 << 30}, {6}), ElementsAre(INT32_MIN));
  EXPECT_THAT(Fold<int64_t>(ReduceOp::kSum, {INT64_MAX}, {1}), ElementsAre(INT64_MIN));
  EXPECT_THAT(Fold<uint8_t>(ReduceOp::kMax, {200}, {100}), ElementsAre(200));
  EXPECT_THAT(Fold<int8_t>(ReduceOp::kMax, {-56}, {100}), ElementsAre(100));
}

TEST(ReduceTest, NaNStays) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin}) {
    // A whole block and the rest behind it.
    const std::vector<float> a = Fold(op, std::vector<float>(19, nan), std::vector<float>(19, 1));
    const std::vector<float> b = Fold(op, std::vector<float>(19, 1), std::vector<float>(19, nan));
    EXPECT_THAT(a, ::testing::Each(Truly([](float x) { return std::isnan(x); })));
    EXPECT_THAT(b, ::testing::Each(Truly([](float x) { return std::isnan(x); })));
  }
}

TEST(ReduceTest, ResultMayBeEitherTerm) {
  const FoldFunction fold = FindFold(ReduceOp::kSum, DType::kI32);
  for (int64_t count : {0, 1, 15, 16, 17, 64, 100}) {
    std::vector<int32_t> a(count), b(count), expected(count);
    for (int64_t i = 0; i < count; ++i) {
      a[i] = static_cast<int32_t>(i);
      b[i] = static_cast<int32_t>(i * i);
      expected[i] = a[i] + b[i];
    }
    std::vector<int32_t> into_a = a, into_b = b;
    fold(into_a.data(), b.data(), into_a.data(), count);
    fold(a.data(), into_b.data(), into_b.data(), count);
    EXPECT_EQ(into_a, expected);
    EXPECT_EQ(into_b, expected);
  }
}

template <typename T>
void CheckHalves() {
  // 1 + 2^-9 is a tie in bf16, and even in f16.
  const std::vector<float> a = {1.0f, 1.5f, -3.0f, 65504.0f};
  const std::vector<float> b = {0x1p-9f, 2.0f, 0.5f, 65504.0f};
  std::vector<T> x, y;
  for (int i = 0; i < 40; ++i) {
    x.push_back(FromFloat<T>(a[i % 4]));
    y.push_back(FromFloat<T>(b[i % 4]));
  }
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kProd, ReduceOp::kMax, ReduceOp::kMin}) {
    std::vector<T> folded(x.size());
    FindFold(op, DTypeOf<T>())(x.data(), y.data(), folded.data(), 40);
    for (int i = 0; i < 40; ++i) {
      const float p = ToFloat(x[i]);
      const float q = ToFloat(y[i]);
      const float exact = op == ReduceOp::kSum    ? p + q
                          : op == ReduceOp::kProd ? p * q
                          : op == ReduceOp::kMax  ? std::max(p, q)
                                                  : std::min(p, q);
      EXPECT_EQ(folded[i].bits, FromFloat<T>(exact).bits) << i;
    }
  }
}

TEST(ReduceTest, FloatsOf16BitsAreFoldedInF32AndRounded) {
  CheckHalves<BFloat16>();
  CheckHalves<Float16>();
}

TEST(ReduceTest, WhatThereIsNot) {
  EXPECT_EQ(FindFold(ReduceOp::kSum, DType::kBool), nullptr);
  EXPECT_EQ(FindFold(ReduceOp::kProd, DType::kBool), nullptr);
  EXPECT_NE(FindFold(ReduceOp::kMax, DType::kBool), nullptr);
}

}  // namespace
}  // namespace penstock::transport
