// One stage's controller against its links, with no thread and no executor.

#include "actors/engine/stage.h"

#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"
#include "tests/support/test_policies.h"

namespace penstock::actors {
namespace {

using planner::PhaseChoice;
using planner::PhaseKind;
using planner::StageContext;
using planner::StageView;
using testing::DynamicPolicy;
using ::testing::HasSubstr;

// Two devices of one stage with forwards and backwards of `num_microbatches`.
planner::Plan TwoDevices(uint32_t num_microbatches) {
  testing::EnginePlanBuilder builder(num_microbatches);
  for (uint32_t device : {0u, 1u}) {
    builder.AddDevice();
    const uint32_t reg = builder.AddRegister(device);
    builder.BeginPhase(device, "F", PhaseKind::kForward);
    builder.AddKernel(device, "f", "t.sum", {}, {reg});
    builder.BeginPhase(device, "B", PhaseKind::kBackward);
    builder.AddKernel(device, "b", "t.sum", {}, {reg});
  }
  return builder.plan();
}

std::string Text(const PhaseDecision& decision) {
  return ToString(decision) + "@" + std::to_string(decision.step);
}

class StageTest : public ::testing::Test {
 protected:
  std::unique_ptr<StageController> Create(const std::string& policy, uint32_t microbatches,
                                          int64_t first_step = 0) {
    plan_ = TwoDevices(microbatches);
    plan_.policy = policy;
    absl::StatusOr<std::unique_ptr<StageController>> controller =
        StageController::Create(plan_, 0, policies_, {&links_[0], &links_[1]}, first_step);
    EXPECT_TRUE(controller.ok()) << controller.status();
    return *std::move(controller);
  }

  std::unique_ptr<StageController> Create(const DynamicPolicy& policy, uint32_t microbatches,
                                          int64_t first_step = 0) {
    EXPECT_TRUE(policies_.Add(std::make_unique<DynamicPolicy>(policy)).ok());
    return Create(std::string(policy.name()), microbatches, first_step);
  }

  // Takes what is in a device's ring.
  std::string Drain(int device) {
    std::string text;
    while (const PhaseDecision* decision = links_[device].decisions.Front()) {
      text += (text.empty() ? "" : " ") + Text(*decision);
      links_[device].decisions.Pop();
    }
    return text;
  }

  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
  planner::Plan plan_;
  StageLink links_[2];
};

TEST_F(StageTest, APlannedOrderIsDecidedAheadForAllDevicesAlike) {
  const auto controller = Create(std::string("gpipe"), 2);
  EXPECT_TRUE(controller->is_planned());
  while (controller->Poll()) {
  }
  // The window is full, though nothing was submitted.
  EXPECT_EQ(links_[0].decisions.size(), StageLink::kWindow);
  const std::string first = Drain(0);
  EXPECT_THAT(first, ::testing::StartsWith("F0@0 F1@0 B0@0 B1@0 F0@1 F1@1"));
  // Room is what the slowest device has.
  EXPECT_FALSE(controller->Poll());
  EXPECT_EQ(Drain(1), first);
  EXPECT_TRUE(controller->Poll());
  EXPECT_EQ(Drain(0), Drain(1));
}

TEST_F(StageTest, ADecidingPolicySeesWhatAllDevicesHaveDone) {
  // Backward as soon as its forward is complete everywhere.
  const DynamicPolicy policy(
      "function", [](const StageContext&, const StageView& view) -> std::optional<PhaseChoice> {
        const planner::ChunkView& chunk = view.chunks[0];
        if (chunk.issued[1] < chunk.completed[0]) {
          return PhaseChoice{PhaseKind::kBackward, chunk.issued[1]};
        }
        if (chunk.issued[0] < 2 && chunk.issued[0] == chunk.issued[1]) {
          return PhaseChoice{PhaseKind::kForward, chunk.issued[0]};
        }
        return std::nullopt;
      });
  const auto controller = Create(policy, 2);
  EXPECT_FALSE(controller->is_planned());
  EXPECT_FALSE(controller->Poll());  // no step was submitted
  controller->SetSubmittedSteps(1);
  EXPECT_TRUE(controller->Poll());
  EXPECT_EQ(Drain(0), "F0@0");
  links_[0].counts[0].completed = 1;
  EXPECT_FALSE(controller->Poll());  // the other device has not completed it
  links_[1].counts[0].completed = 1;
  EXPECT_TRUE(controller->Poll());
  EXPECT_EQ(Drain(0), "B0@0 F1@0");
  EXPECT_EQ(Drain(1), "F0@0 B0@0 F1@0");
}

TEST_F(StageTest, ChunksAreChosenApart) {
  plan_ = TwoDevices(1);
  plan_.policy = "function";
  for (planner::DevicePlan& device : plan_.devices) {
    planner::PhasePlan later = device.phases[0];
    later.chunk = 1;
    device.phases.push_back(later);
  }
  // The forward of chunk 1, then those of chunk 0.
  const auto next = [](const StageContext& context,
                       const StageView& view) -> std::optional<PhaseChoice> {
    EXPECT_EQ(context.num_chunks(), 2);
    if (view.chunks[1].issued[0] == 0) return PhaseChoice{PhaseKind::kForward, 0, 1};
    if (view.chunks[1].completed[0] == 0) return std::nullopt;
    return PhaseChoice{PhaseKind::kForward, view.chunks[0].issued[0]};
  };
  ASSERT_TRUE(policies_.Add(std::make_unique<DynamicPolicy>("function", next)).ok());
  const auto controller = StageController::Create(plan_, 0, policies_, {&links_[0], &links_[1]});
  ASSERT_TRUE(controller.ok()) << controller.status();
  (*controller)->SetSubmittedSteps(1);
  EXPECT_TRUE((*controller)->Poll());
  EXPECT_EQ(Drain(0), "F0 of chunk 1@0");
  for (StageLink& link : links_) {
    link.counts[planner::PhaseType(PhaseKind::kForward, 1)].completed = 1;
  }
  EXPECT_TRUE((*controller)->Poll());
  EXPECT_EQ(Drain(0), "F0@0");
  // Of F1 there is none.
  EXPECT_THAT(std::string((*controller)->status().message()), HasSubstr("chose F1 on stage 0"));
  EXPECT_THAT((*controller)->Describe(), HasSubstr("F of chunk 1 issued 1 completed 1"));
}

TEST_F(StageTest, AnIllegalChoiceIsNamedAndEndsTheStage) {
  const DynamicPolicy policy("function", [](const StageContext&, const StageView&) {
    return PhaseChoice{PhaseKind::kForward, 1};
  });
  const auto controller = Create(policy, 2);
  controller->SetSubmittedSteps(1);
  EXPECT_FALSE(controller->Poll());
  EXPECT_THAT(std::string(controller->status().message()),
              HasSubstr("policy 'function' chose F1 on stage 0 in step 1"));
  EXPECT_THAT(controller->Describe(), HasSubstr("policy 'function' chose F1"));
}

// A session that goes on where others have ended.
TEST_F(StageTest, MessagesOfAResumedSessionCountOn) {
  const DynamicPolicy policy("function", [](const StageContext&, const StageView&) {
    return PhaseChoice{PhaseKind::kForward, 1};
  });
  const auto controller = Create(policy, 2, /*first_step=*/200);
  controller->SetSubmittedSteps(1);
  EXPECT_FALSE(controller->Poll());
  EXPECT_THAT(std::string(controller->status().message()), HasSubstr("in step 201"));
  EXPECT_THAT(controller->Describe(), HasSubstr("policy 'function': step 201, "));
}

TEST_F(StageTest, APolicyThatThrowsIsNamed) {
  const DynamicPolicy policy(
      "function", [](const StageContext&, const StageView&) -> std::optional<PhaseChoice> {
        throw std::runtime_error("out of ideas");
      });
  const auto controller = Create(policy, 1);
  controller->SetSubmittedSteps(1);
  EXPECT_FALSE(controller->Poll());
  EXPECT_THAT(std::string(controller->status().message()), HasSubstr("threw at stage 0, step 1"));
  EXPECT_THAT(std::string(controller->status().message()), HasSubstr("out of ideas"));
}

TEST_F(StageTest, ArmingAsksToBeWokenAsTheWindowRunsLow) {
  const auto controller = Create(std::string("1f1b"), 1);
  controller->ArmWait();
  EXPECT_TRUE(links_[0].is_waiting);
  EXPECT_EQ(links_[0].wake_size, StageLink::kWindow / 2);
}

}  // namespace
}  // namespace penstock::actors
