#include "cli/slow_hosts.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::IsEmpty;
using ::testing::SizeIs;

// Hands out measurements in turn, and counts them.
struct Measurements {
  std::vector<std::vector<double>> rates;
  size_t num_done = 0;

  std::vector<planner::SlowHost> Confirm() {
    num_done = 1;
    return ConfirmSlowHosts(rates[0], [this]() -> absl::StatusOr<std::vector<double>> {
      if (num_done == rates.size()) return absl::UnavailableError("gone");
      return rates[num_done++];
    });
  }
};

TEST(SlowHostsTest, EqualHostsAreMeasuredOnce) {
  Measurements measurements = {{{100, 95, 98}}};
  EXPECT_THAT(measurements.Confirm(), IsEmpty());
  EXPECT_EQ(measurements.num_done, 1u);
}

TEST(SlowHostsTest, AMomentsDisturbanceMakesNoHostSlow) {
  Measurements measurements = {{{100, 50, 98}, {60, 80, 99}, {99, 97, 50}}};
  EXPECT_THAT(measurements.Confirm(), IsEmpty());
  EXPECT_EQ(measurements.num_done, 3u);
}

TEST(SlowHostsTest, AHostThatStaysSlowIsFound) {
  Measurements measurements = {
      {{100, 80, 98}, {90, 85, 99}, {99, 84, 50}, {99, 80, 90}, {99, 80, 90}}};
  const std::vector<planner::SlowHost> slow = measurements.Confirm();
  EXPECT_EQ(measurements.num_done, 5u);
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].host, 1);
  EXPECT_NEAR(slow[0].part, 0.86, 0.01);
  EXPECT_EQ(SlowHostNote("node4", slow[0]),
            "note: node4 computes 14 % slower than the other hosts\n");
}

TEST(SlowHostsTest, WithoutASecondMeasurementNoHostIsSlow) {
  Measurements measurements = {{{100, 50}}};
  EXPECT_THAT(measurements.Confirm(), IsEmpty());
}

}  // namespace
}  // namespace penstock::cli
