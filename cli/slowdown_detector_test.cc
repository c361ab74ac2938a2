#include "cli/slowdown_detector.h"

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int64_t kStepNs = 500'000'000;
constexpr int kWindowSteps = 4;

// Devices 0 and 3 are on host 0, 1 on host 1, 2 on host 2. All steps take as long, for whatever
// part of that a device is busy.
class SlowdownDetectorTest : public ::testing::Test {
 protected:
  // Windows in which the devices are busy for so many milliseconds a step.
  std::vector<planner::SlowHost> Run(const std::vector<double>& busy_ms, int num_windows) {
    std::vector<planner::SlowHost> found;
    for (int i = 0; i < num_windows * kWindowSteps; ++i) {
      std::vector<actors::DeviceStepReport> devices;
      for (uint32_t device = 0; device < busy_ms.size(); ++device) {
        actors::DeviceStepReport& report = devices.emplace_back();
        report.device = device;
        report.wall_ns = kStepNs;
        report.wait_ns = kStepNs - std::llround(1e6 * busy_ms[device]);
      }
      for (const planner::SlowHost& host : detector_.Add(devices)) found.push_back(host);
    }
    return found;
  }

  SlowdownDetector detector_{{0, 1, 2, 0}};
};

TEST_F(SlowdownDetectorTest, AHostThatBecomesSlowerIsFoundOnce) {
  EXPECT_THAT(Run({50, 200, 100, 50}, 5), IsEmpty()) << "hosts may have different work";
  EXPECT_THAT(Run({50, 250, 101, 50}, SlowdownDetector::kNumWindows - 1), IsEmpty());
  const std::vector<planner::SlowHost> slow = Run({50, 250, 101, 50}, 10);
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].host, 1);
  EXPECT_NEAR(slow[0].part, 0.8, 0.02);
  EXPECT_EQ(SlowdownNote("node4", slow[0]),
            "note: node4 has become 19 % slower than the other hosts\n");
}

TEST_F(SlowdownDetectorTest, AllDevicesOfAHostCount) {
  Run({50, 200, 100, 50}, 3);
  EXPECT_THAT(Run({50, 200, 100, 58}, 10), IsEmpty()) << "8 % of both together";
  EXPECT_THAT(Run({50, 200, 100, 70}, 10), SizeIs(1));
}

TEST_F(SlowdownDetectorTest, WhatSlowsAllDownNamesNone) {
  Run({50, 200, 100, 50}, 3);
  EXPECT_THAT(Run({75, 300, 150, 75}, 10), IsEmpty());
}

TEST_F(SlowdownDetectorTest, AMomentsDisturbanceNamesNone) {
  Run({50, 200, 100, 50}, 3);
  for (int i = 0; i < 5; ++i) {
    EXPECT_THAT(Run({50, 300, 100, 50}, 2), IsEmpty());
    EXPECT_THAT(Run({50, 200, 100, 50}, 1), IsEmpty());
  }
}

TEST_F(SlowdownDetectorTest, ALuckyWindowNamesNone) {
  Run({50, 200, 100, 50}, 3);
  EXPECT_THAT(Run({50, 150, 100, 50}, 1), IsEmpty());
  EXPECT_THAT(Run({50, 200, 100, 50}, 10), IsEmpty());
}

TEST_F(SlowdownDetectorTest, AHostThatRecoversMayBecomeSlowAgain) {
  Run({50, 200, 100, 50}, 3);
  EXPECT_THAT(Run({50, 250, 100, 50}, 5), SizeIs(1));
  EXPECT_THAT(Run({50, 200, 100, 50}, 5), IsEmpty());
  EXPECT_THAT(Run({50, 250, 100, 50}, 5), SizeIs(1));
}

TEST_F(SlowdownDetectorTest, AHostThatChangesAllTheTimeIsFoundAFewTimes) {
  std::vector<planner::SlowHost> found;
  for (int i = 0; i < 20; ++i) {
    Run({50, 200, 100, 50}, 5);
    for (const planner::SlowHost& host : Run({50, 250, 100, 50}, 5)) found.push_back(host);
  }
  EXPECT_THAT(found, SizeIs(SlowdownDetector::kMaxFound));
}

TEST(HostsOfDevicesTest, HostsAreNumberedByTheirFirstRanks) {
  std::vector<actors::NodeDescription> nodes(3);
  for (uint32_t rank = 0; rank < nodes.size(); ++rank) {
    nodes[rank].rank = rank;
    nodes[rank].host = rank == 1 ? "a" : "b";
    nodes[rank].first_device = 2 * rank;
    nodes[rank].num_devices = 2;
  }
  std::vector<uint32_t> first_ranks;
  EXPECT_THAT(HostsOfDevices(nodes, &first_ranks), ElementsAre(0u, 0u, 1u, 1u, 0u, 0u));
  EXPECT_THAT(first_ranks, ElementsAre(0u, 1u));
}

}  // namespace
}  // namespace penstock::cli
