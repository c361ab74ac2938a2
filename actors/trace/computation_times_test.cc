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

}  // namespace
}  // namespace penstock::actors
