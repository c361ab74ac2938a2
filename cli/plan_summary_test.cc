#include "cli/plan_summary.h"

#include <string>

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

std::string Devices(const std::string& cluster, int64_t num_devices, int64_t threads) {
  const absl::StatusOr<Job> job = ParseJob("[cluster]\n" + cluster, "job.toml", "", {});
  EXPECT_TRUE(job.ok()) << job.status();
  return job.ok() ? DescribeDevices(*job, num_devices, threads) : "";
}

TEST(DescribeDevicesTest, OnlyCpusHaveThreads) {
  EXPECT_EQ(Devices("", 1, 2), "1 device of 2 threads");
  EXPECT_EQ(Devices("", 4, 1), "4 devices of 1 thread");
  EXPECT_EQ(Devices("device_kind = \"cuda\"\n", 8, 1), "8 GPUs");
  EXPECT_EQ(Devices("device_kind = [\"cpu\", \"cuda\"]\n", 4, 1),
            "2 devices of 1 thread and 2 GPUs");
}

TEST(DescribeDevicesTest, ThoseOfAClusterHaveItsKinds) {
  EXPECT_EQ(Devices("file = \"hgx-h100:2\"\n", 16, 1), "16 devices (H100-SXM5-80GB)");
}

}  // namespace
}  // namespace penstock::cli
