#include "planner/plan/show_plan.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/plans.h"

namespace penstock::planner {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(ShowPlan, Summarises) {
  Plan plan = testing::TrainingPlan(4, 2);
  plan.stages[1].order = {{PhaseKind::kForward, 0}, {PhaseKind::kBackward, 0}};
  const std::string text = ShowPlan(plan);
  EXPECT_THAT(text,
              HasSubstr("plan training: strategy tp=2,pp=2, policy 1f1b, 4 micro-batches a "
                        "step, graph 0123456789abcdef\n"
                        "4 devices in 2 stages, 32 actors, 38 channels, 4 collectives, 9 kernels"));
  EXPECT_THAT(text, HasSubstr("predicted step 12.5 ms"));
  EXPECT_THAT(
      text,
      HasSubstr(
          "\nstage 1\n  order F0 B0\n  devices 2-3\n    arena 768 B = state 64 B + channels 448 "
          "B + workspace 256 B; predicted peak 768 B\n"
          "    F                        F        compute   once a micro-batch"));
  EXPECT_THAT(text, HasSubstr("\nstage 0\n  order chosen by policy '1f1b' as the plan runs\n"));
  EXPECT_THAT(text, HasSubstr("all_reduce     direct       over    2 devices        4"));
  EXPECT_THAT(text, HasSubstr("device 0 -> device 2        1  256 B a step"));
}

TEST(ShowPlan, ListsDevicesThatDifferApart) {
  Plan plan = testing::TrainingPlan(4, 2);
  plan.devices[1].phases[0].predicted_s = 5;
  EXPECT_THAT(ShowPlan(plan), AllOf(HasSubstr("  device 0\n"), HasSubstr("  device 1\n"),
                                    HasSubstr("  devices 2-3\n")));
}

TEST(ShowDevice, ListsRegistersPhasesAndActors) {
  const std::string text = ShowDevice(testing::TrainingPlan(4, 2), 0).value();
  EXPECT_THAT(text, HasSubstr("device 0 of stage 0: arena 768 B"));
  EXPECT_THAT(text, HasSubstr("  r1      channel   2 x 64 B at 64, once a micro-batch: x\n"));
  EXPECT_THAT(text, HasSubstr("feed x               () -> (r1:x)\n"));
  EXPECT_THAT(text,
              HasSubstr("test                 (r1:x r0:w0) -> (r5:h.matmul), scratch 100 B\n"));
  EXPECT_THAT(text, HasSubstr("all_reduce #0        (r5:h.matmul) -> (r2:h.sum)\n"));
  EXPECT_THAT(text, HasSubstr("send #0 to device 2  (r2:h.sum) -> ()\n"));
  EXPECT_THAT(text, HasSubstr("recv #2 from device 2 () -> (r3:dy.recv)\n"));
  EXPECT_THAT(text, HasSubstr("produce 1, consume 4, capacity 4, initial 0\n"));
  EXPECT_THAT(text, Not(HasSubstr("channel 0:")));  // within a phase
}

TEST(ShowDevice, SaysWhatLiesOnTheHost) {
  const std::string text = *ShowDevice(testing::OffloadPlan(2), 0);
  EXPECT_THAT(text, HasSubstr("arena 256 B = state 0 B + channels 64 B + workspace 192 B, "
                              "on host 192 B"));
  EXPECT_THAT(text, HasSubstr("channel   2 x 64 B at host 0, once a micro-batch: y.to_host"));
  EXPECT_THAT(text, HasSubstr("to_device"));
}

TEST(ShowDevice, RefusesAnUnknownDevice) {
  EXPECT_EQ(std::string(ShowDevice(testing::TrainingPlan(1, 1), 4).status().message()),
            "the plan has no device 4; there are 4");
}

TEST(PhaseOfActor, SkipsPhasesWithoutActors) {
  DevicePlan device;
  device.actors.resize(3);
  device.phases.resize(4);
  device.phases[1].num_actors = 2;
  device.phases[2].first_actor = 2;
  device.phases[3].first_actor = 2;
  device.phases[3].num_actors = 1;
  EXPECT_EQ(PhaseOfActor(device, 0), 1u);
  EXPECT_EQ(PhaseOfActor(device, 1), 1u);
  EXPECT_EQ(PhaseOfActor(device, 2), 3u);
}

}  // namespace
}  // namespace penstock::planner
