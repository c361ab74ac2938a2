#include "cli/slow_hosts.h"

#include <cstdint>
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

actors::NodeDescription NodeOn(const std::string& host, std::vector<uint32_t> processors,
                               std::vector<CoreQuota> quotas = {}) {
  actors::NodeDescription node;
  node.host = host;
  node.cores = {std::move(processors), std::move(quotas)};
  return node;
}

TEST(SlowHostsTest, CoresOfHostsAreCompared) {
  // The nodes of `a` share four cores, those of `b` have two each, and that of `c` has the time of
  // four.
  const CoreRates cores =
      CoreRatesOf({NodeOn("a", {0, 1, 2, 3}), NodeOn("b", {0, 1}), NodeOn("b", {2, 3}),
                   NodeOn("c", {0, 1, 2, 3, 4, 5, 6, 7}, {{"/pod", 4}}), NodeOn("a", {0, 1, 2, 3})},
                  {20, 18, 22, 20, 20});
  EXPECT_THAT(cores.first_ranks, ElementsAre(0u, 1u, 3u));
  EXPECT_THAT(cores.rates, ElementsAre(10.0, 10.0, 5.0));
}

TEST(SlowHostsTest, WithoutASecondMeasurementNoHostIsSlow) {
  Measurements measurements = {{{100, 50}}};
  EXPECT_THAT(measurements.Confirm(), IsEmpty());
}

}  // namespace
}  // namespace penstock::cli
