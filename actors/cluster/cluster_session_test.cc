// What a node that lies can do to a session: nothing but end it in its own name.

#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <capnp/any.h>

#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/connection_internal.h"
#include "base/strings.h"
#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using testing::EnginePlanBuilder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kWidth;
using ::testing::SizeIs;

// Devices that fetch x in two micro-batches, two in each of two processes.
planner::Plan MakePlan() {
  EnginePlanBuilder b(2);
  for (int i = 0; i < 4; ++i) {
    const uint32_t d = b.AddDevice();
    const uint32_t x = b.AddRegister(d);
    b.BeginPhase(d, "F", planner::PhaseKind::kForward);
    const uint32_t feed = b.AddFeed(d, "x", x);
    const uint32_t fetch = b.AddFetch(d, StrCat("y", i), x);
    b.AddChannel(d, feed, fetch);
  }
  return b.Build();
}

class Listener final : public EngineObserver {
 public:
  void OnStepDone(const DeviceStepReport& report) override { done.push_back(report.device); }
  void OnError(uint32_t, int64_t, const absl::Status& status) override { errors.push_back(status); }
  void OnFailure(const absl::Status& status) override {
    failures.emplace_back(ToStd(status.message()));
  }

  std::vector<uint32_t> done;
  std::vector<absl::Status> errors;
  std::vector<std::string> failures;
};

class ClusterSessionTest : public ::testing::Test, public kj::TaskSet::ErrorHandler {
 protected:
  using Report =
      capnp::Request<control::Observer::StepDoneParams, control::Observer::StepDoneResults>;

  ClusterSessionTest() {
    session_->Begin({timer_, tasks_, [](uint32_t rank) { return StrCat("node ", rank); }}, 5);
    auto buffers = std::make_shared<StepBuffers>();
    for (const planner::FetchPlan& fetch : plan_.fetches) {
      buffers->fetches.emplace_back(fetch.type);
    }
    session_->Submit(0, buffers);
  }
  ~ClusterSessionTest() noexcept override { session_->End(); }

  void taskFailed(kj::Exception&&) override {}

  // The right report of process 1.
  Report RightReport() {
    Report report = observer_.stepDoneRequest();
    report.setGeneration(5);
    auto reports = report.initReports(2);
    auto fetches = report.initFetches(4);
    for (uint32_t i = 0; i < 4; ++i) {
      if (i < 2) reports[i].setDevice(2 + i);
      fetches[i].setDevice(2 + i / 2);
      fetches[i].setActor(1);
      fetches[i].setMicrobatch(i % 2);
      fetches[i].initBytes(kWidth * sizeof(double));
    }
    return report;
  }
  void Send(Report report) { report.send().ignoreResult().wait(scope_); }

  void SendError(int64_t step, uint32_t device, uint32_t code, const std::string& text = "") {
    auto error = observer_.errorRequest();
    error.setGeneration(5);
    error.setStep(step);
    error.setDevice(device);
    auto status = error.initStatus();
    status.setCode(code);
    status.setMessage(text.c_str());
    error.send().ignoreResult().wait(scope_);
  }

  void Advance(int milliseconds) {
    timer_.advanceTo(timer_.now() + milliseconds * kj::MILLISECONDS);
    scope_.poll();
  }

  const planner::Plan plan_ = MakePlan();
  Listener listener_;
  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  kj::TaskSet tasks_{*this};
  std::shared_ptr<ClusterSession> session_ = std::make_shared<ClusterSession>(plan_, 2, &listener_);
  control::Observer::Client observer_ = session_->MakeObserver(1);
};

TEST_F(ClusterSessionTest, ARightReportIsToldOnce) {
  Send(RightReport());
  EXPECT_THAT(listener_.done, ElementsAre(2, 3));
  EXPECT_THAT(listener_.failures, IsEmpty());
  Send(RightReport());  // again
  EXPECT_THAT(listener_.done, SizeIs(2));
  EXPECT_THAT(listener_.failures, ElementsAre(HasSubstr("node 1: sent what nobody asked for")));
}

TEST_F(ClusterSessionTest, OtherGenerationsHaveNoEffect) {
  for (const uint32_t generation : {0u, 4u, 6u, 0xffffffffu}) {
    Report report = RightReport();
    report.setGeneration(generation);
    Send(std::move(report));
  }
  EXPECT_THAT(listener_.done, IsEmpty());
  EXPECT_THAT(listener_.failures, IsEmpty());
}

TEST_F(ClusterSessionTest, WrongReportsAreFailures) {
  const std::function<void(Report&)> lies[] = {
      [](Report& r) { r.setStep(1); },
      [](Report& r) { r.setStep(-1); },
      [](Report& r) { r.getReports()[0].setDevice(1); },  // the other process's
      [](Report& r) { r.getReports()[0].setDevice(4); },
      [](Report& r) { r.getReports()[0].setDevice(3); },  // twice
      [](Report& r) { r.getReports()[0].setDevice(0xffffffff); },
      [](Report& r) { r.initReports(0); },
      [](Report& r) { r.initReports(1)[0].setDevice(2); },
      [](Report& r) { r.initReports(3)[0].setDevice(2); },
      [](Report& r) { r.initFetches(0); },
      [](Report& r) { r.getFetches()[0].setDevice(0); },
      [](Report& r) { r.getFetches()[0].setActor(0); },
      [](Report& r) { r.getFetches()[0].setActor(77); },
      [](Report& r) { r.getFetches()[0].setMicrobatch(2); },
      [](Report& r) { r.getFetches()[0].initBytes(kWidth * sizeof(double) - 1); },
      [](Report& r) { r.getFetches()[0].initBytes(kWidth * sizeof(double) + 1); },
  };
  size_t count = 0;
  for (const auto& lie : lies) {
    Report report = RightReport();
    lie(report);
    Send(std::move(report));
    EXPECT_THAT(listener_.failures, SizeIs(++count));
  }
  EXPECT_THAT(listener_.done, IsEmpty());
}

// A list of structs without fields takes no bytes, however long it says it is.
TEST_F(ClusterSessionTest, ListsOfNothingTakeNoMemory) {
  for (const int list : {0, 1}) {
    auto call = observer_.typelessRequest(capnp::typeId<control::Observer>(), 0, nullptr);
    auto params = call.initAsAnyStruct(2, 2);
    params.getDataSection()[0] = 5;  // the generation
    params.getPointerSection()[list].initAs<capnp::List<control::Node::PingParams>>(200'000'000);
    call.send().ignoreResult().wait(scope_);
  }
  EXPECT_THAT(listener_.failures, ElementsAre(HasSubstr("reports of 200000000 devices"),
                                              HasSubstr("reports of 0 devices")));
}

TEST_F(ClusterSessionTest, WrongErrorsAreFailures) {
  SendError(0, 2, 13, "a kernel's");
  EXPECT_THAT(listener_.errors, SizeIs(1));
  SendError(1, 2, 13);
  SendError(0, 1, 13);
  SendError(0, 0xffffffff, 13);
  EXPECT_THAT(listener_.errors, SizeIs(1));
  EXPECT_THAT(listener_.failures, SizeIs(3));
  // Codes that there are not, and OK, which is no error.
  for (const uint32_t code : {0u, 17u, 0xffffffffu}) {
    SendError(0, 2, code);
    EXPECT_EQ(listener_.errors.back().code(), absl::StatusCode::kUnknown);
  }
}

TEST_F(ClusterSessionTest, WhatIsHeldIsBounded) {
  const std::string text(1 << 20, 'x');
  SendError(0, 2, 14, text);
  for (size_t i = 0; i < 3 * ClusterSession::kMaxHeldErrors; ++i) SendError(0, 2, 14);
  Send(RightReport());
  EXPECT_THAT(listener_.errors, IsEmpty());
  Advance(2000);
  EXPECT_THAT(listener_.errors, SizeIs(ClusterSession::kMaxHeldErrors));
  EXPECT_LE(listener_.errors[0].message().size(), control::kMaxTextBytes);
  EXPECT_THAT(listener_.done, ElementsAre(2, 3));
  SendError(0, 2, 14);
  Advance(2000);
  EXPECT_THAT(listener_.errors, SizeIs(ClusterSession::kMaxHeldErrors + 1));
}

TEST_F(ClusterSessionTest, AfterTheEndNothingIsTold) {
  SendError(0, 2, 14);
  session_->Fail(absl::UnavailableError("node 0 was killed"));
  Send(RightReport());
  SendError(0, 2, 13);
  Advance(2000);
  EXPECT_THAT(listener_.failures, ElementsAre("node 0 was killed"));
  EXPECT_THAT(listener_.errors, IsEmpty());
  EXPECT_THAT(listener_.done, IsEmpty());
}

}  // namespace
}  // namespace penstock::actors
