#include "actors/engine/wait_chain.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace penstock::actors {
namespace {

using planner::ActorKind;
using planner::Plan;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using State = DeviceSnapshot::State;

// Devices in a row; each sends to the next one, and all take part in an all_reduce.
class WaitChainTest : public ::testing::Test {
 protected:
  void MakePlan(uint32_t num_devices) {
    plan_.devices.resize(num_devices);
    for (uint32_t d = 0; d + 1 < num_devices; ++d) {
      plan_.transfers.push_back({.channel = d, .source = d, .destination = d + 1});
      AddActor(d, "h", ActorKind::kSend, d);
      AddActor(d + 1, "h", ActorKind::kRecv, d);
    }
    CollectiveSpec& sum = plan_.collectives.emplace_back();
    for (uint32_t d = 0; d < num_devices; ++d) {
      sum.devices.push_back(d);
      AddActor(d, "grad", ActorKind::kCollective, 0);
      DeviceSnapshot& snapshot = snapshots_.emplace_back();
      snapshot.device = d;
      snapshot.state = State::kRunning;
      snapshot.communications.resize(plan_.devices[d].actors.size());
    }
  }

  // The device waits in its communicating actor `ordinal`, which it has started one time more than
  // completed.
  void Wait(uint32_t device, uint32_t ordinal, uint64_t num_done = 0) {
    DeviceSnapshot& snapshot = snapshots_[device];
    snapshot.state = State::kWaiting;
    snapshot.communications[ordinal] = 2 * num_done + 1;
    snapshot.waits.push_back(
        {plan_.devices[device].actors[ordinal].name, "other devices", ordinal});
  }

  WaitChains Find() const { return FindWaitChains(plan_, snapshots_); }

  Plan plan_;
  std::vector<DeviceSnapshot> snapshots_;

 private:
  void AddActor(uint32_t device, std::string name, ActorKind kind, uint32_t target) {
    planner::ActorPlan& actor = plan_.devices[device].actors.emplace_back();
    actor.name = std::move(name);
    actor.kind = kind;
    actor.target = target;
  }
};

TEST_F(WaitChainTest, NothingWaits) {
  MakePlan(3);
  const WaitChains chains = Find();
  EXPECT_THAT(chains.waits, IsEmpty());
  EXPECT_THAT(chains.roots, IsEmpty());
  EXPECT_THAT(chains.cycles, IsEmpty());
  EXPECT_EQ(chains.waits_for.size(), 3u);
}

TEST_F(WaitChainTest, FollowsReceivesToTheDeviceThatRuns) {
  MakePlan(3);
  Wait(1, 0);
  Wait(2, 0);
  const WaitChains chains = Find();
  EXPECT_THAT(chains.waits_for, ElementsAre(IsEmpty(), ElementsAre(0), ElementsAre(1)));
  EXPECT_THAT(chains.roots, ElementsAre(0));
  EXPECT_THAT(chains.waits, ElementsAre(ActorWait{"h", 1, "device 0, recv of 'h'", {0}},
                                        ActorWait{"h", 2, "device 1, recv of 'h'", {1}}));
}

TEST_F(WaitChainTest, WaitsInACollectiveForThoseThatHaveNotStartedIt) {
  MakePlan(4);
  Wait(0, 1, /*num_done=*/2);
  Wait(2, 2, /*num_done=*/2);
  snapshots_[1].communications[2] = 4;  // has completed it twice
  snapshots_[3].communications[1] = 5;  // has started it, and runs
  const WaitChains chains = Find();
  EXPECT_THAT(chains.waits_for, ElementsAre(ElementsAre(1), IsEmpty(), ElementsAre(1), IsEmpty()));
  EXPECT_THAT(chains.roots, ElementsAre(1));
  EXPECT_EQ(chains.waits[0].what, "device 1, all_reduce of 'grad'");
}

TEST_F(WaitChainTest, DataUnderWayHoldsNobodyBack) {
  MakePlan(2);
  Wait(1, 0);
  snapshots_[0].communications[0] = 2;  // has sent it
  const WaitChains chains = Find();
  EXPECT_THAT(chains.waits, ElementsAre(ActorWait{"h", 1, "data under way, recv of 'h'", {}}));
  EXPECT_THAT(chains.roots, IsEmpty());
}

TEST_F(WaitChainTest, ASilentDeviceIsTheRoot) {
  MakePlan(4);
  snapshots_[1] = DeviceSnapshot();
  snapshots_[1].device = 1;
  Wait(0, 1);
  Wait(2, 0);
  Wait(3, 0);
  const WaitChains chains = Find();
  EXPECT_THAT(chains.roots, ElementsAre(1));
  EXPECT_THAT(chains.waits_for[0], ElementsAre(1, 2, 3));
  EXPECT_THAT(chains.waits_for[2], ElementsAre(1));
}

TEST_F(WaitChainTest, FindsCycles) {
  MakePlan(3);
  Wait(1, 0);  // for device 0 to send
  Wait(0, 1);  // in the all_reduce, which device 1 has not started
  snapshots_[2].communications[1] = 1;
  const WaitChains chains = Find();
  EXPECT_THAT(chains.cycles, ElementsAre(ElementsAre(0, 1)));
  EXPECT_THAT(chains.roots, IsEmpty());
}

TEST_F(WaitChainTest, ACycleThatWaitsForAnotherDeviceIsNoRoot) {
  MakePlan(3);
  Wait(1, 0);
  Wait(0, 1);  // for devices 1 and 2
  const WaitChains chains = Find();
  EXPECT_THAT(chains.cycles, IsEmpty());
  EXPECT_THAT(chains.roots, ElementsAre(2));
}

TEST_F(WaitChainTest, TheRootOfMostComesFirst) {
  MakePlan(6);
  Wait(1, 0);  // for 0
  Wait(3, 0);  // for 2
  Wait(4, 0);  // for 3
  EXPECT_THAT(Find().roots, ElementsAre(2, 0));
}

TEST_F(WaitChainTest, AWaitOnTheDeviceItselfHasNoArrow) {
  MakePlan(2);
  snapshots_[0].state = State::kWaiting;
  snapshots_[0].waits.push_back({"mm", "tokens from 'x' 0 of 1"});
  const WaitChains chains = Find();
  EXPECT_THAT(chains.waits, ElementsAre(ActorWait{"mm", 0, "tokens from 'x' 0 of 1", {}}));
  EXPECT_THAT(chains.waits_for[0], IsEmpty());
}

// What processes send is not trusted.
TEST_F(WaitChainTest, LeavesOutWhatDoesNotFitThePlan) {
  MakePlan(2);
  snapshots_[0].state = State::kWaiting;
  snapshots_[0].waits.push_back({"x", "other devices", 99});
  snapshots_[1].communications.resize(77);
  EXPECT_THAT(Find().waits_for[0], IsEmpty());
  snapshots_.resize(1);
  EXPECT_EQ(Find().waits_for.size(), 1u);
}

TEST_F(WaitChainTest, ChainsMayBeLong) {
  constexpr uint32_t kDevices = 20'000;
  MakePlan(kDevices);
  for (uint32_t d = 1; d < kDevices; ++d) Wait(d, 0);
  const WaitChains chains = Find();
  EXPECT_THAT(chains.roots, ElementsAre(0));
  EXPECT_THAT(chains.waits_for[kDevices - 1], ElementsAre(kDevices - 2));
}

}  // namespace
}  // namespace penstock::actors
