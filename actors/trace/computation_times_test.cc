#include "actors/trace/computation_times.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

// One device: two kernels and a send in a phase of the compute lane, a kernel in the per-step lane.
planner::Plan MakePlan() {
  planner::Plan plan;
  plan.devices.resize(1);
  planner::DevicePlan& device = plan.devices[0];
  device.actors.resize(4);
  device.actors[2].kind = planner::ActorKind::kSend;
  device.phases.resize(2);
  device.phases[0].num_actors = 3;
  device.phases[1].lane = planner::Lane::kPerStep;
  device.phases[1].first_actor = 3;
  device.phases[1].num_actors = 1;
  return plan;
}

TEST(ComputationTimesTest, LaunchedKernelsBeginWhenTheirStreamIsFree) {
  const planner::Plan plan = MakePlan();
  const std::vector<TraceEvent> events = {
      {0, 0, 0, 0, 0, 1, 10}, {0, 3, 1, 0, 0, 2, 12},  // another stream
      {0, 2, 0, 0, 0, 3, 14},                          // communication
      {0, 1, 0, 0, 0, 4, 20}, {0, planner::kNone, 0, 0, 0, 1, 21},
      {0, 0, 0, 0, 1, 30, 31}};
  std::vector<int64_t> begins;
  for (const TraceEvent& event : SerializeComputations(plan, events)) {
    begins.push_back(event.begin_ns);
  }
  EXPECT_THAT(begins, ElementsAre(1, 2, 3, 10, 1, 30));
}

TEST(ComputationTimesTest, MediansAreOfActors) {
  const planner::Plan plan = MakePlan();
  const auto medians = MedianComputeSeconds(plan, {{0, 0, 0, 0, 0, 0, 1'000'000'000},
                                                   {0, 0, 0, 0, 1, 2'000'000'000, 4'000'000'000},
                                                   {0, 0, 0, 0, 2, 4'000'000'000, 13'000'000'000},
                                                   {0, 2, 0, 0, 2, 0, 14'000'000'000},
                                                   {0, 9, 0, 0, 2, 0, 14'000'000'000},
                                                   {1, 0, 0, 0, 2, 0, 14'000'000'000}});
  EXPECT_THAT(medians, ElementsAre(ElementsAre(2, 0, 0, 0)));
}

// Kernels of device 0, in a process with device 1 but not with device 2; device 1 sends to 2.
TEST(ComputationTimesTest, CommunicationOfTheProcessIsBesideAComputation) {
  planner::Plan plan;
  plan.devices.resize(3);
  for (planner::DevicePlan& device : plan.devices) {
    device.phases.resize(1);
    device.actors.resize(1);
    device.actors[0].target = 0;
  }
  plan.transfers = {{.source = 1, .destination = 2, .num_bytes = 4}};
  plan.devices[1].actors[0].kind = planner::ActorKind::kSend;
  plan.devices[2].actors[0].kind = planner::ActorKind::kRecv;
  plan.devices[2].actors.resize(2);
  // Data move from 10 to 20, and from 40 to 50 in the next step; the receive waits before.
  const std::vector<TraceEvent> events = {
      {0, 0, 0, 0, 0, 0, 10},  {0, 0, 0, 0, 0, 18, 25}, {0, 0, 0, 0, 0, 25, 30},
      {0, 0, 0, 0, 1, 30, 60}, {0, 0, 0, 0, 1, 60, 61}, {1, 0, 0, 0, 0, 10, 20},
      {1, 0, 0, 0, 1, 40, 50}, {2, 0, 0, 0, 0, 0, 20},  {2, 1, 0, 0, 0, 1, 9},
      {2, 0, 0, 0, 1, 20, 50}, {2, 1, 0, 0, 1, 21, 41}};
  EXPECT_THAT(
      BesideCommunication(plan, events, {0, 0, 1}),
      ElementsAre(false, true, false, true, false, false, false, false, false, false, true));
}

TEST(ComputationTimesTest, DisturbedComputationsCountWhereOthersAreFew) {
  const planner::Plan plan = MakePlan();
  std::vector<TraceEvent> events;
  std::vector<bool> is_disturbed;
  const auto add = [&](uint32_t actor, int64_t seconds, bool disturbed) {
    const int64_t begin_ns = events.empty() ? 0 : events.back().end_ns;
    events.push_back({0, actor, 0, 0, 0, begin_ns, begin_ns + seconds * 1'000'000'000});
    is_disturbed.push_back(disturbed);
  };
  for (const int64_t seconds : {5, 4, 3}) add(0, seconds, false);
  for (const int64_t seconds : {9, 9, 9, 9, 9}) add(0, seconds, true);
  for (const int64_t seconds : {3, 3}) add(1, seconds, false);
  for (const int64_t seconds : {7, 8, 9}) add(1, seconds, true);
  EXPECT_THAT(MedianComputeSeconds(plan, events, is_disturbed)[0], ElementsAre(4, 7, 0, 0));
  EXPECT_THAT(MedianComputeSeconds(plan, events)[0], ElementsAre(9, 7, 0, 0));
}

}  // namespace
}  // namespace penstock::actors
