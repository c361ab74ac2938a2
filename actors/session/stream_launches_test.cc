#include "actors/session/stream_launches.h"

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using testing::EnginePlanBuilder;
using ::testing::HasSubstr;
using transport::DeviceGroup;
using transport::GroupUse;

// Device 0 sends to each of the others, whose phases wait for it; all of them reduce, if asked for.
planner::Plan SendingPlan(uint32_t num_devices, bool has_collective, bool receives_late = false) {
  EnginePlanBuilder b;
  std::vector<uint32_t> devices;
  std::vector<int64_t> counts(num_devices, 0);
  counts[0] = testing::kWidth;
  for (uint32_t d = 0; d < num_devices; ++d) devices.push_back(b.AddDevice());
  const uint32_t target =
      has_collective ? b.AddCollectiveSpec(CollectiveKind::kAllReduce, devices, counts, true) : 0;
  const auto reduce = [&](uint32_t d, uint32_t after, uint32_t x) {
    const uint32_t y = b.AddRegister(d);
    b.AddChannel(d, after, b.AddCollective(d, "reduce", target, x, y));
  };
  const uint32_t x = b.AddRegister(0);
  b.BeginPhase(0, "F", planner::PhaseKind::kForward);
  const uint32_t f = b.AddKernel(0, "f", "t.iota", {}, {x});
  std::vector<uint32_t> transfers;
  for (uint32_t d = 1; d < num_devices; ++d) {
    b.AddChannel(0, f, b.AddSend(0, "send", x, d));
    transfers.push_back(b.last_transfer());
  }
  if (has_collective) reduce(0, f, x);
  for (uint32_t d = 1; d < num_devices; ++d) {
    const uint32_t got = b.AddRegister(d);
    const uint32_t own = b.AddRegister(d);
    b.BeginPhase(d, "F", planner::PhaseKind::kForward);
    const uint32_t make = b.AddKernel(d, "make", "t.iota", {}, {own});
    if (!receives_late) b.AddRecv(d, "recv", got, transfers[d - 1]);
    if (has_collective) reduce(d, make, own);
    if (receives_late) b.AddRecv(d, "recv", got, transfers[d - 1]);
  }
  return b.Build();
}

TEST(StreamLaunchesTest, DevicesExchangeMessagesThemselves) {
  for (const bool has_collective : {false, true}) {
    const planner::Plan plan = SendingPlan(2, has_collective);
    const absl::StatusOr<StreamLaunches> launches =
        PlanStreamLaunches(plan, planner::BuiltinPolicies());
    ASSERT_TRUE(launches.ok()) << launches.status();
    EXPECT_EQ(launches->launched, planner::Launched::kCollectivesAndMessages);
    EXPECT_EQ(launches->why_not_messages, "");
    EXPECT_EQ(CheckStreamLaunches(plan, 0, 2, *launches), absl::OkStatus());
    StreamLaunches without = *launches;
    without.launched = planner::Launched::kCollectives;
    EXPECT_EQ(CheckStreamLaunches(plan, 0, 2, without).code(), absl::StatusCode::kInvalidArgument);
  }
}

TEST(StreamLaunchesTest, MessagesHaveGroupsOfTheirOwn) {
  const planner::Plan plan = SendingPlan(3, true);
  EXPECT_THAT(GroupsOf(plan, planner::Launched::kCollectives), ElementsAre(DeviceGroup({0, 1, 2})));
  EXPECT_THAT(GroupsOf(plan, planner::Launched::kCollectivesAndMessages),
              ElementsAre(DeviceGroup({0, 1}, GroupUse::kSmallMessages), DeviceGroup({0, 1, 2}),
                          DeviceGroup({0, 2}, GroupUse::kSmallMessages)));
}

// The members come to the collective one after the other if sends wait for their receives.
TEST(StreamLaunchesTest, TheHostCarriesMessagesWithoutAnOrder) {
  const absl::StatusOr<StreamLaunches> launches =
      PlanStreamLaunches(SendingPlan(2, true, /*receives_late=*/true), planner::BuiltinPolicies());
  ASSERT_TRUE(launches.ok()) << launches.status();
  EXPECT_EQ(launches->launched, planner::Launched::kCollectives);
  EXPECT_THAT(launches->why_not_messages, HasSubstr("collectives and messages have no order"));
}

// Small messages take less of a GPU.
TEST(StreamLaunchesTest, TheHostCarriesMessagesOfADeviceWithManyPeers) {
  const planner::PolicyRegistry policies = planner::BuiltinPolicies();
  const auto with_bytes = [](planner::Plan plan, uint64_t num_bytes) {
    for (planner::TransferPlan& transfer : plan.transfers) transfer.num_bytes = num_bytes;
    return plan;
  };
  constexpr uint64_t kLarge = transport::kSmallMessageBytes + 1;
  EXPECT_EQ(PlanStreamLaunches(SendingPlan(1 + 64, false), policies).status(), absl::OkStatus());
  EXPECT_EQ(PlanStreamLaunches(with_bytes(SendingPlan(1 + 16, false), kLarge), policies).status(),
            absl::OkStatus());
  const absl::StatusOr<StreamLaunches> launches =
      PlanStreamLaunches(with_bytes(SendingPlan(1 + 17, true), kLarge), policies);
  ASSERT_TRUE(launches.ok()) << launches.status();
  EXPECT_EQ(launches->launched, planner::Launched::kCollectives);
  EXPECT_EQ(launches->why_not_messages,
            "device 0 exchanges messages with so many devices that those which wait could take 68 "
            "thread blocks of it, and 64 is the limit");
  EXPECT_EQ(PlanStreamLaunches(SendingPlan(1 + 65, false), policies).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace penstock::actors
