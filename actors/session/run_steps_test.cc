#include "actors/session/run_steps.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/error_origin.h"
#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using planner::PhaseKind;
using ::testing::HasSubstr;
using testing::kWidth;

// Feeds x and fetches the sum of it and itself, which `op` computes.
planner::Plan EchoPlan(const std::string& op = "t.sum") {
  testing::EnginePlanBuilder builder;
  builder.AddDevice();
  const uint32_t x = builder.AddRegister(0);
  const uint32_t y = builder.AddRegister(0);
  builder.BeginPhase(0, "F", PhaseKind::kForward);
  const uint32_t feed = builder.AddFeed(0, "x", x);
  const uint32_t sum = builder.AddKernel(0, "sum", op, {x, x}, {y});
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

// How many steps have been read.
class ReadCount {
 public:
  void Increment() {
    const absl::MutexLock lock(&mutex_);
    ++count_;
  }
  // False: it takes too long.
  bool Await(int64_t count) {
    const auto is_reached = [this, count]()
                                ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return count_ >= count; };
    const absl::MutexLock lock(&mutex_);
    return mutex_.AwaitWithTimeout(absl::Condition(&is_reached), absl::Seconds(60));
  }

 private:
  absl::Mutex mutex_;
  int64_t count_ ABSL_GUARDED_BY(mutex_) = 0;
};

// Ends a step only when the one after it has been read.
class AwaitingKernel : public kernels::Kernel {
 public:
  AwaitingKernel(ReadCount& count, int64_t num_steps) : count_(count), num_steps_(num_steps) {}
  absl::Status Run(const kernels::KernelArgs& args) override {
    if (!count_.Await(std::min(args.step + 2, num_steps_))) {
      return absl::DeadlineExceededError("the next step is not read while this one runs");
    }
    const auto* x = static_cast<const double*>(args.inputs[0]);
    for (int64_t i = 0; i < kWidth; ++i) static_cast<double*>(args.outputs[0])[i] = 2 * x[i];
    return absl::OkStatus();
  }

 private:
  ReadCount& count_;
  const int64_t num_steps_;
};

class CountedSource : public CountingSource {
 public:
  explicit CountedSource(ReadCount& count) : count_(count) {}
  absl::StatusOr<Feeds> Get(int64_t step) override {
    absl::StatusOr<Feeds> feeds = CountingSource::Get(step);
    count_.Increment();
    return feeds;
  }

 private:
  ReadCount& count_;
};

TEST_F(RunStepsTest, AStepIsReadWhileTheOneBeforeItRuns) {
  static constexpr int64_t kSteps = 20;
  ReadCount count;
  kernels::KernelDef awaiting;
  awaiting.create = [&count](const kernels::KernelSpec&, Device&,
                             Stream&) -> absl::StatusOr<std::unique_ptr<kernels::Kernel>> {
    return std::make_unique<AwaitingKernel>(count, kSteps);
  };
  ASSERT_TRUE(kernels_.Add("t.await", awaiting).ok());
  const absl::StatusOr<std::unique_ptr<Session>> session =
      Session::Start(EchoPlan("t.await"), options_);
  ASSERT_TRUE(session.ok()) << session.status();
  CountedSource source(count);
  CheckingSink sink(source);
  const absl::Status status = RunSteps(**session, kSteps, 2, source, sink);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(source.num_taken_, kSteps);
  EXPECT_LE(source.most_ahead_, 2);
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

// What is no std::exception ends the actor. Its supervisor reports that, and nobody waits for it.
TEST_F(RunStepsTest, TheEndOfTheSourceEndsTheRun) {
  class EndingSource : public Source {
    absl::StatusOr<Feeds> Get(int64_t) override { throw 1; }
  };
  EndingSource source;
  CountingSource counting;
  CheckingSink sink(counting);
  const absl::Status status = RunSteps(*session_, 100, 2, source, sink);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("the source has ended: "));
  EXPECT_EQ(OriginOf(status).actor, "source");
}

TEST_F(RunStepsTest, TheEndOfTheSinkEndsTheRun) {
  class EndingSink : public Sink {
    absl::Status Take(int64_t, const StepResult&) override { throw 1; }
  };
  CountingSource source;
  EndingSink sink;
  const absl::Status status = RunSteps(*session_, 100, 2, source, sink);
  EXPECT_TRUE(absl::IsInternal(status)) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("the sink has ended: "));
  EXPECT_EQ(OriginOf(status).actor, "sink");
}

TEST_F(RunStepsTest, AStoppedSessionEndsIt) {
  CountingSource source;
  CheckingSink sink(source);
  session_->Stop();
  EXPECT_FALSE(RunSteps(*session_, 100, 2, source, sink).ok());
}

}  // namespace
}  // namespace penstock::actors
