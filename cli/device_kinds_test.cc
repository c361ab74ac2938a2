#include "cli/device_kinds.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

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

TEST(DeviceKindsTest, SaysWhichGpusHaveDirectAccess) {
  kernels::Gpu gpu;
  gpu.name = "NVIDIA H100 80GB HBM3";
  gpu.capability = 90;
  gpu.memory_bytes = uint64_t{80} << 30;
  gpu.num_processors = 132;
  const std::string alone =
      "GPU 1: NVIDIA H100 80GB HBM3, compute capability 9.0, 80.0 GiB, 132 multiprocessors";
  EXPECT_EQ(DescribeGpu(gpu, 1, 1), alone);
  EXPECT_EQ(DescribeGpu(gpu, 1, 2), alone + ", no direct access to other GPUs");
  gpu.peers = {0, 2};
  EXPECT_EQ(DescribeGpu(gpu, 1, 3), alone + ", direct access to 0, 2");
}

TEST(DeviceKindsTest, TellsTheVersionOfTheDriver) {
  kernels::GpuSystem system;
  system.runtime_version = 12080;
  system.driver_version = 13000;
  EXPECT_EQ(DescribeCuda(system, ""),
            "CUDA 12.8; the newest that the driver supports is CUDA 13.0");
  for (const char* module : {"x86_64 Kernel Module", "Open Kernel Module for x86_64"}) {
    EXPECT_EQ(DescribeCuda(system, StrCat("NVRM version: NVIDIA UNIX ", module,
                                          "  580.159.03  Release Build  (root@h)  Sun Oct 12\n"
                                          "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")),
              "CUDA 12.8; the newest that the driver 580.159.03 supports is CUDA 13.0");
  }
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
