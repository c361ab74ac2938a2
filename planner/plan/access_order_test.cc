#include "planner/plan/access_order.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/plans.h"

namespace penstock::planner {
namespace {

using testing::AddAllReduce;
using testing::DeviceBuilder;
using ::testing::ElementsAre;
using testing::EmptyPlan;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;

constexpr uint64_t kAccessOrderBytes = 64;

class AccessOrderTest : public ::testing::Test {
 protected:
  AccessOrderTest() : plan_(EmptyPlan(1, 1, 1)), device_(&plan_, 0) {}

  uint32_t Register(RegisterClass register_class = RegisterClass::kWorkspace) {
    return device_.AddRegister(register_class, kAccessOrderBytes);
  }
  void Forward() { device_.AddPhase("F", PhaseKind::kForward, Lane::kCompute, true); }

  // The channels that are added: (producer, consumer).
  std::vector<std::pair<uint32_t, uint32_t>> Added() {
    DevicePlan& device = plan_.devices[0];
    const size_t num_before = device.channels.size();
    EXPECT_EQ(CheckAccessOrder(plan_).ok(), IsOrdered());
    AddOrderChannels(plan_.kernels, &device);
    EXPECT_EQ(CheckAccessOrder(plan_), absl::OkStatus());
    std::vector<std::pair<uint32_t, uint32_t>> added;
    for (size_t i = num_before; i < device.channels.size(); ++i) {
      EXPECT_EQ(device.channels[i].reg, kNone);
      added.emplace_back(device.channels[i].producer, device.channels[i].consumer);
    }
    return added;
  }

  Plan plan_;
  DeviceBuilder device_;

 private:
  bool IsOrdered() const {
    DevicePlan copy = plan_.devices[0];
    AddOrderChannels(plan_.kernels, &copy);
    return copy.channels.size() == plan_.devices[0].channels.size();
  }
};

TEST_F(AccessOrderTest, WhatSharesNoBytesHasNoOrder) {
  const uint32_t a = Register();
  const uint32_t b = Register();
  Forward();
  device_.AddKernel("a", {}, {a});
  device_.AddKernel("b", {}, {b});
  EXPECT_THAT(Added(), IsEmpty());
}

TEST_F(AccessOrderTest, ReadersComeBeforeTheNextWriter) {
  const uint32_t a = Register();
  const uint32_t b = Register();
  Forward();
  const uint32_t make = device_.AddKernel("make", {}, {a});
  const uint32_t use = device_.AddKernel("use", {a}, {});
  const uint32_t also = device_.AddKernel("use again", {a}, {});
  device_.Join(make, use, a);
  device_.Join(make, also, a);
  device_.AddKernel("other", {}, {b});
  plan_.devices[0].registers[b].offset = 0;
  EXPECT_THAT(Added(), ElementsAre(Pair(1, 3), Pair(2, 3)));
}

TEST_F(AccessOrderTest, OrderThatFollowsIsNotAdded) {
  const uint32_t a = Register();
  const uint32_t b = Register();
  const uint32_t c = Register();
  Forward();
  const uint32_t make = device_.AddKernel("make", {}, {a});
  const uint32_t middle = device_.AddKernel("middle", {a}, {b});
  const uint32_t last = device_.AddKernel("last", {b}, {c});
  device_.Join(make, middle, a);
  device_.Join(middle, last, b);
  plan_.devices[0].registers[c].offset = 0;
  EXPECT_THAT(Added(), IsEmpty());
}

TEST_F(AccessOrderTest, SumsIntoOneRegisterFormAChain) {
  const uint32_t sum = Register();
  Forward();
  for (int i = 0; i < 3; ++i) {
    device_.AddKernel("add", {}, {sum});
    plan_.kernels.back().accumulate = true;
  }
  EXPECT_THAT(Added(), ElementsAre(Pair(0, 1), Pair(1, 2)));
}

TEST_F(AccessOrderTest, PartsOfARegisterAreApart) {
  const uint32_t whole = Register();
  Forward();
  for (uint64_t i = 0; i < 2; ++i) {
    device_.AddKernel("part", {}, {whole});
    plan_.kernels.push_back(plan_.kernels.back());
    plan_.kernels.back().outputs[0].shape = {8};
    ActorPlan& actor = plan_.devices[0].actors.back();
    actor.kernel = static_cast<uint32_t>(plan_.kernels.size()) - 1;
    actor.outputs[0].offset = 32 * i;
  }
  EXPECT_THAT(Added(), IsEmpty());
  // Nor do halves hide what a whole write follows.
  device_.AddKernel("whole", {}, {whole});
  EXPECT_THAT(Added(), ElementsAre(Pair(0, 2), Pair(1, 2)));
}

TEST_F(AccessOrderTest, BytesOfAnySlotMayBeShared) {
  plan_.num_microbatches = 2;
  const uint32_t two_slots = device_.AddRegister(RegisterClass::kChannel, kAccessOrderBytes, 2);
  const uint32_t other = Register();
  plan_.devices[0].registers[other].offset =
      plan_.devices[0].registers[two_slots].offset + kAccessOrderBytes;
  Forward();
  device_.AddKernel("read", {two_slots}, {});
  device_.AddKernel("write", {}, {other});
  EXPECT_THAT(Added(), ElementsAre(Pair(0, 1)));
}

TEST_F(AccessOrderTest, ScratchIsSharedByKernelsButNotWithRegisters) {
  const uint32_t a = Register();
  Forward();
  device_.AddKernel("first", {}, {});
  device_.AddKernel("second", {}, {});
  for (ActorPlan& actor : plan_.devices[0].actors) actor.workspace_bytes = kAccessOrderBytes;
  EXPECT_THAT(Added(), IsEmpty());
  device_.AddKernel("third", {}, {a});
  EXPECT_THAT(Added(), ElementsAre(Pair(1, 2)));
}

TEST_F(AccessOrderTest, ACollectiveIsDoneBeforeItsInputIsWritten) {
  AddAllReduce(&plan_, {0}, kAccessOrderBytes / 4, true);
  const uint32_t a = Register();
  const uint32_t sum = Register();
  Forward();
  const uint32_t make = device_.AddKernel("make", {}, {a});
  const uint32_t reduce = device_.AddCollective("reduce", 0, a, sum);
  device_.Join(make, reduce, a);
  device_.AddKernel("make again", {}, {a});
  EXPECT_THAT(Added(), ElementsAre(Pair(1, 2)));
}

TEST_F(AccessOrderTest, WhatAChannelToAnotherPhaseStandsForComesBeforeItsEnds) {
  const uint32_t a = Register(RegisterClass::kChannel);
  Forward();
  device_.AddKernel("one term", {}, {a});
  const uint32_t last_term = device_.AddKernel("last term", {}, {a});
  device_.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
  device_.AddKernel("one reader", {a}, {});
  const uint32_t last_reader = device_.AddKernel("last reader", {a}, {});
  device_.AddChannel({last_term, last_reader, a, 1, 1, 1, 0});
  EXPECT_THAT(CheckAccessOrder(plan_).message(), HasSubstr("'last term'"));
  EXPECT_THAT(Added(), ElementsAre(Pair(0, 1), Pair(2, 3)));
}

TEST_F(AccessOrderTest, AnActorWithAChannelOfItsOwnNeedsNoOrder) {
  AddAllReduce(&plan_, {0}, kAccessOrderBytes / 4, true);
  const uint32_t a = Register(RegisterClass::kChannel);
  const uint32_t sum = Register();
  Forward();
  const uint32_t make = device_.AddKernel("make", {}, {a});
  device_.AddPhase("B", PhaseKind::kBackward, Lane::kCompute, true);
  const uint32_t reduce = device_.AddCollective("reduce", 0, a, sum);
  const uint32_t reader = device_.AddKernel("reader", {a}, {});
  device_.AddChannel({make, reader, a, 1, 1, 1, 0});
  EXPECT_THAT(CheckAccessOrder(plan_).message(),
              HasSubstr("'reduce' (device 0, phase B) uses register 0, which crosses phases"));
  device_.AddChannel({make, reduce, a, 1, 1, 1, 0});
  EXPECT_THAT(Added(), IsEmpty());
}

}  // namespace
}  // namespace penstock::planner
