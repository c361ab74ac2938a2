#include "actors/trace/communication_times.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

// Two devices, each with a kernel, a collective of both, and a transfer from 0 to 1.
planner::Plan MakeCommunicationPlan() {
  planner::Plan plan;
  plan.devices.resize(2);
  for (planner::DevicePlan& device : plan.devices) {
    device.actors.resize(3);
    device.actors[0].kind = planner::ActorKind::kKernel;
    device.actors[1].kind = planner::ActorKind::kCollective;
    device.actors[1].target = 0;
    device.actors[2].target = 0;
    device.phases.resize(1);
  }
  plan.collectives.resize(1);
  plan.collectives[0].devices = {0, 1};
  plan.collectives[0].counts = {256};
  // The second one is larger.
  plan.transfers = {{.source = 0, .destination = 1, .num_bytes = 4},
                    {.source = 0, .destination = 1, .num_bytes = 4096}};
  plan.devices[0].actors[2].kind = planner::ActorKind::kSend;
  plan.devices[1].actors[2].kind = planner::ActorKind::kRecv;
  for (planner::DevicePlan& device : plan.devices) {
    planner::ActorPlan second = device.actors[2];
    second.target = 1;
    device.actors.push_back(second);
  }
  return plan;
}

std::vector<std::pair<int64_t, int64_t>> Times(const std::vector<TraceEvent>& events) {
  std::vector<std::pair<int64_t, int64_t>> times;
  for (const TransferTime& time : TransferTimes(MakeCommunicationPlan(), events)) {
    times.emplace_back(time.begin_ns, time.end_ns);
  }
  return times;
}

TEST(CommunicationTimesTest, DataMoveFromTheLastStartToTheFirstEnd) {
  EXPECT_THAT(Times({{0, 0, 0, 0, 3, 100, 200}}), ElementsAre(Pair(100, 200)));  // a kernel
  EXPECT_THAT(Times({{0, planner::kNone, 0, 0, 3, 1, 99}}), ElementsAre(Pair(1, 99)));
  // Posted early, sent late, noticed late; and another micro-batch of the same.
  EXPECT_THAT(Times({{1, 2, 0, 0, 3, 2, 14},
                     {0, 2, 0, 0, 3, 9, 10},
                     {1, 2, 0, 1, 3, 2, 30},
                     {0, 2, 0, 1, 3, 20, 21}}),
              ElementsAre(Pair(9, 10), Pair(9, 10), Pair(20, 21), Pair(20, 21)));
  // A collective of both, and one whose other side was not recorded.
  EXPECT_THAT(Times({{0, 1, 0, 0, 3, 40, 60}, {1, 1, 0, 0, 3, 55, 61}, {0, 1, 0, 0, 4, 70, 80}}),
              ElementsAre(Pair(55, 60), Pair(55, 60), Pair(70, 80)));
}

TEST(CommunicationTimesTest, ASendMayBeDoneBeforeItsReceiveIsPosted) {
  EXPECT_THAT(Times({{0, 2, 0, 0, 0, 1, 2}, {1, 2, 0, 0, 0, 5, 7}}),
              ElementsAre(Pair(2, 2), Pair(5, 5)));
}

std::vector<int64_t> MovingTimes(const std::vector<TraceEvent>& events) {
  std::vector<int64_t> times;
  for (const TransferTime& time : TransferTimes(MakeCommunicationPlan(), events)) {
    times.push_back(time.moving_ns);
  }
  return times;
}

TEST(CommunicationTimesTest, BytesMoveAsLongAsTheFastestTransferOfAsManyTook) {
  // The second transfer had to wait for a core. Kernels have their own time.
  EXPECT_THAT(MovingTimes({{1, 2, 0, 0, 0, 2, 14},
                           {0, 2, 0, 0, 0, 9, 10},
                           {1, 2, 0, 0, 1, 20, 35},
                           {0, 2, 0, 0, 1, 29, 34},
                           {0, 0, 0, 0, 1, 0, 50}}),
              ElementsAre(1, 1, 1, 1, 50));
  // A larger transfer bounds a smaller one, not the other way round.
  EXPECT_THAT(MovingTimes({{1, 2, 0, 0, 0, 0, 100},
                           {0, 2, 0, 0, 0, 0, 90},
                           {1, 3, 0, 0, 0, 0, 40},
                           {0, 3, 0, 0, 0, 0, 30}}),
              ElementsAre(30, 30, 30, 30));
  EXPECT_THAT(MovingTimes({{1, 2, 0, 0, 0, 0, 5},
                           {0, 2, 0, 0, 0, 0, 5},
                           {1, 3, 0, 0, 0, 0, 40},
                           {0, 3, 0, 0, 0, 0, 30}}),
              ElementsAre(5, 5, 30, 30));
  // A send that was buffered says nothing of how long its bytes take.
  EXPECT_THAT(MovingTimes({{0, 2, 0, 0, 0, 1, 2},
                           {1, 2, 0, 0, 0, 5, 7},
                           {0, 2, 0, 0, 1, 10, 18},
                           {1, 2, 0, 0, 1, 10, 18}}),
              ElementsAre(0, 0, 8, 8));
  // A collective, whose members start at 5 and at 20.
  EXPECT_THAT(MovingTimes({{0, 1, 0, 0, 0, 0, 9},
                           {1, 1, 0, 0, 0, 5, 9},
                           {0, 1, 0, 0, 1, 20, 60},
                           {1, 1, 0, 0, 1, 20, 60}}),
              ElementsAre(4, 4, 4, 4));
}

TEST(CommunicationTimesTest, ForeignClocksStayWithinTheEvent) {
  EXPECT_THAT(Times({{1, 2, 0, 0, 0, 2, 10}, {0, 2, 0, 0, 0, 5000, 5001}}),
              ElementsAre(Pair(10, 10), Pair(5000, 5000)));
}

}  // namespace
}  // namespace penstock::actors
