// What is told of a member that is lost, in virtual time.

#include <chrono>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "caf/scheduler/test_coordinator.hpp"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/failure_detector_internal.h"
#include "actors/cluster/heartbeat_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr FailureDetector::Times kTimes = {absl::Seconds(1), absl::Seconds(20)};

class TestNode final : public control::Node::Server {
 public:
  explicit TestNode(const bool* answers, std::vector<uint32_t>* bounds = nullptr)
      : answers_(*answers), bounds_(bounds) {}
  kj::Promise<void> ping(PingContext context) override {
    if (bounds_ != nullptr) bounds_->push_back(context.getParams().getSilenceMs());
    if (!answers_) return kj::NEVER_DONE;
    return kj::READY_NOW;
  }

 private:
  const bool& answers_;
  std::vector<uint32_t>* const bounds_;  // that the pings have come with
};

// An actor system in which actors run when they are sent something, on the thread of the sender, or
// in Settle if an actor sends it.
class InlineSystem {
 public:
  InlineSystem() {
    config_.set("scheduler.policy", caf::atom("testing"));
    system_ = std::make_unique<caf::actor_system>(config_);
    scheduler().inline_all_enqueues();
  }

  caf::actor_system& system() { return *system_; }
  caf::scheduler::test_coordinator& scheduler() {
    return dynamic_cast<caf::scheduler::test_coordinator&>(system_->scheduler());
  }
  void Settle() {
    while (scheduler().try_run_once()) {
    }
  }

 private:
  caf::actor_system_config config_;
  std::unique_ptr<caf::actor_system> system_;
};

// Rank 0 was launched here, rank 1 joined by itself.
class FailureDetectorTest : public ::testing::Test, private kj::TaskSet::ErrorHandler {
 protected:
  ~FailureDetectorTest() noexcept override { actors_.Settle(); }

  void Advance(int milliseconds) {
    for (int i = 0; i < milliseconds; i += 10) {
      timer_.advanceTo(timer_.now() + 10 * kj::MILLISECONDS);
      scope_.poll();
      actors_.scheduler().advance_time(std::chrono::milliseconds(10));
      actors_.Settle();
      scope_.poll();
    }
  }

  // Pings it, as NodeSupervisor does.
  void Watch(uint32_t rank, control::Node::Client node) {
    heartbeats_[rank] = std::make_unique<Heartbeat>(
        timer_, kj::mv(node), pings_,
        Heartbeat::Events{.on_asked = [this, rank] { detector_.OnAsked(rank); },
                          .on_answered = [this, rank] { detector_.OnAnswered(rank); },
                          .on_error = [](const kj::Exception&) {}});
  }

  // What the membership was told.
  const std::vector<std::string>& Reports() {
    actors_.Settle();
    return reports_;
  }

  void AllJoined() {
    pings_.have_all_joined = true;
    detector_.OnAllJoined();
  }

  void LookAgain(uint32_t rank) {
    if (!loop_runs_) return;
    tasks_.add(timer_.afterDelay(control::kSecondLook).then([this, rank] {
      detector_.OnLookedAgain({rank, rank == 0, " at work"});
    }));
  }

  void taskFailed(kj::Exception&& exception) override {
    ADD_FAILURE() << exception.getDescription().cStr();
  }

  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  kj::TaskSet tasks_{*this};
  bool loop_runs_ = true;  // and looks again
  bool answers_ = true;
  std::vector<std::string> losses_;
  bool counts_ = false;  // the last one
  std::vector<uint32_t> killed_;
  std::vector<std::string> reports_;  // of the membership
  InlineSystem actors_;
  Membership membership_{actors_.system(), RankTable(2, 2),
                         [this](const MemberLoss&, const absl::Status& report) {
                           EXPECT_LT(reports_.size(), losses_.size()) << "told the loop later";
                           reports_.emplace_back(ToStd(report.message()));
                         }};
  FailureDetector detector_{
      actors_.system(), membership_.typed_actor(), kTimes,
      FailureDetector::Handlers{.on_loss =
                                    [this](const MemberLoss& loss, bool counts) {
                                      losses_.push_back(StrCat(loss.rank, " ", loss.cause,
                                                               loss.when, ", ", loss.shell_status));
                                      counts_ = counts;
                                    },
                                .look_again = [this](uint32_t rank) { LookAgain(rank); },
                                .kill = [this](uint32_t rank) { killed_.push_back(rank); }}};
  PingOptions pings_ = {
      .interval = absl::Milliseconds(100), .silence_ms = 1200, .have_all_joined = false};
  std::map<uint32_t, std::unique_ptr<Heartbeat>> heartbeats_;
};

TEST_F(FailureDetectorTest, AnExitIsToldAtOnceWithItsStatus) {
  detector_.OnExit({0, 3 << 8, "", " at work"});
  detector_.OnExit({0, 11, ", a note", ""});
  EXPECT_THAT(losses_, ElementsAre("0 exited with status 3 at work, 3",
                                   ::testing::StartsWith("0 was killed by signal 11")));
  EXPECT_THAT(losses_[1], ::testing::EndsWith(", a note, 139"));
  EXPECT_TRUE(counts_);
  // The membership was told without a detour, and takes the first.
  EXPECT_THAT(Reports(), ElementsAre("node 0 exited with status 3 at work"));
}

TEST_F(FailureDetectorTest, AMemberThatGoesInOrderWhileTheJobEndsDoesNotCount) {
  detector_.OnExit({0, 0, "", ""});
  EXPECT_TRUE(counts_);
  EXPECT_EQ(Reports().size(), 1u);
  detector_.OnJobEnding();
  detector_.OnExit({0, 0, "", ""});
  EXPECT_FALSE(counts_);
  detector_.OnDisconnected({1, false, " at work"});
  EXPECT_FALSE(counts_);
  detector_.OnExit({1, 3 << 8, "", " at work"});
  EXPECT_TRUE(counts_);
  EXPECT_EQ(losses_.back(), "1 exited with status 3 while the job was stopping, 3");
  EXPECT_EQ(Reports().size(), 1u);
}

TEST_F(FailureDetectorTest, AClosedConnectionWaitsForTheStatusOfAProcess) {
  detector_.OnDisconnected({1, false, " at work"});
  EXPECT_THAT(losses_, ElementsAre("1 has closed its connection at work, 0"));
  detector_.OnDisconnected({0, true, " at work"});
  Advance(300);
  EXPECT_EQ(losses_.size(), 1u);
  detector_.OnExit({0, 3 << 8, "", " at rest"});
  Advance(1000);
  EXPECT_THAT(losses_, ElementsAre(::testing::_, "0 exited with status 3 at rest, 3",
                                   "0 has closed its connection at work, 0"));
  EXPECT_EQ(Reports().size(), 2u);
}

TEST_F(FailureDetectorTest, AnswersWithErrorsAreALoss) {
  detector_.OnAnswerFailed({1, " at work"});
  EXPECT_THAT(losses_, ElementsAre("1 answers with errors at work, 0"));
}

TEST_F(FailureDetectorTest, SilenceIsNoticedAndOneThatAnswersIsNot) {
  AllJoined();
  Watch(1, kj::heap<TestNode>(&answers_));
  Advance(5000);
  EXPECT_THAT(losses_, IsEmpty());
  answers_ = false;
  Advance(1000);
  EXPECT_THAT(losses_, IsEmpty());
  Advance(320);  // an interval, the second look and the steps of the time here
  EXPECT_THAT(losses_, ElementsAre("1 has not answered for 1s at work, 0"));
  EXPECT_THAT(Reports(), ElementsAre("node 1 has not answered for 1s at work"));
  EXPECT_THAT(killed_, IsEmpty());
  Advance(20'000);
  EXPECT_EQ(losses_.size(), 1u);
}

TEST_F(FailureDetectorTest, TheSilenceOfEachMemberIsKnown) {
  AllJoined();
  Watch(1, kj::heap<TestNode>(&answers_));
  Advance(1050);
  const auto answering = detector_.Silences(absl::Seconds(20));
  ASSERT_TRUE(answering.ok()) << answering.status();
  EXPECT_THAT(answering->by_rank, ElementsAre(::testing::Key(1)));
  EXPECT_LE(answering->by_rank.at(1), absl::Milliseconds(100));
  answers_ = false;
  Advance(1000);
  const auto silent = detector_.Silences(absl::Seconds(20));
  ASSERT_TRUE(silent.ok()) << silent.status();
  EXPECT_GE(silent->by_rank.at(1), absl::Milliseconds(1000));
  EXPECT_LE(silent->by_rank.at(1), absl::Milliseconds(1100));
}

// Of an event loop that is busy, its own silence tells nothing of the members.
TEST_F(FailureDetectorTest, SilenceCountsOnceTheLoopHasLookedAgain) {
  AllJoined();
  Watch(1, kj::heap<TestNode>(&answers_));
  loop_runs_ = false;
  answers_ = false;
  Advance(2000);
  EXPECT_THAT(losses_, IsEmpty());
  // What had arrived is told first.
  detector_.OnAnswered(1);
  detector_.OnLookedAgain({1, false, ""});
  Advance(10'000);
  EXPECT_THAT(losses_, IsEmpty());
  detector_.OnAsked(1);
  Advance(10'000);
  EXPECT_THAT(losses_, IsEmpty());
  loop_runs_ = true;
  Advance(5300);  // it is asked again
  EXPECT_THAT(losses_, ElementsAre("1 has not answered for 1s at work, 0"));
}

// What was told meanwhile: it has answered, and was asked once more.
TEST_F(FailureDetectorTest, SilenceBeforeTheLastAnswerDoesNotCount) {
  AllJoined();
  loop_runs_ = false;
  detector_.OnAsked(1);
  Advance(1100);
  detector_.OnAnswered(1);
  detector_.OnAsked(1);
  detector_.OnLookedAgain({1, false, ""});
  EXPECT_THAT(losses_, IsEmpty());
  Advance(900);
  detector_.OnLookedAgain({1, false, ""});
  EXPECT_THAT(losses_, IsEmpty());
  Advance(200);
  detector_.OnLookedAgain({1, false, " at work"});
  EXPECT_THAT(losses_, ElementsAre("1 has not answered for 1s at work, 0"));
}

TEST_F(FailureDetectorTest, OneThatIsNotAskedAnyMoreIsNotSilent) {
  AllJoined();
  detector_.OnAsked(1);
  detector_.Unwatch(1);
  detector_.OnAsked(1);  // was under way
  Advance(10'000);
  EXPECT_THAT(losses_, IsEmpty());
}

TEST_F(FailureDetectorTest, OneMayBeSilentForLongWhileOthersJoin) {
  answers_ = false;
  Watch(1, kj::heap<TestNode>(&answers_));
  Advance(19'000);
  EXPECT_THAT(losses_, IsEmpty());
  Advance(10'000);
  EXPECT_THAT(losses_, ElementsAre("1 has not answered for 20s at work, 0"));
}

TEST_F(FailureDetectorTest, OnceAllHaveJoinedItIsNoticedSoon) {
  std::vector<uint32_t> bounds;
  Watch(1, kj::heap<TestNode>(&answers_, &bounds));
  Advance(1000);
  EXPECT_THAT(bounds, ::testing::Each(0));  // as it was told when it joined
  answers_ = false;
  Advance(10'000);
  AllJoined();
  Advance(900);
  EXPECT_THAT(losses_, IsEmpty());
  Advance(400);
  EXPECT_THAT(losses_, ElementsAre("1 has not answered for 1s at work, 0"));
}

TEST_F(FailureDetectorTest, OnceAllHaveJoinedNodesAreToldTheirBound) {
  std::vector<uint32_t> bounds;
  Watch(1, kj::heap<TestNode>(&answers_, &bounds));
  AllJoined();
  Advance(1000);
  EXPECT_THAT(bounds, ::testing::AllOf(::testing::SizeIs(::testing::Gt(5)), ::testing::Each(1200)));
  EXPECT_THAT(losses_, IsEmpty());
}

// Its own signal is not its status; another one is.
TEST_F(FailureDetectorTest, ASilentProcessIsKilled) {
  AllJoined();
  answers_ = false;
  Watch(0, kj::heap<TestNode>(&answers_));
  for (int i = 0; i < 6000 && killed_.empty(); ++i) Advance(10);
  EXPECT_THAT(killed_, ElementsAre(0));
  EXPECT_THAT(losses_, IsEmpty());
  detector_.OnExit({0, 9, "", " at work"});
  EXPECT_THAT(losses_, ElementsAre("0 has not answered for 1s at work, 0"));
  losses_.clear();
  detector_.OnExit({0, 11, "", ""});
  EXPECT_THAT(losses_, ElementsAre(::testing::StartsWith("0 was killed by signal 11")));
}

TEST_F(FailureDetectorTest, ASilentProcessThatDoesNotEndIsLostAllTheSame) {
  AllJoined();
  answers_ = false;
  Watch(0, kj::heap<TestNode>(&answers_));
  Advance(1400);
  EXPECT_THAT(killed_, ElementsAre(0));
  EXPECT_THAT(losses_, IsEmpty());
  Advance(500);
  EXPECT_THAT(losses_, ElementsAre("0 has not answered for 1s at work, 0"));
}

TEST_F(FailureDetectorTest, OneThatIsGoneIsAnErrorAndNoWait) {
  detector_.Stop();
  EXPECT_THAT(detector_.Flush(absl::Seconds(20)).ToString(),
              ::testing::HasSubstr("the failure detector of the job does not answer"));
}

}  // namespace
}  // namespace penstock::actors
