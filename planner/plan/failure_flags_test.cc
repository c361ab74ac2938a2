#include "planner/plan/failure_flags.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using testing::EnginePlanBuilder;

// A chain in F of as many collectives as there are groups, a kernel before and behind each.
struct Chain {
  Chain(EnginePlanBuilder* builder, uint32_t device, const std::vector<uint32_t>& targets)
      : b(*builder), d(device) {
    uint32_t x = b.AddRegister(d);
    b.BeginPhase(d, "F", PhaseKind::kForward);
    uint32_t last = b.AddKernel(d, "first", "t.iota", {}, {x});
    for (const uint32_t target : targets) {
      const uint32_t y = b.AddRegister(d);
      const uint32_t reduce = b.AddCollective(d, "reduce", target, x, y);
      b.AddChannel(d, last, reduce);
      x = b.AddRegister(d);
      last = b.AddKernel(d, "read", "t.affine", {y}, {x});
      b.AddChannel(d, reduce, last);
      readers.push_back(last);
      values.push_back(x);
    }
  }

  EnginePlanBuilder& b;
  const uint32_t d;
  std::vector<uint32_t> readers;  // of each collective
  std::vector<uint32_t> values;   // that they write
};

// A reader's value leaves the compute lane.
void Spread(Chain* chain, size_t reader) {
  EnginePlanBuilder& b = chain->b;
  const uint32_t y = b.AddRegister(chain->d, 1, false);
  b.BeginPhase(chain->d, "out", PhaseKind::kTransfer, Lane::kFloating);
  b.AddChannel(chain->d, chain->readers[reader],
               b.AddKernel(chain->d, "copy", "t.affine", {chain->values[reader]}, {y}));
}

std::vector<uint32_t> AddSpecs(EnginePlanBuilder* b,
                               const std::vector<std::vector<uint32_t>>& groups) {
  for (int d = 0; d < 3; ++d) b->AddDevice();
  std::vector<uint32_t> targets;
  for (const std::vector<uint32_t>& group : groups) {
    targets.push_back(b->AddCollectiveSpec(CollectiveKind::kAllReduce, group,
                                           std::vector<int64_t>(group.size(), 2), true));
  }
  return targets;
}

TEST(FailureFlags, TheLastOfAPhaseTellsForAll) {
  EnginePlanBuilder b;
  const std::vector<uint32_t> targets = AddSpecs(&b, {{0, 1}, {0, 1}, {0, 1}});
  Chain zero(&b, 0, targets);
  Spread(&zero, 2);
  Chain one(&b, 1, targets);
  EXPECT_THAT(CollectivesThatTellFailures(b.plan()), ElementsAre(false, false, true));
}

// One member is enough.
TEST(FailureFlags, OneTellsBeforeItsValuesSpread) {
  EnginePlanBuilder b;
  const std::vector<uint32_t> targets = AddSpecs(&b, {{0, 1}, {0, 1}, {0, 1}});
  Chain zero(&b, 0, targets);
  Chain one(&b, 1, targets);
  Spread(&one, 1);
  EXPECT_THAT(CollectivesThatTellFailures(b.plan()), ElementsAre(false, true, true));
}

TEST(FailureFlags, OneTellsBeforeAStateIsWritten) {
  EnginePlanBuilder b;
  const std::vector<uint32_t> targets = AddSpecs(&b, {{0, 1}, {0, 1}, {0, 1}});
  Chain zero(&b, 0, targets);
  const uint32_t state = b.AddState(0, "w");
  b.plan().devices[0].actors[zero.readers[0]].outputs[0].reg = state;
  Chain one(&b, 1, targets);
  EXPECT_THAT(CollectivesThatTellFailures(b.plan()), ElementsAre(true, false, true));
}

TEST(FailureFlags, OneTellsBeforeAnotherGroupIsGivenItsValues) {
  EnginePlanBuilder b;
  const std::vector<uint32_t> targets = AddSpecs(&b, {{0, 1}, {0, 2}, {0, 1}, {0, 1}});
  Chain zero(&b, 0, targets);
  Chain one(&b, 1, {targets[0], targets[2], targets[3]});
  Chain two(&b, 2, {targets[1]});
  EXPECT_THAT(CollectivesThatTellFailures(b.plan()), ElementsAre(true, true, false, true));
}

// What is behind a collective that tells does not wait for it if it does not need it.
TEST(FailureFlags, OneTellsIfNothingWaitsForTheNext) {
  EnginePlanBuilder b;
  const std::vector<uint32_t> targets = AddSpecs(&b, {{0, 1}, {0, 1}});
  for (uint32_t d = 0; d < 2; ++d) {
    Chain chain(&b, d, {targets[0]});
    const uint32_t y = b.AddRegister(d);
    const uint32_t next = b.AddCollective(d, "next", targets[1], chain.values[0], y);
    b.AddChannel(d, chain.readers[0], next);
    const uint32_t out = b.AddKernel(d, "out", "t.affine", {chain.values[0]}, {b.AddRegister(d)});
    chain.readers.push_back(out);
    chain.values.push_back(b.AddRegister(d));
    Spread(&chain, 1);
  }
  EXPECT_THAT(CollectivesThatTellFailures(b.plan()), ElementsAre(true, true));
}

TEST(FailureFlags, AllTellInOtherLanes) {
  EnginePlanBuilder b;
  const std::vector<uint32_t> targets = AddSpecs(&b, {{0, 1}, {0, 1}});
  for (uint32_t d = 0; d < 2; ++d) {
    Chain chain(&b, d, targets);
    b.plan().devices[d].phases[0].lane = Lane::kPerStep;
  }
  EXPECT_THAT(CollectivesThatTellFailures(b.plan()), ElementsAre(true, true));
}

}  // namespace
}  // namespace penstock::planner
