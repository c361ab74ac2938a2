#include "cli/device_kinds.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::HasSubstr;

TEST(DeviceKindsTest, SaysWhyTheHostRunsCollectivesOfGpus) {
  const DeviceList gpus("cuda");
  EXPECT_EQ(HostCollectivesNote(gpus, 4, 4, /*is_one_process=*/true), "");
  EXPECT_THAT(HostCollectivesNote(gpus, 4, 2, true), HasSubstr("4 devices share 2 GPUs"));
  EXPECT_THAT(HostCollectivesNote(gpus, 4, 4, false), HasSubstr("between processes"));
  EXPECT_THAT(HostCollectivesNote(*DeviceList::Parse("cpu:1,cuda:3"), 4, 4, true),
              HasSubstr("devices of other kinds"));
}

}  // namespace
}  // namespace penstock::cli
