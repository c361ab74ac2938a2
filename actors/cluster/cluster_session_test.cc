// What a node that lies can do to a session: nothing but end it in its own name.

#include <cstring>
#include <functional>
#include <memory>
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

using ::testing::_;
using ::testing::AllOf;
using ::testing::ElementsAre;
using testing::EnginePlanBuilder;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::kWidth;
using ::testing::SizeIs;

// Devices that fetch x in two micro-batches, two in each of two processes.
planner::Plan MakeSessionPlan() {
  EnginePlanBuilder b(2);
  for (int i = 0; i < 4; ++i) {
    const uint32_t d = b.AddDevice();
    const uint32_t x = b.AddRegister(d);
    b.BeginPhase(d, "F", planner::PhaseKind::kForward);
    const uint32_t feed = b.AddFeed(d, "x", x);
    const uint32_t fetch = b.AddFetch(d, StrCat("y", i), x);
    b.AddChannel(d, feed, fetch);
  }
  planner::Plan plan = b.Build();
  plan.stages[0].order = {{planner::PhaseKind::kForward, 0}, {planner::PhaseKind::kForward, 1}};
  return plan;
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

// Does not answer as it should.
class NoSource final : public control::Source::Server {};

// Answers when it is told to.
struct Question {
  uint32_t size;
  kj::Own<kj::PromiseFulfiller<std::string>> answer;
};

class HeldSource final : public control::Source::Server {
 public:
  explicit HeldSource(std::vector<Question>* questions) : questions_(questions) {}

  kj::Promise<void> read(ReadContext context) override {
    auto answer = kj::newPromiseAndFulfiller<std::string>();
    questions_->push_back({context.getParams().getSize(), kj::mv(answer.fulfiller)});
    return answer.promise.then([context](std::string&& bytes) mutable {
      context.getResults().setBytes(control::AsData(bytes.data(), bytes.size()));
    });
  }

 private:
  std::vector<Question>* const questions_;
};

// Reports the activity that a test gives it, in virtual time.
struct FakeActivity {
  int64_t moves = 7;
  int64_t idle_polls = 100;  // ten more in every report
  int64_t num_decisions = 3;
  std::vector<uint64_t> communications;
  std::string declined;
  bool is_busy = false;
  size_t num_devices = 2;
  int num_reports = 0;
  bool is_silent = false;  // to pings
};

class FakeNode final : public control::Node::Server {
 public:
  explicit FakeNode(FakeActivity* activity) : activity_(*activity) {}

  kj::Promise<void> ping(PingContext) override {
    if (activity_.is_silent) return kj::NEVER_DONE;
    return kj::READY_NOW;
  }

  kj::Promise<void> reportActivity(ReportActivityContext context) override {
    ++activity_.num_reports;
    if (activity_.is_busy) return KJ_EXCEPTION(FAILED, "stage 0 does not answer");
    activity_.idle_polls += 10;
    auto results = context.getResults();
    const auto num_devices = static_cast<unsigned>(activity_.num_devices);
    auto moves = results.initMoves(num_devices);
    auto idle_polls = results.initIdlePolls(num_devices);
    for (unsigned i = 0; i < num_devices; ++i) {
      moves.set(i, activity_.moves);
      idle_polls.set(i, activity_.idle_polls);
    }
    results.setNumDecisions(activity_.num_decisions);
    results.setCommunications(
        kj::arrayPtr(activity_.communications.data(), activity_.communications.size()));
    results.setDeclined(activity_.declined.c_str());
    return kj::READY_NOW;
  }

 private:
  FakeActivity& activity_;
};

class ClusterSessionTest : public ::testing::Test, public kj::TaskSet::ErrorHandler {
 protected:
  using Report =
      capnp::Request<control::Observer::StepDoneParams, control::Observer::StepDoneResults>;

  ClusterSessionTest() {
    session_->Begin({timer_, tasks_, [](uint32_t rank) { return StrCat("node ", rank); },
                     [this](uint32_t rank) -> kj::Maybe<control::Node::Client> {
                       return control::Node::Client(clients_[rank]);
                     }},
                    5);
    for (int64_t step = 0; step < 2; ++step) {
      buffers_.push_back(std::make_shared<StepBuffers>());
      for (const planner::FetchPlan& fetch : plan_.fetches) {
        buffers_.back()->fetches.emplace_back(fetch.type);
      }
      session_->Submit(step, buffers_.back());
    }
  }
  ~ClusterSessionTest() noexcept override { session_->End(); }

  void taskFailed(kj::Exception&&) override {}

  // Reports of both steps, whose results come when they are asked for and answered.
  std::vector<kj::Promise<void>> SendHeld(std::vector<Question>* questions) {
    std::vector<kj::Promise<void>> sent;
    for (int64_t step = 0; step < 2; ++step) {
      Report report = RightReport();
      report.setStep(step);
      report.initFetches().setSource(kj::heap<HeldSource>(&questions[step]));
      sent.push_back(report.send().ignoreResult().eagerlyEvaluate(nullptr));
      scope_.poll();
    }
    return sent;
  }

  // The right report of process 1.
  Report RightReport() {
    Report report = observer_.stepDoneRequest();
    report.setGeneration(5);
    auto reports = report.initReports(2);
    for (uint32_t i = 0; i < 2; ++i) reports[i].setDevice(2 + i);
    SetFetches(report, kNumFetches);
    return report;
  }
  // Of two devices and two micro-batches each: 0, 1, 2, ...
  static constexpr size_t kNumFetches = 2 * 2 * kWidth;
  static std::string Doubles(int64_t first, size_t count) {
    std::string bytes(count * sizeof(double), '\0');
    for (size_t i = 0; i < count; ++i) {
      const auto value = static_cast<double>(first + static_cast<int64_t>(i));
      memcpy(bytes.data() + i * sizeof(double), &value, sizeof(double));
    }
    return bytes;
  }
  static void SetFetches(Report& report, size_t count) {
    const std::string bytes = Doubles(0, count);
    report.initFetches().setEmbedded(control::AsData(bytes.data(), bytes.size()));
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

  void SendDeclined() {
    auto declined = observer_.declinedRequest();
    declined.setGeneration(5);
    declined.send().ignoreResult().wait(scope_);
    scope_.poll();
  }
  void SendLinkCut(uint32_t device) {
    auto cut = observer_.linkCutRequest();
    cut.setGeneration(5);
    cut.setDevice(device);
    cut.send().ignoreResult().wait(scope_);
    scope_.poll();
  }
  void AdvanceToSecondReport() {
    Advance(static_cast<int>(ClusterSession::kActivityInterval / kj::MILLISECONDS));
  }

  void Advance(int milliseconds) {
    timer_.advanceTo(timer_.now() + milliseconds * kj::MILLISECONDS);
    scope_.poll();
  }

  const planner::Plan plan_ = MakeSessionPlan();
  std::vector<std::shared_ptr<StepBuffers>> buffers_;
  Listener listener_;
  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  kj::TaskSet tasks_{*this};
  FakeActivity activities_[2];
  control::Node::Client clients_[2] = {kj::heap<FakeNode>(&activities_[0]),
                                       kj::heap<FakeNode>(&activities_[1])};
  std::shared_ptr<ClusterSession> session_ = std::make_shared<ClusterSession>(
      plan_, 2, &listener_, std::vector<uint32_t>(), /*first_step=*/200);
  control::Observer::Client observer_ = session_->MakeObserver(1);
};

TEST_F(ClusterSessionTest, ARightReportIsToldOnce) {
  Send(RightReport());
  EXPECT_THAT(listener_.done, ElementsAre(2, 3));
  EXPECT_THAT(listener_.failures, IsEmpty());
  // What the other process has to tell is not there.
  EXPECT_EQ(buffers_[0]->fetches[1].As<double>()[2 * kWidth - 1], 0);
  EXPECT_EQ(buffers_[0]->fetches[2].As<double>()[0], 0);
  for (int64_t i = 0; i < 2 * kWidth; ++i) {
    EXPECT_EQ(buffers_[0]->fetches[2].As<double>()[i], static_cast<double>(i));
    EXPECT_EQ(buffers_[0]->fetches[3].As<double>()[i], static_cast<double>(2 * kWidth + i));
  }
  Send(RightReport());  // again
  EXPECT_THAT(listener_.done, SizeIs(2));
  EXPECT_THAT(listener_.failures, ElementsAre(HasSubstr("node 1: sent an unexpected message")));
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
      [](Report& r) { r.setStep(2); },
      [](Report& r) { r.setStep(-1); },
      [](Report& r) { r.setStep(INT64_MIN); },
      [](Report& r) { r.setStep(INT64_MAX); },
      [](Report& r) { r.getReports()[0].setDevice(1); },  // the other process's
      [](Report& r) { r.getReports()[0].setDevice(4); },
      [](Report& r) { r.getReports()[0].setDevice(3); },  // twice
      [](Report& r) { r.getReports()[0].setDevice(0xffffffff); },
      [](Report& r) { r.initReports(0); },
      [](Report& r) { r.initReports(1)[0].setDevice(2); },
      [](Report& r) { r.initReports(3)[0].setDevice(2); },
      [](Report& r) { r.initFetches(); },
      [](Report& r) { SetFetches(r, kNumFetches - 1); },
      [](Report& r) { SetFetches(r, kNumFetches + 1); },
      [](Report& r) { r.initFetches().initEmbedded(1); },
      [](Report& r) { r.initFetches().setSource(kj::heap<NoSource>()); },
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
  auto call = observer_.typelessRequest(capnp::typeId<control::Observer>(), 0, nullptr);
  auto params = call.initAsAnyStruct(2, 2);
  params.getDataSection()[0] = 5;  // the generation
  params.getPointerSection()[0].initAs<capnp::List<control::Node::PingParams>>(200'000'000);
  call.send().ignoreResult().wait(scope_);
  EXPECT_THAT(listener_.failures, ElementsAre(HasSubstr("reports of 200000000 devices")));
}

// --- Links that are cut --------------------------------------------------------------------------

TEST_F(ClusterSessionTest, NodesThatAnswerButDoNotReachEachOtherAreNamed) {
  SendLinkCut(1);
  ASSERT_THAT(listener_.failures, SizeIs(1));
  EXPECT_THAT(listener_.failures[0],
              AllOf(HasSubstr("node 1 hears nothing from node 0 in step 201"),
                    HasSubstr("Both answer this process"), HasSubstr("link between their hosts")));
  EXPECT_TRUE(session_->is_over());
}

TEST_F(ClusterSessionTest, ANodeThatDoesNotAnswerIsNotTakenForOneBehindACutLink) {
  activities_[0].is_silent = true;
  SendLinkCut(1);
  SendLinkCut(0);
  Advance(60'000);
  EXPECT_THAT(listener_.failures, IsEmpty());
}

TEST_F(ClusterSessionTest, CutLinksToNobodyAreFailures) {
  size_t count = 0;
  for (const uint32_t device : {2u, 3u, 4u, 0xffffffffu}) {
    SendLinkCut(device);
    EXPECT_THAT(listener_.failures, SizeIs(++count));
    EXPECT_THAT(listener_.failures.back(), HasSubstr("node 1: sent an unexpected message"));
  }
}

// --- Results that are read -----------------------------------------------------------------------

// Reports come when they are read, in the order of their steps.
TEST_F(ClusterSessionTest, LongResultsAreReadInTheOrderOfTheSteps) {
  std::vector<Question> questions[2];
  std::vector<kj::Promise<void>> sent = SendHeld(questions);
  EXPECT_THAT(listener_.done, IsEmpty());
  EXPECT_THAT(questions[1], IsEmpty());
  for (int64_t step = 0; step < 2; ++step) {
    scope_.poll();
    ASSERT_THAT(questions[step], SizeIs(1));
    EXPECT_EQ(questions[step][0].size, kNumFetches * sizeof(double));
    questions[step][0].answer->fulfill(Doubles(10 * (step + 1) - 2 * kWidth, kNumFetches));
    sent[step].wait(scope_);
    EXPECT_THAT(listener_.done, SizeIs(2 * (step + 1)));
    EXPECT_EQ(buffers_[step]->fetches[3].As<double>()[0], 10 * (step + 1));
  }
  EXPECT_THAT(listener_.failures, IsEmpty());
}

TEST_F(ClusterSessionTest, AnOwnerThatLiesIsAFailure) {
  std::vector<Question> questions;
  Report report = RightReport();
  report.initFetches().setSource(kj::heap<HeldSource>(&questions));
  auto sent = report.send().ignoreResult().eagerlyEvaluate(nullptr);
  scope_.poll();
  ASSERT_THAT(questions, SizeIs(1));
  // A second report of a step whose results are being read.
  Send(RightReport());
  EXPECT_THAT(listener_.failures, SizeIs(1));
  questions[0].answer->fulfill(Doubles(1, kNumFetches + 1));
  sent.wait(scope_);
  EXPECT_THAT(listener_.failures,
              ElementsAre(_, AllOf(HasSubstr("node 1: reading the results of step 201"),
                                   HasSubstr("a chunk of 136 bytes where 128"))));
  EXPECT_THAT(listener_.done, IsEmpty());
}

TEST_F(ClusterSessionTest, NothingIsReadForASessionThatIsOver) {
  std::vector<Question> questions[2];
  std::vector<kj::Promise<void>> sent = SendHeld(questions);
  session_->End();
  questions[0][0].answer->fulfill(Doubles(1, kNumFetches));
  for (kj::Promise<void>& report : sent) report.wait(scope_);
  EXPECT_THAT(questions[1], IsEmpty());
  EXPECT_THAT(listener_.done, IsEmpty());
  EXPECT_THAT(listener_.failures, IsEmpty());
}

// --- Stalled policies ----------------------------------------------------------------------------

TEST_F(ClusterSessionTest, APolicyThatStallsAllProcessesFailsTheSession) {
  activities_[1].declined = "stage 1, policy 'silent'";
  SendDeclined();
  SendDeclined();  // the check of the first one is under way
  EXPECT_EQ(activities_[0].num_reports, 1);
  EXPECT_THAT(listener_.failures, IsEmpty());
  AdvanceToSecondReport();
  EXPECT_EQ(activities_[0].num_reports, 2);
  EXPECT_THAT(listener_.failures,
              ElementsAre(StrCat(kPolicyStalled, "stage 1, policy 'silent', on node 1")));
  SendDeclined();  // is known
  EXPECT_EQ(activities_[0].num_reports, 2);
}

// The other process goes on, in one way or another; once it does not, the session fails.
TEST_F(ClusterSessionTest, AProcessThatMovesIsWaitedFor) {
  activities_[1].declined = "stage 1";
  const std::function<void()> changes[] = {
      [this] { ++activities_[0].moves; },
      [this] { ++activities_[0].num_decisions; },
      [this] { activities_[0].idle_polls -= 10; },  // is in a kernel
      [this] { activities_[0].is_busy = true; },
      [this] { activities_[1].declined = ""; },
      [this] {
        buffers_.push_back(std::make_shared<StepBuffers>());
        session_->Submit(2, buffers_.back());
      },
  };
  for (const auto& change : changes) {
    SendDeclined();
    change();
    AdvanceToSecondReport();
    EXPECT_THAT(listener_.failures, IsEmpty());
    activities_[0].is_busy = false;
    activities_[1].declined = "stage 1";
  }
  activities_[0].is_busy = true;
  SendDeclined();
  AdvanceToSecondReport();
  EXPECT_THAT(listener_.failures, IsEmpty());
  activities_[0].is_busy = false;
  SendDeclined();
  AdvanceToSecondReport();
  EXPECT_THAT(listener_.failures, SizeIs(1));
}

TEST_F(ClusterSessionTest, WrongReportsOfActivityAreFailures) {
  size_t count = 0;
  for (const size_t num_devices : {size_t{0}, size_t{1}, size_t{3}}) {
    activities_[1].num_devices = num_devices;
    SendDeclined();
    EXPECT_THAT(listener_.failures, SizeIs(++count));
  }
  activities_[1].num_devices = 2;
  activities_[1].communications = {0};
  SendDeclined();
  EXPECT_THAT(listener_.failures, SizeIs(++count));
  EXPECT_EQ(listener_.failures.back(),
            "node 1: reported the activity of other devices than its own");
}

TEST_F(ClusterSessionTest, ASessionThatIsOverChecksNoStall) {
  activities_[1].declined = "stage 1";
  SendDeclined();
  session_->End();
  AdvanceToSecondReport();
  SendDeclined();
  EXPECT_EQ(activities_[0].num_reports, 1);
  EXPECT_THAT(listener_.failures, IsEmpty());
}

TEST_F(ClusterSessionTest, WrongErrorsAreFailures) {
  SendError(0, 2, 13, "a kernel's");
  EXPECT_THAT(listener_.errors, SizeIs(1));
  SendError(2, 2, 13);
  SendError(INT64_MAX, 2, 13);
  SendError(0, 1, 13);
  SendError(0, 0xffffffff, 13);
  EXPECT_THAT(listener_.errors, SizeIs(1));
  EXPECT_THAT(listener_.failures, SizeIs(4));
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
  // Behind "node 0: ".
  EXPECT_LE(listener_.errors[0].message().size(), control::kMaxTextBytes + 8);
  EXPECT_THAT(listener_.done, ElementsAre(2, 3));
  SendError(0, 2, 14);
  Advance(2000);
  EXPECT_THAT(listener_.errors, SizeIs(ClusterSession::kMaxHeldErrors + 1));
}

TEST_F(ClusterSessionTest, TheEndBreaksOffCallsAndWhatTheyOffer) {
  const auto offered = std::make_shared<int>();
  auto call = session_->UntilEnd(kj::Promise<void>(kj::NEVER_DONE).attach(kj::cp(offered)));
  scope_.poll();
  EXPECT_EQ(offered.use_count(), 2);
  session_->End();
  EXPECT_EQ(offered.use_count(), 1);
  EXPECT_THROW(call.wait(scope_), kj::Exception);
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
