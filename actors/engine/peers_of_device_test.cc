#include "actors/engine/peers_of_device.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using ::testing::ElementsAre;
using testing::EnginePlanBuilder;
using ::testing::IsEmpty;
using testing::kWidth;

// Device 0 sends to 1; 1 and 2 reduce; 3 is alone.
TEST(PeersOfDeviceTest, AreThoseOfItsTransfersAndCollectives) {
  EnginePlanBuilder b;
  for (int i = 0; i < 4; ++i) b.AddDevice();
  const uint32_t sum = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {1, 2},
                                           {kWidth / 2, kWidth - kWidth / 2}, true);
  for (uint32_t d = 0; d < 4; ++d) {
    const uint32_t x = b.AddRegister(d);
    const uint32_t y = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    const uint32_t made = b.AddKernel(d, "made", "t.iota", {}, {x});
    uint32_t next = made;
    if (d == 0) next = b.AddSend(d, "send", x, 1);
    if (d == 1) b.AddRecv(d, "recv", b.AddRegister(d), b.last_transfer());
    if (d == 1 || d == 2) next = b.AddCollective(d, "sum", sum, x, y);
    if (next != made) b.AddChannel(d, made, next);
  }
  planner::Plan plan = b.Build();
  plan.stages[0].order = {{PhaseKind::kForward, 0}};
  EXPECT_THAT(PeersOfDevice(plan, 0), ElementsAre(1));
  EXPECT_THAT(PeersOfDevice(plan, 1), ElementsAre(0, 2));
  EXPECT_THAT(PeersOfDevice(plan, 2), ElementsAre(1));
  EXPECT_THAT(PeersOfDevice(plan, 3), IsEmpty());
  // Without an order, device 0 may have to tell the others what it has chosen.
  plan.stages[0].order.clear();
  EXPECT_THAT(PeersOfDevice(plan, 0), ElementsAre(1, 2, 3));
  EXPECT_THAT(PeersOfDevice(plan, 3), ElementsAre(0));
}

}  // namespace
}  // namespace penstock::actors
