#include "planner/plan/folded_plan.h"

#include <algorithm>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "planner/plan/check_folded_plan.h"
#include "planner/plan/plan_io.h"
#include "planner/plan/verify_folded_plan.h"
#include "planner/plan/verify_plan.h"
#include "tests/support/folded_plans.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using testing::FoldedExample;
using testing::FoldedTrainingPlan;
using ::testing::HasSubstr;

TEST(FoldedPlan, DevicesThatDoTheSameShareAProgram) {
  const FoldedPlan plan = FoldedTrainingPlan();
  // The first device returns the loss.
  EXPECT_THAT(plan.class_of, ElementsAre(0, 1, 1, 1));
  EXPECT_EQ(plan.programs.size(), 4u);
  EXPECT_EQ(plan.num_devices(), 8u);
  EXPECT_EQ(plan.ProgramOf(0), 0u);
  EXPECT_EQ(plan.ProgramOf(3), 1u);
  EXPECT_EQ(plan.ProgramOf(4), 2u);
  EXPECT_THAT(FirstOfPrograms(plan), ElementsAre(0, 1, 4, 5));
  EXPECT_THAT(plan.SizeOfClasses(), ElementsAre(1, 3));
}

TEST(FoldedPlan, TilesOfOtherSizesMakeOtherClasses) {
  // 13 columns over 2 devices: 7 and 6.
  EXPECT_THAT(FoldedTrainingPlan({.hidden = 13}).class_of, ElementsAre(0, 1, 2, 1));
}

TEST(FoldedPlan, ExpandsToWhatHasNoSharedPrograms) {
  for (const FoldedExample& example :
       {FoldedExample{}, FoldedExample{.hidden = 13}, FoldedExample{.tp = 1, .num_stages = 1},
        FoldedExample{.dp = 3, .tp = 4, .hidden = 10}, FoldedExample{.dp = 1, .microbatches = 1},
        FoldedExample{.dp = 1, .tp = 1, .num_stages = 1, .microbatches = 1},
        FoldedExample{.dp = 4, .hidden = 4096, .zero = 1},
        FoldedExample{.dp = 3, .tp = 1, .hidden = 4097, .zero = 2},
        FoldedExample{.dp = 4, .tp = 1, .hidden = 4096, .zero = 3}}) {
    FoldedExample unfolded = example;
    unfolded.fold = false;
    const FoldedPlan spelled_out = FoldedTrainingPlan(unfolded);
    EXPECT_EQ(spelled_out.num_classes(), spelled_out.devices_per_stage());
    const absl::StatusOr<Plan> plan = ExpandPlan(FoldedTrainingPlan(example));
    ASSERT_TRUE(plan.ok()) << plan.status();
    EXPECT_TRUE(*plan == ExpandPlan(spelled_out).value());
    EXPECT_TRUE(VerifyPlan(*plan, BuiltinPolicies()).ok());
  }
}

TEST(FoldedPlan, CountsWhatItExpandsTo) {
  const FoldedPlan folded = FoldedTrainingPlan({.dp = 3, .hidden = 13});
  const PlanCounts counts = Count(folded);
  const PlanCounts expected = Count(ExpandPlan(folded).value());
  EXPECT_EQ(counts.actors, expected.actors);
  EXPECT_EQ(counts.channels, expected.channels);
  EXPECT_EQ(counts.collectives, expected.collectives);
}

TEST(FoldedPlan, SomeDevicesExpandAsAmongAll) {
  const FoldedPlan folded = FoldedTrainingPlan();
  const Plan all = ExpandPlan(folded).value();
  const Plan some = ExpandDevices(folded, {2, 5}).value();
  for (const uint32_t d : {2u, 5u}) {
    ASSERT_EQ(some.devices[d].actors.size(), all.devices[d].actors.size());
    for (size_t a = 0; a < all.devices[d].actors.size(); ++a) {
      const ActorPlan& actor = some.devices[d].actors[a];
      const ActorPlan& expected = all.devices[d].actors[a];
      EXPECT_EQ(actor.target, expected.target);
      if (actor.kernel != kNone) {
        EXPECT_EQ(some.kernels[actor.kernel], all.kernels[expected.kernel]);
      }
    }
  }
  EXPECT_TRUE(some.devices[0].actors.empty());
  EXPECT_EQ(some.devices[0].arena_bytes, all.devices[0].arena_bytes);
  EXPECT_EQ(some.collectives, all.collectives);
  EXPECT_LT(some.kernels.size(), all.kernels.size());
}

TEST(FoldedPlan, StatesExpandAsAmongAll) {
  for (const bool fold : {true, false}) {
    const FoldedPlan folded = FoldedTrainingPlan({.dp = 3, .hidden = 13, .fold = fold});
    const Plan all = ExpandPlan(folded).value();
    ASSERT_FALSE(all.states.empty());
    for (uint32_t i = 0; i < all.states.size(); ++i) {
      EXPECT_FALSE(all.states[i].placements.empty());
      EXPECT_EQ(ExpandState(folded, i).value(), all.states[i]);
    }
  }
}

// The size depends on programs, not on devices.
TEST(FoldedPlan, FilesOfManyDevicesAreNoLarger) {
  const size_t few = PlanToBytes(FoldedTrainingPlan({.dp = 4})).value().size();
  const size_t many = PlanToBytes(FoldedTrainingPlan({.dp = 256})).value().size();
  EXPECT_LT(many, few + 256 * 2 * 16);
}

// With ZeRO, each device updates its own part of what it holds.
TEST(FoldedPlan, PartsOfTilesAreViews) {
  const FoldedPlan folded = FoldedTrainingPlan({.dp = 4, .tp = 1, .hidden = 4096, .zero = 1});
  ASSERT_FALSE(folded.views.empty());
  const auto update = std::find_if(folded.view_operands.begin(), folded.view_operands.end(),
                                   [](const auto& operands) { return !operands.empty(); });
  ASSERT_NE(update, folded.view_operands.end());
  const Plan plan = ExpandPlan(folded).value();
  const auto program = static_cast<size_t>(update - folded.view_operands.begin());
  std::set<uint64_t> offsets;
  for (uint32_t d = 0; d < folded.num_devices(); ++d) {
    if (d / folded.devices_per_stage() != program / folded.num_classes()) continue;
    const ViewOperand& view = folded.view_operands[folded.ProgramOf(d)][0];
    const ActorPlan& actor = plan.devices[d].actors[view.actor];
    offsets.insert((view.is_output ? actor.outputs : actor.inputs)[view.index].offset);
  }
  EXPECT_EQ(offsets.size(), 4u) << "each device has a part of its own";
}

TEST(FoldedPlan, FilesHoldTheWholePlan) {
  for (const FoldedExample& example :
       {FoldedExample{}, FoldedExample{.hidden = 13},
        FoldedExample{.dp = 4, .tp = 1, .hidden = 4096, .zero = 1}}) {
    const FoldedPlan folded = FoldedTrainingPlan(example);
    const absl::StatusOr<Plan> read = PlanFromBytes(PlanToBytes(folded).value());
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_TRUE(*read == ExpandPlan(folded).value());
  }
}

struct Damage {
  std::string what;
  std::function<void(FoldedPlan&)> apply;
  std::string message;
};

TEST(CheckFoldedReferences, NamesWhatLeadsNowhere) {
  const FoldedPlan plan = FoldedTrainingPlan({.dp = 4, .tp = 1, .hidden = 4096, .zero = 1});
  ASSERT_TRUE(CheckFoldedReferences(plan).ok());
  const std::vector<Damage> damages = {
      {"mesh", [](FoldedPlan& p) { p.mesh.axes[1].size = 3; }, "the mesh has 3 devices"},
      {"micro-batches", [](FoldedPlan& p) { p.common.num_microbatches = 3; },
       "micro-batches a step, the plan 3"},
      {"axes of the mesh", [](FoldedPlan& p) { p.mesh.axes.resize(65); }, "there may be 64"},
      {"stages", [](FoldedPlan& p) { p.common.stages.resize(1 << 20); }, "there may be 131072"},
      {"order of classes",
       [](FoldedPlan& p) {
         p.class_of = {1, 0, 1, 1};
       },
       "class 1 occurs before class 0"},
      {"programs", [](FoldedPlan& p) { p.programs.pop_back(); }, "3 programs, expected 4"},
      {"stage of a program", [](FoldedPlan& p) { p.programs[2].stage = 0; }, "program 2"},
      {"kernel", [](FoldedPlan& p) { p.programs[0].actors[0].kernel = 999999; },
       "kernel 999999 does not exist"},
      {"shardings of a kernel", [](FoldedPlan& p) { p.kernel_shardings[0].push_back(0); },
       "shardings of"},
      {"sharding", [](FoldedPlan& p) { p.kernel_shardings[0][0] = 12345; },
       "sharding 12345 does not exist"},
      {"tile", [](FoldedPlan& p) { p.kernels[0].outputs[0].shape.assign(2, int64_t{1} << 40); },
       "has more than 2^48 elements"},
      {"axis",
       [](FoldedPlan& p) {
         for (graph::Sharding& s : p.shardings) {
           for (graph::DimSharding& dim : s.dims) {
             for (graph::AxisRef& axis : dim.axes) axis.size = 7;
           }
         }
       },
       "is used whole or not at all"},
      {"stage of a collective", [](FoldedPlan& p) { p.collectives[0].stage = 2; },
       "stage 2 does not exist"},
      {"axes of a collective",
       [](FoldedPlan& p) {
         p.collectives[0].axes = {{9, 1, 2}};
       },
       "has no axis number 9"},
      {"specifications",
       [](FoldedPlan& p) { p.collectives[0].specs.assign(17, p.collectives[0].specs[0]); },
       "17 specifications"},
      {"counts", [](FoldedPlan& p) { p.collectives[0].specs[0].counts.resize(100); },
       "has 100 counts"},
      {"view",
       [](FoldedPlan& p) {
         for (std::vector<ViewOperand>& operands : p.view_operands) {
           for (ViewOperand& operand : operands) operand.view = 99;
         }
       },
       "is view 99, which does not exist"},
      {"operand of a view",
       [](FoldedPlan& p) {
         for (std::vector<ViewOperand>& operands : p.view_operands) {
           for (ViewOperand& operand : operands) operand.index = 7;
         }
       },
       "operand 7 of actor"},
      {"sharding of a view", [](FoldedPlan& p) { p.views[0].part = 12345; },
       "sharding 12345 does not exist"},
      {"stage of a transfer", [](FoldedPlan& p) { p.transfers[0].destination_stage = 8; },
       "stage 8 does not exist"},
      {"sharding of a transfer",
       [](FoldedPlan& p) {
         p.transfers[0].type.shape = {1, 2, 3, 4};
       },
       "the sharding has 2 dimensions"},
      {"registers of a state", [](FoldedPlan& p) { p.states[0].registers.pop_back(); },
       "1 classes of 2"},
      {"states", [](FoldedPlan& p) { p.states.pop_back(); }, "places of"},
  };
  for (const Damage& damage : damages) {
    FoldedPlan damaged = plan;
    damage.apply(damaged);
    const absl::Status status = CheckFoldedReferences(damaged);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << damage.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(damage.message)) << damage.what;
  }
}

ActorPlan& FirstActor(DevicePlan& program, ActorKind kind) {
  for (ActorPlan& actor : program.actors) {
    if (actor.kind == kind) return actor;
  }
  ADD_FAILURE() << "no such actor";
  return program.actors[0];
}

TEST(VerifyFoldedPlan, FindsWhatIsWrongInOneProgram) {
  const FoldedPlan plan = FoldedTrainingPlan();
  const PolicyRegistry policies = BuiltinPolicies();
  ASSERT_TRUE(VerifyFoldedPlan(plan, policies).ok());
  const std::vector<Damage> damages = {
      {"a collective that one program leaves out",
       [](FoldedPlan& p) {
         ActorPlan& actor = FirstActor(p.programs[1], ActorKind::kCollective);
         actor.target = (actor.target + 1) % static_cast<uint32_t>(p.collectives.size());
       },
       "collective"},
      {"a register that is too small for a group",
       [](FoldedPlan& p) {
         for (FoldedCollective& collective : p.collectives) {
           for (CollectiveSpec& spec : collective.specs) spec.counts[0] += 1 << 20;
         }
       },
       "which its register cannot hold"},
      {"a transfer of more than was made",
       [](FoldedPlan& p) { p.transfers[0].type.shape[0] *= 1024; },
       "which its register cannot hold"},
      {"a transfer at another rate", [](FoldedPlan& p) { p.transfers[0].per_microbatch = false; },
       "does not run once a step"},
      {"registers that overlap",
       [](FoldedPlan& p) { p.programs[0].registers[1].offset = p.programs[0].registers[0].offset; },
       "overlap"},
      {"an order of another step",
       [](FoldedPlan& p) {
         std::reverse(p.common.stages[1].order.begin(), p.common.stages[1].order.end());
       },
       "expected micro-batch 0"},
      // Stage 0 waits for the first backward before the second forward, stage 1 the other way.
      {"orders that deadlock",
       [](FoldedPlan& p) {
         constexpr PhaseKind kF = PhaseKind::kForward;
         constexpr PhaseKind kB = PhaseKind::kBackward;
         p.common.stages[0].order = {{kF, 0}, {kB, 0}, {kF, 1}, {kB, 1}};
         p.common.stages[1].order = {{kF, 0}, {kF, 1}, {kB, 0}, {kB, 1}};
       },
       // They deadlock, too; but with them, registers that share bytes are in use at once.
       "no channel keeps both from being in use"},
  };
  for (const Damage& damage : damages) {
    FoldedPlan damaged = plan;
    damage.apply(damaged);
    const absl::Status status = VerifyFoldedPlan(damaged, policies).status();
    EXPECT_FALSE(status.ok()) << damage.what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(damage.message)) << damage.what;
  }
}

}  // namespace
}  // namespace penstock::planner
