#include "planner/plan/launch_order.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"
#include "tests/support/test_policies.h"

namespace penstock::planner {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::EnginePlanBuilder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint32_t kForward = 0;  // phases of BucketPlan
constexpr uint32_t kBucket = 1;

// Two devices. In F, once a micro-batch: a kernel whose values a bucket sums up, and two
// collectives of which the first comes before that kernel.
Plan BucketPlan(uint32_t num_microbatches) {
  EnginePlanBuilder b(num_microbatches);
  b.AddDevice();
  b.AddDevice();
  const std::vector<int64_t> counts = {2, 2};
  std::vector<uint32_t> targets;
  for (const bool per_microbatch : {true, true, false}) {
    targets.push_back(
        b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, counts, per_microbatch));
  }
  for (uint32_t d = 0; d < 2; ++d) {
    std::vector<uint32_t> r;
    for (int i = 0; i < 5; ++i) r.push_back(b.AddRegister(d));
    const uint32_t sum = b.AddRegister(d, 1, false);
    const uint32_t reduced = b.AddRegister(d, 2, false);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t iota = b.AddKernel(d, "iota", "t.iota", {}, {r[0]});
    const uint32_t first = b.AddCollective(d, "first", targets[0], r[0], r[1]);
    const uint32_t gradient = b.AddKernel(d, "gradient", "t.sum", {r[1]}, {sum}, {}, true);
    const uint32_t more = b.AddKernel(d, "more", "t.affine", {r[1]}, {r[2]});
    const uint32_t second = b.AddCollective(d, "second", targets[1], r[2], r[3]);
    const uint32_t end = b.AddKernel(d, "end", "t.affine", {r[3]}, {r[4]});
    b.AddChannel(d, iota, first);
    b.AddChannel(d, first, gradient);
    b.AddChannel(d, first, more);
    b.AddChannel(d, more, second);
    b.AddChannel(d, second, end);
    b.BeginPhase(d, "bucket", PhaseKind::kTransfer, Lane::kFloating, false);
    const uint32_t bucket = b.AddCollective(d, "reduce", targets[2], sum, reduced);
    b.AddChannel(d, gradient, bucket, 1, num_microbatches, num_microbatches);
    b.BeginPhase(d, "after", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t last = b.AddKernel(d, "sink", "t.affine", {reduced}, {reduced});
    b.AddChannel(d, bucket, last, 1, 1, 2);
  }
  return b.Build();
}

// Phases of StagesPlan, of the first device and of the second one.
constexpr uint32_t kSendX = 1, kRecvG = 2;
constexpr uint32_t kRecvX = 0, kSendG = 3;

// Two stages that send each other x and g, once a micro-batch. The first one has `slots` registers
// for g, the second one as many for x.
Plan StagesPlan(uint32_t num_microbatches, uint32_t slots) {
  EnginePlanBuilder b(num_microbatches);
  b.AddDevice(0);
  b.AddDevice(1);
  const uint32_t x = b.AddRegister(0, num_microbatches);
  const uint32_t g = b.AddRegister(0, slots);
  const uint32_t used = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t forward = b.AddKernel(0, "f0", "t.iota", {}, {x});
  b.BeginPhase(0, "send x", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t send_x = b.AddSend(0, "send.x", x, 1);
  const uint32_t transfer_x = b.last_transfer();
  b.AddChannel(0, forward, send_x, 1, 1, num_microbatches);
  const uint32_t got_x = b.AddRegister(1, slots);
  const uint32_t made_g = b.AddRegister(1, 2);
  b.BeginPhase(1, "recv x", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t recv_x = b.AddRecv(1, "recv.x", got_x, transfer_x);
  b.BeginPhase(1, "F", PhaseKind::kForward);
  const uint32_t y = b.AddRegister(1, num_microbatches);
  const uint32_t f1 = b.AddKernel(1, "f1", "t.affine", {got_x}, {y});
  b.AddChannel(1, recv_x, f1, 1, 1, slots);
  b.BeginPhase(1, "B", PhaseKind::kBackward);
  const uint32_t b1 = b.AddKernel(1, "b1", "t.affine", {y}, {made_g});
  b.AddChannel(1, f1, b1, 1, 1, num_microbatches);
  b.BeginPhase(1, "send g", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t send_g = b.AddSend(1, "send.g", made_g, 0);
  const uint32_t transfer_g = b.last_transfer();
  b.AddChannel(1, b1, send_g, 1, 1, 2);
  b.BeginPhase(0, "recv g", PhaseKind::kTransfer, Lane::kFloating);
  const uint32_t recv_g = b.AddRecv(0, "recv.g", g, transfer_g);
  b.BeginPhase(0, "B", PhaseKind::kBackward);
  const uint32_t b0 = b.AddKernel(0, "b0", "t.sum", {g, x}, {used});
  b.AddChannel(0, recv_g, b0, 1, 1, slots);
  b.AddChannel(0, forward, b0, 1, 1, num_microbatches);
  return b.Build();
}

std::string MessagesError(const Plan& plan, const LaunchOrder& order) {
  return std::string(
      CheckLaunchOrder(plan, BuiltinPolicies(), order, Launched::kCollectivesAndMessages)
          .message());
}

std::string LaunchOrderError(const Plan& plan, const LaunchOrder& order) {
  return std::string(CheckLaunchOrder(plan, BuiltinPolicies(), order).message());
}

TEST(LaunchOrder, PutsABucketWhereItsTokensCome) {
  const Plan plan = BucketPlan(2);
  const absl::StatusOr<LaunchOrder> order = OrderLaunches(plan, BuiltinPolicies());
  ASSERT_TRUE(order.ok()) << order.status();
  ASSERT_EQ(order->size(), 2u);
  // F's collectives of micro-batch 0, then the first of micro-batch 1, whose result the bucket
  // needs.
  EXPECT_THAT((*order)[0],
              ElementsAre(LaunchRun{kForward, 3}, LaunchRun{kBucket, 1}, LaunchRun{kForward, 1}));
  EXPECT_EQ((*order)[1], (*order)[0]);
  EXPECT_EQ(CheckLaunchOrder(plan, BuiltinPolicies(), *order), absl::OkStatus());
}

TEST(LaunchOrder, AcceptsAnyOrderThatAllDevicesCanFollow) {
  const Plan plan = BucketPlan(2);
  const std::vector<LaunchRun> late = {{kForward, 4}, {kBucket, 1}};
  EXPECT_EQ(CheckLaunchOrder(plan, BuiltinPolicies(), {late, late}), absl::OkStatus());
}

TEST(LaunchOrder, RefusesMembersThatDiffer) {
  const Plan plan = BucketPlan(1);
  EXPECT_THAT(LaunchOrderError(plan, {{{kForward, 2}, {kBucket, 1}},
                                      {{kForward, 1}, {kBucket, 1}, {kForward, 1}}}),
              HasSubstr("devices launch in orders that are no parts of one: "));
}

TEST(LaunchOrder, RefusesOrdersThatAreNotOfTheStep) {
  const Plan plan = BucketPlan(1);
  const std::vector<LaunchRun> few = {{kForward, 1}, {kBucket, 1}};
  EXPECT_THAT(LaunchOrderError(plan, {few, few}),
              HasSubstr("launches 1 collectives a step instead of 2"));
  const std::vector<LaunchRun> unknown = {{kForward, 2}, {kBucket, 1}, {2, 1}};
  EXPECT_EQ(LaunchOrderError(plan, {unknown, unknown}),
            "device 0 launches collectives of phase 2, which has none");
  EXPECT_EQ(LaunchOrderError(plan, {{}}), "1 devices have an order of launches instead of 2");
}

// The bucket needs what comes behind the first collective.
TEST(LaunchOrder, RefusesOrdersInWhichLaunchesWaitForEachOther) {
  const Plan plan = BucketPlan(1);
  const std::vector<LaunchRun> early = {{kBucket, 1}, {kForward, 2}};
  const absl::Status status = CheckLaunchOrder(plan, BuiltinPolicies(), {early, early});
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("for its turn to launch after"));
}

TEST(LaunchOrder, SendsAndReceivesMeet) {
  const Plan plan = StagesPlan(2, 2);
  const absl::StatusOr<LaunchOrder> order =
      OrderLaunches(plan, BuiltinPolicies(), Launched::kCollectivesAndMessages);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_THAT((*order)[0], ElementsAre(LaunchRun{kSendX, 1}, LaunchRun{kRecvG, 1},
                                       LaunchRun{kSendX, 1}, LaunchRun{kRecvG, 1}));
  EXPECT_THAT((*order)[1], ElementsAre(LaunchRun{kRecvX, 1}, LaunchRun{kSendG, 1},
                                       LaunchRun{kRecvX, 1}, LaunchRun{kSendG, 1}));
  EXPECT_EQ(MessagesError(plan, *order), "");
  // Without messages, these are the host's.
  EXPECT_THAT(*OrderLaunches(plan, BuiltinPolicies()), ElementsAre(IsEmpty(), IsEmpty()));
}

// The second x is received when F has used the first one.
TEST(LaunchOrder, MessagesWaitForFreeRegisters) {
  const Plan plan = StagesPlan(4, 1);
  const absl::StatusOr<LaunchOrder> order =
      OrderLaunches(plan, BuiltinPolicies(), Launched::kCollectivesAndMessages);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(MessagesError(plan, *order), "");
  // Of four micro-batches, x is in flight for two: F0 F1 B0 F2 and so on.
  const std::vector<LaunchRun> early = {{kSendX, 4}, {kRecvG, 4}};
  EXPECT_THAT(MessagesError(plan, {early, {{kRecvX, 4}, {kSendG, 4}}}),
              HasSubstr("for its turn to launch after"));
}

// Each would wait for what the other launches behind its own.
TEST(LaunchOrder, RefusesMessagesThatWaitForEachOther) {
  const Plan plan = StagesPlan(1, 1);
  EXPECT_EQ(MessagesError(plan, {{{kSendX, 1}, {kRecvG, 1}}, {{kRecvX, 1}, {kSendG, 1}}}), "");
  EXPECT_THAT(MessagesError(plan, {{{kRecvG, 1}, {kSendX, 1}}, {{kRecvX, 1}, {kSendG, 1}}}),
              AllOf(HasSubstr("no parts of one"), HasSubstr("'recv.g' (device 0")));
  EXPECT_THAT(MessagesError(plan, {{{kSendX, 1}}, {{kRecvX, 1}, {kSendG, 1}}}),
              HasSubstr("launches 0 collectives and messages a step instead of 1"));
}

// Two values from device 0 to device 1.
TEST(LaunchOrder, RefusesMessagesInDifferentOrders) {
  EnginePlanBuilder b;
  b.AddDevice(0);
  b.AddDevice(1);
  const uint32_t x = b.AddRegister(0);
  b.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(0, "f", "t.iota", {}, {x});
  for (const char* name : {"a", "b"}) {
    b.BeginPhase(0, std::string("send ") + name, PhaseKind::kTransfer, Lane::kFloating);
    b.AddChannel(0, f, b.AddSend(0, name, x, 1), 1, 1, 1);
    const uint32_t got = b.AddRegister(1);
    const uint32_t used = b.AddRegister(1);
    b.BeginPhase(1, std::string("recv ") + name, PhaseKind::kTransfer, Lane::kFloating);
    const uint32_t recv = b.AddRecv(1, name, got, b.last_transfer());
    b.BeginPhase(1, std::string("use ") + name, PhaseKind::kAfterStep, Lane::kPerStep);
    b.AddChannel(1, recv, b.AddKernel(1, name, "t.affine", {got}, {used}), 1, 1, 1);
  }
  const Plan plan = b.Build();
  const std::vector<LaunchRun> sends = {{1, 1}, {2, 1}};
  EXPECT_EQ(MessagesError(plan, {sends, {{0, 1}, {2, 1}}}), "");
  EXPECT_THAT(
      MessagesError(plan, {sends, {{2, 1}, {0, 1}}}),
      AllOf(HasSubstr("'a' (device 0"), HasSubstr(" waits for device 1, where this is first: "),
            HasSubstr("'b' (device 1")));
}

// The host may carry a message past a collective, but no stream does.
TEST(LaunchOrder, ASendThatPassesACollectiveIsTheHosts) {
  EnginePlanBuilder b;
  b.AddDevice();
  b.AddDevice();
  const uint32_t target =
      b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, {2, 2}, /*per_microbatch=*/true);
  for (uint32_t d = 0; d < 2; ++d) {
    const uint32_t x = b.AddRegister(d);
    const uint32_t y = b.AddRegister(d);
    const uint32_t z = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t iota = b.AddKernel(d, "iota", "t.iota", {}, {x});
    if (d == 0) b.AddChannel(d, iota, b.AddSend(d, "send", x, 1));
    const uint32_t reduce = b.AddCollective(d, "reduce", target, x, y);
    b.AddChannel(d, iota, reduce);
    if (d == 1) b.AddRecv(d, "recv", z, b.last_transfer());
  }
  const Plan plan = b.Build();
  EXPECT_EQ(OrderLaunches(plan, BuiltinPolicies()).status(), absl::OkStatus());
  const absl::Status status =
      OrderLaunches(plan, BuiltinPolicies(), Launched::kCollectivesAndMessages).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              ::testing::StartsWith("collectives and messages have no order"));
}

TEST(LaunchOrder, NeedsPlannedStages) {
  EnginePlanBuilder b(2, "dynamic");
  const uint32_t d = b.AddDevice();
  const uint32_t x = b.AddRegister(d, 2);
  b.BeginPhase(d, "F", PhaseKind::kForward);
  const uint32_t f = b.AddKernel(d, "f", "t.iota", {}, {x});
  b.BeginPhase(d, "B", PhaseKind::kBackward);
  const uint32_t back = b.AddKernel(d, "b", "t.affine", {x}, {x});
  b.AddChannel(d, f, back, 1, 1, 2);
  Plan plan = b.Build();
  plan.stages[0].order.clear();
  PolicyRegistry policies;
  const auto next = [](const StageContext&, const StageView&) { return std::nullopt; };
  ASSERT_TRUE(policies.Add(std::make_unique<testing::DynamicPolicy>("dynamic", next)).ok());
  EXPECT_THAT(std::string(OrderLaunches(plan, policies).status().message()),
              HasSubstr("policy 'dynamic' decides in which order stage 0 runs its phases"));
}

// Device 1 comes to the collective after it has received what device 0 sends behind it.
TEST(LaunchOrder, NeedsPhasesThatMayWaitForTheOthers) {
  EnginePlanBuilder b;
  b.AddDevice();
  b.AddDevice();
  const uint32_t target =
      b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, {2, 2}, /*per_microbatch=*/true);
  for (uint32_t d = 0; d < 2; ++d) {
    const uint32_t x = b.AddRegister(d);
    const uint32_t y = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t first = d == 0 ? b.AddKernel(d, "iota", "t.iota", {}, {x})
                                  : b.AddRecv(d, "recv", x, b.last_transfer());
    const uint32_t reduce = b.AddCollective(d, "reduce", target, x, y);
    b.AddChannel(d, first, reduce);
    if (d == 0) b.AddChannel(d, first, b.AddSend(d, "send", x, 1));
  }
  const Plan plan = b.Build();
  const absl::Status status = OrderLaunches(plan, BuiltinPolicies()).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("does not come to its end if it waits at each for the other members"));
}

}  // namespace
}  // namespace penstock::planner
