#include "cli/replayed_cores.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

using ::testing::ElementsAre;

// Devices 0 and 1 take turns, 2 has a core of its own, and 3 to 5 share two cores.
actors::SharedCores MakeCores() { return {{0, 0, 1, 2, 2, 2}, {1, 1, 2}}; }

// Two kernels and a send on each of six devices.
planner::Plan MakePlan() {
  planner::Plan plan;
  plan.devices.resize(6);
  for (planner::DevicePlan& device : plan.devices) {
    device.actors.resize(3);
    device.actors[2].kind = planner::ActorKind::kSend;
    device.phases.resize(1);
    device.phases[0].num_actors = 3;
  }
  return plan;
}

actors::TraceEvent Event(uint32_t device, uint32_t actor, int64_t begin_ns, int64_t end_ns) {
  return {device, actor, 0, 0, 0, begin_ns, end_ns};
}

std::vector<int64_t> Durations(const std::vector<actors::TraceEvent>& events) {
  std::vector<int64_t> durations;
  for (const actors::TraceEvent& event : WithoutCoreSharing(MakePlan(), events, MakeCores())) {
    durations.push_back(event.end_ns - event.begin_ns);
  }
  return durations;
}

TEST(ReplayedCoresTest, DevicesWithOneCoreTakeTurns) {
  const std::vector<uint32_t> cores = CoreOfDevice(MakeCores());
  ASSERT_EQ(cores.size(), 6u);
  EXPECT_EQ(cores[0], cores[1]);
  for (size_t i = 1; i < cores.size(); ++i) {
    for (size_t j = i + 1; j < cores.size(); ++j) EXPECT_NE(cores[i], cores[j]) << i << " " << j;
  }
}

TEST(ReplayedCoresTest, ComputationsShareTheTimeOfTheirCore) {
  EXPECT_THAT(Durations({Event(0, 0, 0, 6), Event(1, 0, 4, 10)}), ElementsAre(5, 5));
  // One within the other; those that only touch do not overlap.
  EXPECT_THAT(Durations({Event(1, 0, 4, 8), Event(0, 0, 0, 12), Event(0, 1, 12, 20)}),
              ElementsAre(2, 10, 8));
  EXPECT_THAT(Durations({Event(0, 0, 5, 5), Event(1, 0, 2, 8)}), ElementsAre(0, 6));
}

TEST(ReplayedCoresTest, OtherEventsStayAsTheyAre) {
  // Communication, a core of its own, cores that the system deals out, and a phase's own event.
  EXPECT_THAT(Durations({Event(0, 2, 0, 6), Event(1, 0, 0, 6), Event(2, 0, 0, 6), Event(3, 0, 0, 6),
                         Event(4, 0, 0, 6), Event(5, 0, 0, 6), Event(0, planner::kNone, 0, 7)}),
              ElementsAre(6, 6, 6, 6, 6, 6, 7));
}

}  // namespace
}  // namespace penstock::cli
