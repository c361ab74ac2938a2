#include "actors/engine/stall_detector.h"

#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::Lane;
using planner::PhaseKind;
using testing::EnginePlanBuilder;

// Three processes. Device 0 sends h to device 1; device 2 takes part in `collective` only, as do
// the others.
planner::Plan MakePlan(CollectiveKind kind, std::vector<int64_t> counts) {
  EnginePlanBuilder b(2);
  for (uint32_t stage = 0; stage < 3; ++stage) b.AddDevice(stage);
  const uint32_t x0 = b.AddRegister(0);
  const uint32_t x1 = b.AddRegister(1);
  b.BeginPhase(0, "send", PhaseKind::kTransfer, Lane::kFloating);
  b.AddSend(0, "send.h", x0, 1);
  b.BeginPhase(1, "recv", PhaseKind::kTransfer, Lane::kFloating);
  b.AddRecv(1, "recv.h", x1, b.last_transfer());
  const uint32_t collective = b.AddCollectiveSpec(kind, {0, 1, 2}, std::move(counts), false);
  for (uint32_t d = 0; d < 3; ++d) {
    b.BeginPhase(d, "update", PhaseKind::kAfterStep, Lane::kPerStep, false);
    const uint32_t in = b.AddRegister(d, 1, false);
    const uint32_t out = b.AddRegister(d, 1, false);
    b.AddCollective(d, "sum", collective, in, out);
  }
  return b.Build();
}

planner::Plan MakePlan() { return MakePlan(CollectiveKind::kAllReduce, {2, 1, 1}); }

class StallDetectorTest : public ::testing::Test {
 protected:
  StallDetectorTest() {
    for (int i = 0; i < 3; ++i) {
      before_.push_back({{5}, {100}, 4, {}, ""});
      after_.push_back({{5}, {110}, 4, {}, ""});
    }
    SetCommunications({0, 0, 0}, {0, 0});
    before_[1].declined = after_[1].declined = "stage 1";
  }

  // Of the collective's members, and of the send and receive.
  void SetCommunications(std::vector<uint64_t> members, std::vector<uint64_t> ends) {
    for (auto* reports : {&before_, &after_}) {
      (*reports)[0].communications = {ends[0], members[0]};
      (*reports)[1].communications = {ends[1], members[1]};
      (*reports)[2].communications = {members[2]};
    }
  }

  bool Stalls() const { return Stalls(MakePlan()); }
  bool Stalls(const planner::Plan& plan) const {
    return StallDetector(plan).FindStall(before_, after_).has_value();
  }

  std::vector<ActivityReport> before_;
  std::vector<ActivityReport> after_;
};

TEST_F(StallDetectorTest, NamesTheProcessThatDeclines) {
  EXPECT_EQ(StallDetector(MakePlan()).FindStall(before_, after_), 1u);
  after_[1].declined = "";
  EXPECT_FALSE(Stalls());
}

TEST_F(StallDetectorTest, CommunicationsAreCountedByDevice) {
  const StallDetector detector(MakePlan());
  EXPECT_EQ(detector.NumCommunications(0, 1), 2u);
  EXPECT_EQ(detector.NumCommunications(1, 2), 3u);
  EXPECT_EQ(detector.NumCommunications(2, 1), 1u);
}

TEST_F(StallDetectorTest, WhoeverMovesKeepsThePlanGoing) {
  const std::vector<ActivityReport> still = after_;
  for (size_t process = 0; process < 3; ++process) {
    after_ = still;
    ++after_[process].moves[0];
    EXPECT_FALSE(Stalls());
    after_ = still;
    ++after_[process].num_decisions;
    EXPECT_FALSE(Stalls());
    after_ = still;
    after_[process].communications.back() += 2;
    EXPECT_FALSE(Stalls());
  }
}

// The round of polling that was under way at the first report may have begun before the last event.
TEST_F(StallDetectorTest, EveryExecutorHasToLookAgain) {
  after_[2].idle_polls[0] = before_[2].idle_polls[0] + 1;
  EXPECT_FALSE(Stalls());
  after_[2].idle_polls[0] = before_[2].idle_polls[0] + 2;
  EXPECT_TRUE(Stalls());
}

// A slow network may carry what both sides have started for any time.
TEST_F(StallDetectorTest, ATransferThatBothEndsHaveStartedIsUnderWay) {
  SetCommunications({0, 0, 0}, {5, 5});
  EXPECT_FALSE(Stalls());
  SetCommunications({0, 0, 0}, {5, 6});  // the sender does not know yet
  EXPECT_FALSE(Stalls());
  SetCommunications({0, 0, 0}, {7, 5});  // the receiver does not know yet
  EXPECT_FALSE(Stalls());
  SetCommunications({0, 0, 0}, {5, 4});  // is not received
  EXPECT_TRUE(Stalls());
  SetCommunications({0, 0, 0}, {4, 5});  // is not sent
  EXPECT_TRUE(Stalls());
  SetCommunications({0, 0, 0}, {6, 6});
  EXPECT_TRUE(Stalls());
}

TEST_F(StallDetectorTest, ACollectiveThatAllHaveStartedIsUnderWay) {
  SetCommunications({1, 1, 1}, {0, 0});
  EXPECT_FALSE(Stalls());
  SetCommunications({2, 1, 2}, {0, 0});
  EXPECT_FALSE(Stalls());
  SetCommunications({3, 1, 2}, {0, 0});
  EXPECT_FALSE(Stalls());
  SetCommunications({1, 1, 0}, {0, 0});  // two wait for the third
  EXPECT_TRUE(Stalls());
  SetCommunications({3, 2, 3}, {0, 0});
  EXPECT_TRUE(Stalls());
}

// Members may exchange data without the others, so two that run it may do so.
TEST_F(StallDetectorTest, ACollectiveOfPairsMayBeUnderWayBetweenTwo) {
  const planner::Plan plans[] = {MakePlan(CollectiveKind::kAllGather, {2, 2, 0}),
                                 MakePlan(CollectiveKind::kPermute, {4, 4, 4}),
                                 MakePlan(CollectiveKind::kBroadcast, {4})};
  for (const planner::Plan& plan : plans) {
    SetCommunications({1, 1, 0}, {0, 0});
    EXPECT_FALSE(Stalls(plan));
    SetCommunications({1, 2, 0}, {0, 0});
    EXPECT_FALSE(Stalls(plan));
    SetCommunications({1, 0, 0}, {0, 0});
    EXPECT_TRUE(Stalls(plan));
    SetCommunications({2, 2, 2}, {0, 0});
    EXPECT_TRUE(Stalls(plan));
  }
}

}  // namespace
}  // namespace penstock::actors
