#include "planner/fit.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/format.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

FoldedPlan TwoDevices() {
  FoldedPlan plan;
  plan.common.stages.resize(1);
  plan.class_of = {0, 1};
  std::vector<DevicePlan>& devices = plan.programs;
  devices.resize(2);
  devices[0].arena_bytes = 1 << 20;
  devices[1].arena_bytes = 3435973836;
  devices[1].state_bytes = 1181116006;
  devices[1].channel_bytes = 1 << 30;
  devices[1].workspace_bytes = 512 << 20;
  return plan;
}

TEST(CheckFits, AcceptsWhatFitsExactly) {
  EXPECT_TRUE(CheckFits(TwoDevices(), {1 << 20, 3435973836}).ok());
}

TEST(CheckFits, NamesTheDeviceAndTheAmounts) {
  const absl::Status status = CheckFits(TwoDevices(), {1 << 20, 1 << 30});
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(std::string(status.message()),
            "device 1 needs 3.2 GiB (3435973836 bytes): state 1.1 GiB, channels 1.0 GiB, workspace "
            "512.0 MiB; it has 1.0 GiB (1073741824 bytes)");
}

TEST(CheckFits, CountsFurtherDevices) {
  const absl::Status status = CheckFits(TwoDevices(), {0, 0});
  EXPECT_THAT(std::string(status.message()), HasSubstr("device 0 needs 1.0 MiB"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("1 more"));
}

TEST(CheckFits, WantsOneAmountADevice) {
  EXPECT_EQ(CheckFits(TwoDevices(), {1}).code(), absl::StatusCode::kInvalidArgument);
}

TEST(Format, Bytes) {
  EXPECT_EQ(FormatBytes(0), "0 B");
  EXPECT_EQ(FormatBytes(1023), "1023 B");
  EXPECT_EQ(FormatBytes(1024), "1.0 KiB");
  EXPECT_EQ(FormatBytes((1 << 20) - 1), "1.0 MiB");
  EXPECT_EQ(FormatBytes(UINT64_MAX), "16.0 EiB");
}

TEST(Format, Seconds) {
  EXPECT_EQ(FormatSeconds(1.25), "1.25 s");
  EXPECT_EQ(FormatSeconds(3.4e-3), "3.40 ms");
  EXPECT_EQ(FormatSeconds(12.5e-6), "12.5 us");
}

}  // namespace
}  // namespace penstock::planner
