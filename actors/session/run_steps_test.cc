#include "actors/session/run_steps.h"

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using ::testing::HasSubstr;
using testing::kWidth;

// Feeds x and fetches its sum with itself.
planner::Plan EchoPlan() {
  testing::EnginePlanBuilder builder;
  builder.AddDevice();
  const uint32_t x = builder.AddRegister(0);
  const uint32_t y = builder.AddRegister(0);
  builder.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t feed = builder.AddFeed(0, "x", x);
  const uint32_t sum = builder.AddKernel(0, "sum", "t.sum", {x, x}, {y});
  const uint32_t fetch = builder.AddFetch(0, "y", y);
  builder.AddChannel(0, feed, sum);
  builder.AddChannel(0, sum, fetch);
  return builder.Build();
}

// Feeds the step's number, until `fail_at`; notes how far it is ahead of the sink.
class CountingSource : public Source {
 public:
  explicit CountingSource(int64_t fail_at = -1) : fail_at_(fail_at) {}
  absl::StatusOr<Feeds> Get(int64_t step) override {
    EXPECT_EQ(step, num_fed_);
    if (step == fail_at_) return absl::DataLossError("the file ends here");
    ++num_fed_;
    most_ahead_ = std::max<int64_t>(most_ahead_, num_fed_ - num_taken_);
    Tensor x({DType::kF64, {1, kWidth}});
    for (int64_t i = 0; i < kWidth; ++i) x.As<double>()[i] = static_cast<double>(step);
    return Feeds{{"x", x}};
  }

  std::atomic<int64_t> num_fed_{0};
  std::atomic<int64_t> num_taken_{0};
  int64_t most_ahead_ = 0;

 private:
  const int64_t fail_at_;
};

class CheckingSink : public Sink {
 public:
  explicit CheckingSink(CountingSource& source, int64_t fail_at = -1)
      : source_(source), fail_at_(fail_at) {}
  absl::Status Take(int64_t step, const StepResult& result) override {
    EXPECT_EQ(step, source_.num_taken_);
    const Tensor* y = result.Find("y");
    EXPECT_GT(y->As<double>()[0], 2.0 * static_cast<double>(step) - 1);
    if (step == fail_at_) return absl::CancelledError("seen enough");
    ++source_.num_taken_;
    return absl::OkStatus();
  }

 private:
  CountingSource& source_;
  const int64_t fail_at_;
};

class RunStepsTest : public ::testing::Test {
 protected:
  RunStepsTest() {
    options_.kernels = &kernels_;
    absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(EchoPlan(), options_);
    EXPECT_TRUE(session.ok()) << session.status();
    session_ = *std::move(session);
  }

  kernels::KernelRegistry kernels_ = testing::EngineTestKernels();
  SessionOptions options_;
  std::unique_ptr<Session> session_;
};

TEST_F(RunStepsTest, StepsComeInOrderAndNotTooFarAhead) {
  CountingSource source;
  CheckingSink sink(source);
  ASSERT_TRUE(RunSteps(*session_, 200, 3, source, sink).ok());
  EXPECT_EQ(source.num_taken_, 200);
  EXPECT_LE(source.most_ahead_, 3);
  // And again on the same session.
  CountingSource more;
  CheckingSink end(more);
  ASSERT_TRUE(RunSteps(*session_, 5, 1, more, end).ok());
  EXPECT_EQ(more.num_taken_, 5);
  EXPECT_EQ(more.most_ahead_, 1);
  EXPECT_TRUE(RunSteps(*session_, 0, 1, more, end).ok());
}

TEST_F(RunStepsTest, TheFirstErrorEndsTheRun) {
  CountingSource source(/*fail_at=*/4);
  CheckingSink sink(source);
  EXPECT_THAT(RunSteps(*session_, 100, 2, source, sink).ToString(), HasSubstr("the file ends"));
  EXPECT_EQ(source.num_fed_, 4);
  EXPECT_EQ(source.num_taken_, 4);  // what was under way was taken first
}

TEST_F(RunStepsTest, TheSinkMayEndIt) {
  CountingSource source;
  CheckingSink sink(source, /*fail_at=*/6);
  EXPECT_TRUE(absl::IsCancelled(RunSteps(*session_, 100, 2, source, sink)));
  EXPECT_EQ(source.num_taken_, 6);
  // Nothing is under way: all places of the session are free again.
  CountingSource more;
  CheckingSink again(more);
  EXPECT_TRUE(RunSteps(*session_, 20, kMaxStepsInFlight, more, again).ok());
}

TEST_F(RunStepsTest, WhatIsThrownEndsIt) {
  class ThrowingSource : public Source {
    absl::StatusOr<Feeds> Get(int64_t) override { throw std::runtime_error("no such disk"); }
  };
  ThrowingSource source;
  CountingSource counting;
  CheckingSink sink(counting);
  EXPECT_THAT(RunSteps(*session_, 100, 2, source, sink).ToString(),
              HasSubstr("the source of step 1 threw: no such disk"));
}

TEST_F(RunStepsTest, AStoppedSessionEndsIt) {
  CountingSource source;
  CheckingSink sink(source);
  session_->Stop();
  EXPECT_FALSE(RunSteps(*session_, 100, 2, source, sink).ok());
}

}  // namespace
}  // namespace penstock::actors
