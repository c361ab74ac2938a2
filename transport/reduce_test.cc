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

// Eight terms, of which all but the first are too small to be seen by a fold that rounds each sum.
// The result may go where any of them lies.
template <typename T>
void CheckSumOfEightHalves(float first) {
  for (const int64_t count : {1, 31, 32, 100}) {
    for (size_t result = 0; result < 9; ++result) {
      std::vector<std::vector<T>> terms(9, std::vector<T>(count));
      std::vector<const std::byte*> pointers;
      std::vector<uint16_t> expected, folded;
      for (size_t t = 0; t < 8; ++t) {
        for (int64_t i = 0; i < count; ++i) {
          terms[t][i] = FromFloat<T>(t == 0 ? first : 1 - static_cast<float>((i + t) % 5) / 8);
        }
        pointers.push_back(reinterpret_cast<const std::byte*>(terms[t].data()));
      }
      for (int64_t i = 0; i < count; ++i) {
        float sum = ToFloat(terms[0][i]);
        for (size_t t = 1; t < 8; ++t) sum += ToFloat(terms[t][i]);
        expected.push_back(FromFloat<T>(sum).bits);
        EXPECT_GT(sum, first + 3);
      }
      std::vector<float> partial(count);
      const FoldSteps steps = FindFoldSteps(ReduceOp::kSum, DTypeOf<T>());
      ASSERT_EQ(steps.partial_bytes, 4);
      FoldTerms(steps, pointers, partial.data(), terms[result].data(), count);
      for (const T x : terms[result]) folded.push_back(x.bits);
      EXPECT_EQ(folded, expected) << count << " elements over term " << result;
    }
  }
}

TEST(ReduceTest, SumsOfManyFloatsOf16BitsAreRoundedOnce) {
  CheckSumOfEightHalves<BFloat16>(256);  // the next one is 258
  CheckSumOfEightHalves<Float16>(2048);  // the next one is 2050
}

TEST(ReduceTest, OtherTermsAreFoldedInTheirType) {
  const std::vector<int8_t> terms[] = {{100, 2, 3}, {100, -2, 4}, {-90, 5, -1}, {1, 1, 1}};
  std::vector<const std::byte*> pointers;
  for (const auto& term : terms) {
    pointers.push_back(reinterpret_cast<const std::byte*>(term.data()));
  }
  const FoldSteps steps = FindFoldSteps(ReduceOp::kSum, DType::kI8);
  EXPECT_EQ(steps.partial_bytes, 1);
  std::vector<int8_t> partial(3), sum(3);
  FoldTerms(steps, pointers, partial.data(), sum.data(), 3);
  EXPECT_THAT(sum, ElementsAre(111, 6, 7));
  FoldTerms(steps, absl::MakeSpan(pointers).first(3), partial.data(), sum.data(), 3);
  EXPECT_THAT(sum, ElementsAre(110, 5, 6));
  FoldTerms(steps, absl::MakeSpan(pointers).first(2), partial.data(), sum.data(), 3);
  EXPECT_THAT(sum, ElementsAre(-56, 0, 7));
}

TEST(ReduceTest, WhatThereIsNot) {
  EXPECT_EQ(FindFold(ReduceOp::kSum, DType::kBool), nullptr);
  EXPECT_EQ(FindFold(ReduceOp::kProd, DType::kBool), nullptr);
  EXPECT_NE(FindFold(ReduceOp::kMax, DType::kBool), nullptr);
}

}  // namespace
}  // namespace penstock::transport
