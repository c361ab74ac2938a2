#include "planner/lower/phase_order.h"

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;

class PhaseOrderTest : public ::testing::Test {
 protected:
  void Add(std::string name, std::vector<int> inputs, std::vector<int> outputs,
           ActorKind kind = ActorKind::kKernel) {
    DraftActor actor;
    actor.plan.name = std::move(name);
    actor.plan.kind = kind;
    actor.inputs = std::move(inputs);
    actor.outputs = std::move(outputs);
    actors_.push_back(std::move(actor));
  }
  void Reduce(std::string name, int buffer) {
    Add(std::move(name), {buffer}, {buffer}, ActorKind::kCollective);
  }

  std::vector<std::string> Order() {
    StartCommunicationEarly(buffers_, &actors_);
    std::vector<std::string> names;
    for (const DraftActor& actor : actors_) names.push_back(actor.plan.name);
    return names;
  }

  std::vector<Buffer> buffers_ = std::vector<Buffer>(10);
  std::vector<DraftActor> actors_;
};

TEST_F(PhaseOrderTest, WeightGradientsFollowTheReductionOfTheInputGradient) {
  Add("dy", {}, {0});
  Add("dw2", {0}, {1});
  Add("dh", {0}, {2});
  Add("db", {2}, {3});
  Add("dx", {2}, {4});
  Reduce("reduce dx", 4);
  Add("dw1", {2}, {5});
  Add("next", {4}, {6});
  EXPECT_THAT(Order(), ElementsAre("dy", "dh", "dx", "reduce dx", "dw2", "db", "dw1", "next"));
}

TEST_F(PhaseOrderTest, NothingMovesTwice) {
  Add("other", {}, {0});
  Add("a", {}, {1});
  Reduce("reduce a", 1);
  Add("late", {}, {2});
  Add("b", {1}, {3});
  Reduce("reduce b", 3);
  EXPECT_THAT(Order(), ElementsAre("a", "reduce a", "other", "b", "reduce b", "late"));
}

TEST_F(PhaseOrderTest, WhatOverwritesComesAfterItsReaders) {
  Add("make", {}, {0});
  Add("read", {0}, {1});
  Add("overwrite", {0}, {0});
  Reduce("reduce", 0);
  EXPECT_THAT(Order(), ElementsAre("make", "read", "overwrite", "reduce"));
}

TEST_F(PhaseOrderTest, PartsCountAsTheWhole) {
  buffers_[1].whole = 0;
  buffers_[2].whole = 0;
  Add("part", {}, {1});
  Add("other", {}, {3});
  Add("part", {}, {2});
  Reduce("reduce", 0);
  EXPECT_THAT(Order(), ElementsAre("part", "part", "reduce", "other"));
}

TEST_F(PhaseOrderTest, UnboundOperandsOrderNothing) {
  Add("a", {-1}, {-1});
  Add("b", {-1}, {0});
  Reduce("reduce", 0);
  EXPECT_THAT(Order(), ElementsAre("b", "reduce", "a"));
}

TEST_F(PhaseOrderTest, WhatHasAPlaceKeepsIt) {
  Add("a", {}, {0});
  Add("b", {0}, {1});
  Add("gather", {2}, {3}, ActorKind::kCollective);
  actors_.back().after = 1;
  Add("c", {1, 3}, {4});
  EXPECT_THAT(Order(), ElementsAre("a", "b", "gather", "c"));
}

// Gradients g0, g1, ... of 100 bytes, each made by a kernel and scattered to the update.
class WaitingBytesTest : public PhaseOrderTest {
 protected:
  std::vector<std::pair<int, int>> Limit(int64_t waiting_bytes) {
    DraftPhase phase;
    std::vector<int> home(20, 0);
    buffers_.resize(20);
    for (int g = 0; g < 5; ++g) {
      buffers_[g].bytes = 100;
      home[10 + g] = -2;  // the update reads it
      Add("dw", {}, {g});
      Add("scatter", {g}, {10 + g}, ActorKind::kCollective);
    }
    phase.actors = std::move(actors_);
    LimitWaitingBytes(buffers_, home, 0, waiting_bytes, &phase);
    return phase.order;
  }
};

TEST_F(WaitingBytesTest, AKernelWaitsForTheOldestScatterWhenTheBytesAreUsedUp) {
  // Kernel 4 would be the third to have bytes at once.
  EXPECT_THAT(Limit(200), ElementsAre(std::pair(1, 4), std::pair(3, 6), std::pair(5, 8)));
}

// A bucket gives back the bytes of all its gradients at once.
TEST_F(WaitingBytesTest, ABucketIsWaitedForOnce) {
  DraftPhase phase;
  std::vector<int> home(20, 0);
  buffers_.resize(20);
  for (int g = 0; g < 6; ++g) {
    buffers_[g].bytes = 100;
    home[10 + g] = -2;
    Add("dw", {}, {g});
    if (g % 2 == 0) continue;
    Add("scatter", {g - 1, g}, {10 + g - 1, 10 + g}, ActorKind::kCollective);
  }
  phase.actors = std::move(actors_);
  LimitWaitingBytes(buffers_, home, 0, 400, &phase);
  EXPECT_THAT(phase.order, ElementsAre(std::pair(2, 6)));
}

TEST_F(WaitingBytesTest, OneScatterIsAlwaysUnderWay) {
  EXPECT_THAT(Limit(0), ElementsAre(std::pair(1, 4), std::pair(3, 6), std::pair(5, 8)));
}

TEST_F(WaitingBytesTest, MoreBytesLetMoreWait) {
  EXPECT_THAT(Limit(400), ElementsAre(std::pair(1, 8)));
  EXPECT_TRUE(Limit(500).empty());
}

}  // namespace
}  // namespace penstock::planner
