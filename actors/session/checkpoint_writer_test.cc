#include "actors/session/checkpoint_writer.h"

#include <filesystem>
#include <limits>
#include <stdexcept>
#include <vector>

#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/error_origin.h"
#include "actors/session/checkpoint_states.h"
#include "actors/session/session.h"
#include "base/strings.h"
#include "tests/support/engine_plan.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// One state with a value, written when it is told to.
class TestStates final : public KeptStates {
 public:
  explicit TestStates(float value, absl::Notification* may_write = nullptr)
      : KeptStates({StateOf()}), value_(value), may_write_(may_write) {}

  absl::Status status;
  bool throws = false;

 private:
  static planner::StatePlan StateOf() {
    planner::StatePlan state;
    state.name = "w";
    state.type = {DType::kF32, {1}};
    state.is_parameter = true;
    return state;
  }
  absl::Status ReadInto(uint32_t /*state*/, Tensor* value) const override {
    if (may_write_ != nullptr) may_write_->WaitForNotification();
    if (throws) throw std::runtime_error("out of luck");
    value->As<float>()[0] = value_;
    return status;
  }

  const float value_;
  absl::Notification* const may_write_;
};

class CheckpointWriterTest : public ::testing::Test {
 protected:
  CheckpointWriterTest() {
    SessionOptions options;
    options.kernels = &kernels_;
    testing::EnginePlanBuilder plan;
    plan.AddDevice();
    plan.BeginPhase(0, "F", planner::PhaseKind::kForward);
    plan.AddKernel(0, "f", "t.iota", {}, {plan.AddRegister(0)});
    auto session = Session::Start(plan.Build(), options);
    EXPECT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
    auto folder = CheckpointFolder::Open(path_, 2);
    EXPECT_TRUE(folder.ok()) << folder.status();
    writer_ = std::make_unique<CheckpointWriter>(*session_, *std::move(folder),
                                                 [this](const CheckpointResult& result) {
                                                   if (throws_) throw 1;
                                                   results_.push_back(result);
                                                 });
  }

  void Write(int64_t step, std::shared_ptr<const KeptStates> states) {
    CheckpointInfo info;
    info.step = step;
    writer_->Write(info, std::move(states));
  }
  std::vector<int64_t> Steps() const { return *CheckpointFolder::Steps(path_); }
  absl::Status Wait() { return writer_->Wait(absl::Seconds(60)); }

  const testing::TempFolder temp_;
  const std::string path_ = temp_.Path("checkpoints");
  const kernels::KernelRegistry kernels_ = testing::EngineTestKernels();
  std::unique_ptr<Session> session_;
  std::vector<CheckpointResult> results_;  // read after Wait
  bool throws_ = false;                    // set before Write
  std::unique_ptr<CheckpointWriter> writer_;
};

TEST_F(CheckpointWriterTest, WritesOneAfterTheOther) {
  absl::Notification may_write;
  Write(10, std::make_shared<TestStates>(1.5F, &may_write));
  Write(20, std::make_shared<TestStates>(2.5F));
  const absl::Status early = writer_->Wait(absl::Milliseconds(1));
  EXPECT_TRUE(absl::IsDeadlineExceeded(early));
  EXPECT_THAT(ToStd(early.message()), HasSubstr("the checkpoint of step 10"));
  EXPECT_THAT(Steps(), IsEmpty());
  may_write.Notify();
  ASSERT_TRUE(Wait().ok());
  EXPECT_THAT(Steps(), ElementsAre(10, 20));
  ASSERT_EQ(results_.size(), 2u);
  EXPECT_TRUE(results_[0].status.ok()) << results_[0].status;
  EXPECT_EQ(results_[1].path, CheckpointFolder::PathOf(path_, 20));
  EXPECT_GT(results_[1].num_bytes, 4u);
  const auto checkpoint = Checkpoint::Open(results_[1].path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->Read("w")->As<float>()[0], 2.5F);
}

TEST_F(CheckpointWriterTest, AnErrorLosesNoEarlierCheckpoint) {
  Write(10, std::make_shared<TestStates>(1.5F));
  auto bad = std::make_shared<TestStates>(2.5F);
  bad->status = absl::UnavailableError("the node is gone");
  Write(20, bad);
  auto worse = std::make_shared<TestStates>(2.5F);
  worse->throws = true;
  Write(30, worse);
  ASSERT_TRUE(Wait().ok());
  EXPECT_THAT(Steps(), ElementsAre(10));
  EXPECT_EQ(results_[1].status, absl::UnavailableError("the node is gone"));
  EXPECT_THAT(ToStd(results_[2].status.message()), HasSubstr("out of luck"));
  const std::filesystem::directory_iterator entries(path_);
  EXPECT_EQ(std::distance(begin(entries), end(entries)), 2);  // a checkpoint and the lock
}

TEST_F(CheckpointWriterTest, AWriterThatHasEndedIsAnError) {
  throws_ = true;
  Write(10, std::make_shared<TestStates>(1.5F));
  const absl::Status ended = Wait();
  EXPECT_EQ(ended.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(ToStd(ended.message()), HasSubstr("the checkpoint writer has ended: "));
  EXPECT_THAT(ToStd(ended.message()),
              HasSubstr("the callback for the checkpoint of step 10 threw: "));
  EXPECT_EQ(OriginOf(ended).actor, "checkpoint writer");
  EXPECT_THAT(Steps(), ElementsAre(10));
  Write(20, std::make_shared<TestStates>(2.5F));
  EXPECT_EQ(Wait(), ended);
}

TEST_F(CheckpointWriterTest, ParametersThatAreNotFiniteAreNoCheckpoint) {
  Write(10, std::make_shared<TestStates>(1.5F));
  Write(20, std::make_shared<TestStates>(std::numeric_limits<float>::quiet_NaN()));
  ASSERT_TRUE(Wait().ok());
  EXPECT_THAT(Steps(), ElementsAre(10));
  EXPECT_TRUE(absl::IsOutOfRange(results_[1].status)) << results_[1].status;
  EXPECT_THAT(ToStd(results_[1].status.message()), HasSubstr("the parameter w (f32[1]) is nan"));
}

TEST_F(CheckpointWriterTest, ItsEndWaits) {
  Write(10, std::make_shared<TestStates>(1.5F));
  writer_ = nullptr;
  EXPECT_THAT(Steps(), ElementsAre(10));
}

// A state of another type than the plan's is no value of it.
TEST_F(CheckpointWriterTest, StatesHaveToBeThoseOfThePlan) {
  Write(10, std::make_shared<TestStates>(1.5F));
  ASSERT_TRUE(Wait().ok());
  const auto checkpoint = Checkpoint::Open(results_[0].path);
  ASSERT_TRUE(checkpoint.ok());
  std::vector<planner::StatePlan> plan = TestStates(0).states();
  const auto states = CheckpointStates::Create(*checkpoint, plan);
  ASSERT_TRUE(states.ok()) << states.status();
  EXPECT_EQ((*states)->Read("w")->As<float>()[0], 1.5F);
  plan[0].type.shape = {2};
  EXPECT_THAT(ToStd(CheckpointStates::Create(*checkpoint, plan).status().message()),
              HasSubstr("the state w is f32[1], not f32[2]"));
  plan[0].name = "u";
  EXPECT_THAT(ToStd(CheckpointStates::Create(*checkpoint, plan).status().message()),
              HasSubstr("has no state u"));
}

}  // namespace
}  // namespace penstock::actors
