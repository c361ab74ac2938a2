#include <memory>
#include <vector>

#include "caf/all.hpp"
#include "gtest/gtest.h"

#include "actors/engine/host_inspector_internal.h"
#include "actors/engine/host_messages_internal.h"
#include "tests/support/engine_harness.h"
#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using testing::EngineHarness;
using testing::EnginePlanBuilder;
using State = DeviceSnapshot::State;

// Takes all messages and answers none: an executor that began a long kernel just before it could
// answer.
class IgnoringActor final : public caf::event_based_actor {
 public:
  using caf::event_based_actor::event_based_actor;

 protected:
  caf::behavior make_behavior() override {
    return {[](const InspectMessage&) {}};
  }
};

class HostInspectorTest : public ::testing::Test {
 protected:
  // Until device 1 waits.
  void SetUp() override {
    absl::StatusOr<std::unique_ptr<EngineHarness>> harness =
        EngineHarness::Create(testing::SendingPlan("t.iota"), {}, kernels_, policies_);
    ASSERT_TRUE(harness.ok()) << harness.status();
    harness_ = *std::move(harness);
    harness_->Submit({});
    harness_->stage(0).Poll();
    while (harness_->executor(1).Poll()) {
    }
    inspector_ =
        std::make_shared<HostInspector>(1, std::vector<caf::actor>{system_.spawn<IgnoringActor>()},
                                        std::vector<const DeviceExecutor*>{&harness_->executor(1)});
  }
  void TearDown() override { inspector_ = nullptr; }  // the actor ends with its last owner

  const kernels::KernelRegistry kernels_ = testing::EngineTestKernels();
  const planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
  std::unique_ptr<EngineHarness> harness_;
  caf::actor_system_config config_;
  caf::actor_system system_{config_};
  std::shared_ptr<HostInspector> inspector_;
};

TEST_F(HostInspectorTest, ADeviceThatDoesNotAnswerIsLookedAtAgain) {
  const absl::StatusOr<std::shared_ptr<Inspection>> inspection = inspector_->Begin();
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  EXPECT_FALSE((*inspection)->IsComplete());
  EXPECT_EQ((*inspection)->Take(absl::ZeroDuration())[0].state, State::kWaiting);
  EXPECT_TRUE(harness_->RunUntilDone());
  EXPECT_TRUE((*inspection)->IsComplete());
  const std::vector<DeviceSnapshot> devices = (*inspection)->Take(absl::ZeroDuration());
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].state, State::kIdle);
  EXPECT_EQ(devices[0].step, 1);
}

// What was asked before the end of a session may be taken after it.
TEST_F(HostInspectorTest, AnInspectionOutlivesTheSession) {
  const absl::StatusOr<std::shared_ptr<Inspection>> inspection = inspector_->Begin();
  ASSERT_TRUE(inspection.ok()) << inspection.status();
  inspector_->Close();
  harness_ = nullptr;
  // Nobody answers any more, so there is nothing to wait for.
  EXPECT_TRUE((*inspection)->IsComplete());
  EXPECT_EQ((*inspection)->Take(absl::InfiniteDuration())[0].state, State::kWaiting);
  EXPECT_EQ(inspector_->Begin().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(inspector_->Look(0).has_value());
}

}  // namespace
}  // namespace penstock::actors
