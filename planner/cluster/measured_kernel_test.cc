#include "planner/cluster/measured_kernel.h"

#include <limits>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

std::string MeasuredKernelError(const MeasuredKernel& measured) {
  return std::string(ToStd(CheckMeasuredKernel(measured).message()));
}

TEST(MeasuredKernelTest, TheExampleOfTheHeader) {
  const MeasuredKernel gelu = {"gelu", DType::kF32, RooflineBound::kMemory, {{10, 3}, {1000, 4}}};
  EXPECT_TRUE(CheckMeasuredKernel(gelu).ok());
  EXPECT_DOUBLE_EQ(10 * SlowdownAt(gelu, 10), 30);
  EXPECT_DOUBLE_EQ(100 * SlowdownAt(gelu, 100), 350);
  EXPECT_DOUBLE_EQ(1000 * SlowdownAt(gelu, 1000), 4000);
}

TEST(MeasuredKernelTest, BoundsHaveNames) {
  for (const RooflineBound bound : {RooflineBound::kCompute, RooflineBound::kMemory}) {
    EXPECT_EQ(ParseRooflineBound(Name(bound)), bound);
  }
  EXPECT_EQ(ParseRooflineBound("flops"), std::nullopt);
}

TEST(MeasuredKernelTest, TheEndsOfTheCurveHoldBeyondIt) {
  const MeasuredKernel gelu = {"gelu", DType::kF32, RooflineBound::kMemory, {{10, 3}, {1000, 4}}};
  EXPECT_EQ(SlowdownAt(gelu, 0), 3);
  EXPECT_EQ(SlowdownAt(gelu, 1e12), 4);
  EXPECT_EQ(SlowdownAt({"add", DType::kF32, RooflineBound::kMemory, {{5, 0.5}}}, 7), 0.5);
}

TEST(MeasuredKernelTest, RefusesWhatCannotHaveBeenMeasured) {
  EXPECT_THAT(MeasuredKernelError({"", DType::kF32, RooflineBound::kMemory, {{1, 1}}}),
              HasSubstr("op is empty"));
  EXPECT_THAT(MeasuredKernelError({"add", DType::kF32, RooflineBound::kMemory, {}}),
              HasSubstr("slowdown is empty"));
  EXPECT_THAT(MeasuredKernelError({"add", DType::kF32, RooflineBound::kMemory, {{0, 1}}}),
              HasSubstr("slowdown at 0 us: expected"));
  EXPECT_THAT(MeasuredKernelError({"add", DType::kF32, RooflineBound::kMemory, {{1, 0}}}),
              HasSubstr("slowdown by 0: expected"));
  EXPECT_THAT(MeasuredKernelError({"add",
                                   DType::kF32,
                                   RooflineBound::kMemory,
                                   {{1, std::numeric_limits<double>::quiet_NaN()}}}),
              HasSubstr("slowdown by nan"));
  EXPECT_THAT(MeasuredKernelError({"add", DType::kF32, RooflineBound::kMemory, {{2, 1}, {1, 1}}}),
              HasSubstr("slowdown is not in order: 1 us after 2"));
  MeasuredKernel long_one = {"add", DType::kF32, RooflineBound::kMemory, {}};
  for (int i = 0; i <= kMaxSlowdownPoints; ++i) long_one.slowdown.push_back({i + 1.0, 1});
  EXPECT_THAT(MeasuredKernelError(long_one), HasSubstr("expected at most 64"));
}

}  // namespace
}  // namespace penstock::planner
