#include "cli/device_kinds.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;

TEST(DeviceKindsTest, SaysWhyTheHostRunsCollectivesOfGpus) {
  const DeviceList gpus("cuda");
  EXPECT_EQ(CheckGpuCollectives(gpus, 4, 4), absl::OkStatus());
  EXPECT_THAT(std::string(CheckGpuCollectives(gpus, 4, 2).message()),
              HasSubstr("4 devices share 2 GPUs"));
  EXPECT_THAT(std::string(CheckGpuCollectives(*DeviceList::Parse("cpu:1,cuda:3"), 4, 4).message()),
              HasSubstr("devices of other kinds"));
  EXPECT_EQ(CollectivesNote("NCCL 2.28.9", ""), "what the GPUs exchange goes through NCCL 2.28.9");
  EXPECT_EQ(CollectivesNote("NCCL 2.28.9", "device 0 has too many peers"),
            "collectives of the GPUs go through NCCL 2.28.9, messages through the memory of the "
            "host: device 0 has too many peers");
  EXPECT_EQ(CollectivesNote(absl::FailedPreconditionError("rank 1 on h: no NCCL"), ""),
            "what the GPUs exchange goes through the memory of the host: rank 1 on h: no NCCL");
}

// What nodes say of devices that no communicator joins.
TEST(DeviceKindsTest, ANodeOfOtherDevicesHasNoCommunicators) {
  const absl::StatusOr<DeviceSource> source = FindNodeDevices(DeviceList("emulated"));
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->communicators, nullptr);
  EXPECT_THAT(source->no_communicators, HasSubstr("NCCL joins GPUs alone"));
}

}  // namespace
}  // namespace penstock::cli
