#include "base/dtype.h"

#include <cstdint>
#include <optional>
#include <type_traits>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(DTypeTest, NamesRoundTrip) {
  for (int i = 0; i < kNumDTypes; ++i) {
    const auto dtype = static_cast<DType>(i);
    EXPECT_EQ(ParseDType(Name(dtype)), dtype);
    EXPECT_FALSE(IsFloat(dtype) && IsInteger(dtype));
  }
  EXPECT_EQ(ParseDType("f33"), std::nullopt);
  EXPECT_EQ(ParseDType(""), std::nullopt);
  EXPECT_EQ(ParseDType("F32"), std::nullopt);
}

TEST(DTypeTest, Sizes) {
  EXPECT_EQ(ByteSize(DType::kF64), 8u);
  EXPECT_EQ(ByteSize(DType::kF16), 2u);
  EXPECT_EQ(ByteSize(DType::kBF16), 2u);
  EXPECT_EQ(ByteSize(DType::kBool), 1u);
}

template <typename T>
class NativeDTypeTest : public ::testing::Test {};
using NativeTypes = ::testing::Types<float, double, int8_t, uint8_t, int32_t, int64_t, bool>;
TYPED_TEST_SUITE(NativeDTypeTest, NativeTypes);

TYPED_TEST(NativeDTypeTest, HasTheSizeAndKindOfItsCppType) {
  EXPECT_EQ(ByteSize(DTypeOf<TypeParam>()), sizeof(TypeParam));
  EXPECT_EQ(IsFloat(DTypeOf<TypeParam>()), std::is_floating_point_v<TypeParam>);
  constexpr bool is_bool = std::is_same_v<TypeParam, bool>;
  EXPECT_EQ(IsInteger(DTypeOf<TypeParam>()), std::is_integral_v<TypeParam> && !is_bool);
}

}  // namespace
}  // namespace penstock
