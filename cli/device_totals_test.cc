#include "cli/device_totals.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using State = actors::DeviceSnapshot::State;

constexpr int64_t kSecond = 1'000'000'000;

// A look at a device that was loaded `age_s` ago.
std::vector<actors::DeviceSnapshot> SeenDevice(int64_t age_s, int64_t idle_s, int64_t collective_s,
                                               int64_t transfer_s, int64_t microbatches) {
  std::vector<actors::DeviceSnapshot> devices(1);
  devices[0].state = State::kWaiting;
  devices[0].age_ns = age_s * kSecond;
  devices[0].idle_ns = idle_s * kSecond;
  devices[0].collective_ns = collective_s * kSecond;
  devices[0].transfer_ns = transfer_s * kSecond;
  devices[0].microbatches = microbatches;
  return devices;
}

class DeviceTotalsTest : public ::testing::Test {
 protected:
  DeviceTotalsTest() {
    plan_.devices.resize(2);
    plan_.devices[0].stage = 3;
  }

  static int64_t At(int64_t seconds) { return seconds * kSecond; }

  DeviceTotals::Device ReadAt(int64_t seconds, bool is_idle = false) {
    const std::vector<DeviceTotals::Device> devices = totals_.Read(At(seconds), is_idle);
    EXPECT_EQ(devices.size(), 1u);
    return devices.empty() ? DeviceTotals::Device() : devices[0];
  }

  planner::Plan plan_;
  DeviceTotals totals_;
};

TEST_F(DeviceTotalsTest, AreThoseOfTheOnlySession) {
  EXPECT_TRUE(totals_.Read(At(0), /*is_idle=*/true).empty());
  totals_.Add(1, plan_, SeenDevice(10, 6, 1, 2, 24), At(100));
  const DeviceTotals::Device device = ReadAt(101);
  EXPECT_EQ(device.device, 0u);
  EXPECT_EQ(device.stage, 3u);
  EXPECT_EQ(device.busy_ns, 4 * kSecond);
  EXPECT_EQ(device.collective_ns, 1 * kSecond);
  EXPECT_EQ(device.transfer_ns, 2 * kSecond);
  EXPECT_EQ(device.nothing_ns, 3 * kSecond);
  EXPECT_EQ(device.microbatches, 24);
}

// Training for 100 s, a validation of 4 s in which it waits, and training for one more.
TEST_F(DeviceTotalsTest, AddUpOverSessions) {
  totals_.Add(1, plan_, SeenDevice(100, 40, 10, 20, 200), At(100));
  EXPECT_EQ(ReadAt(100).nothing_ns, 10 * kSecond);

  totals_.Add(2, plan_, SeenDevice(2, 1, 1, 0, 7), At(102));
  totals_.Add(1, plan_, SeenDevice(102, 42, 10, 20, 200), At(102));
  DeviceTotals::Device device = ReadAt(102);
  EXPECT_EQ(device.busy_ns, 61 * kSecond);
  EXPECT_EQ(device.collective_ns, 11 * kSecond);
  EXPECT_EQ(device.transfer_ns, 20 * kSecond);
  EXPECT_EQ(device.nothing_ns, 10 * kSecond);  // it was not idle while it validated
  EXPECT_EQ(device.microbatches, 207);

  totals_.Add(2, plan_, SeenDevice(4, 2, 2, 0, 14), At(104));
  totals_.End(2);
  totals_.Add(1, plan_, SeenDevice(105, 44, 10, 20, 202), At(105));
  device = ReadAt(105);
  EXPECT_EQ(device.busy_ns, 63 * kSecond);
  EXPECT_EQ(device.collective_ns, 12 * kSecond);
  EXPECT_EQ(device.nothing_ns, 10 * kSecond);
  EXPECT_EQ(device.microbatches, 216);
  EXPECT_EQ(device.busy_ns + device.collective_ns + device.transfer_ns + device.nothing_ns,
            105 * kSecond);
}

// A validation whose session stays open is looked at again, and goes on counting.
TEST_F(DeviceTotalsTest, ASessionThatComesBackIsNotCountedTwice) {
  totals_.Add(2, plan_, SeenDevice(10, 4, 0, 0, 5), At(10));
  totals_.Add(1, plan_, SeenDevice(30, 0, 0, 0, 50), At(40));
  totals_.Add(2, plan_, SeenDevice(50, 42, 0, 0, 7), At(50));
  EXPECT_EQ(ReadAt(50).busy_ns, (8 + 30) * kSecond);
  EXPECT_EQ(ReadAt(50).microbatches, 57);
}

// Counts are read while a device works, and a little apart.
TEST_F(DeviceTotalsTest, NeverFall) {
  totals_.Add(1, plan_, SeenDevice(10, 6, 1, 2, 24), At(100));
  const DeviceTotals::Device before = ReadAt(100);
  totals_.Add(1, plan_, SeenDevice(10, 7, 0, 1, 23), At(100));
  const DeviceTotals::Device after = ReadAt(100);
  EXPECT_EQ(after.busy_ns, before.busy_ns);
  EXPECT_EQ(after.collective_ns, before.collective_ns);
  EXPECT_EQ(after.transfer_ns, before.transfer_ns);
  EXPECT_EQ(after.nothing_ns, before.nothing_ns);
  EXPECT_EQ(after.microbatches, before.microbatches);
}

TEST_F(DeviceTotalsTest, ADeviceThatDoesNotAnswerKeepsWhatItHad) {
  totals_.Add(1, plan_, SeenDevice(10, 6, 1, 2, 24), At(100));
  std::vector<actors::DeviceSnapshot> silent(2);
  totals_.Add(1, plan_, silent, At(200));
  EXPECT_EQ(ReadAt(200).nothing_ns, 3 * kSecond);
  EXPECT_EQ(ReadAt(200).microbatches, 24);
}

TEST_F(DeviceTotalsTest, TimeBetweenSessionsIsIdleTime) {
  totals_.Add(1, plan_, SeenDevice(10, 6, 1, 2, 24), At(100));
  EXPECT_EQ(ReadAt(108, /*is_idle=*/true).nothing_ns, (3 + 8) * kSecond);
  totals_.Add(2, plan_, SeenDevice(2, 0, 0, 0, 1), At(112));
  EXPECT_EQ(ReadAt(112).nothing_ns, (3 + 8 + 2) * kSecond);
}

}  // namespace
}  // namespace penstock::cli
