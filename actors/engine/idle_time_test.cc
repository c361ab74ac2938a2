#include "actors/engine/idle_time.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

TEST(IdleTimeTest, CountsByWhatWasUnderWay) {
  IdleTime idle;
  idle.Begin(IdleTime::kTransfer, 100);
  idle.End(130);
  idle.Begin(IdleTime::kCollective, 200);
  idle.End(207);
  idle.Begin(IdleTime::kTransfer, 300);
  EXPECT_TRUE(idle.is_idle());
  const IdleTime::Reading reading = idle.Read(311);
  EXPECT_THAT(reading.ns, ElementsAre(0, 41, 7));
  EXPECT_EQ(reading.current_ns, 11);
  idle.End(320);
  EXPECT_FALSE(idle.is_idle());
  EXPECT_EQ(idle.Read(400).current_ns, 0);
  EXPECT_THAT(idle.Read(400).ns, ElementsAre(0, 50, 7));
}

TEST(IdleTimeTest, AnIdleTimeThatHasJustBegunCounts) {
  IdleTime idle;
  idle.Begin(IdleTime::kNothing, 100);
  EXPECT_EQ(idle.Read(100).current_ns, 1);
}

TEST(IdleTimeTest, StepsWaitOnlyWhileOneIsUnderWay) {
  IdleTime idle;
  idle.Begin(IdleTime::kNothing, 100);
  idle.BeginStep(150);
  idle.End(160);
  idle.AddWithoutCore(5);
  EXPECT_EQ(idle.TakeWait(), 15);
  EXPECT_EQ(idle.TakeWait(), 0);
  EXPECT_THAT(idle.Read(200).ns, ElementsAre(60, 0, 0)) << "the device was idle before the step";
}

}  // namespace
}  // namespace penstock::actors
