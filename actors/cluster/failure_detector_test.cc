// What is told of a member that is lost, in virtual time.

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/failure_detector_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// Processes that end when the test says so.
class SilentLauncher final : public Launcher {
 public:
  void SetEvents(Events) override {}
  absl::StatusOr<LaunchedProcess> Launch(const LaunchCommand&) override {
    return absl::UnimplementedError("");
  }
  bool HasLaunched(uint32_t rank) const override { return rank == 0; }
  bool IsFinished(uint32_t) override { return false; }
  void Kill(uint32_t rank) override { killed.push_back(rank); }

  std::vector<uint32_t> killed;
};

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

// Rank 0 was launched here, rank 1 joined by itself.
class FailureDetectorTest : public ::testing::Test {
 protected:
  ~FailureDetectorTest() noexcept override = default;

  void Advance(int milliseconds) {
    for (int i = 0; i < milliseconds; i += 10) {
      timer_.advanceTo(timer_.now() + 10 * kj::MILLISECONDS);
      scope_.poll();
    }
  }

  kj::EventLoop loop_;
  kj::WaitScope scope_{loop_};
  kj::TimerImpl timer_{kj::origin<kj::TimePoint>()};
  SilentLauncher launcher_;
  bool answers_ = true;
  std::vector<std::string> losses_;
  bool is_orderly_ = false;  // the last one
  const FailureDetector::OnLoss on_loss_ = [this](const FailureDetector::Loss& loss) {
    losses_.push_back(StrCat(loss.rank, " ", loss.cause, ", ", loss.shell_status));
    is_orderly_ = loss.is_orderly;
    detector_.Unwatch(loss.rank);
    joining_.Unwatch(loss.rank);
  };
  FailureDetector detector_{timer_,
                            launcher_,
                            {.interval = absl::Milliseconds(100), .timeout = absl::Seconds(1)},
                            on_loss_};
  // Of a job that other nodes will join.
  FailureDetector joining_{timer_,
                           launcher_,
                           {.interval = absl::Milliseconds(100),
                            .timeout = absl::Seconds(1),
                            .patience = absl::Seconds(20),
                            .silence_ms = 1200,
                            .have_all_joined = false},
                           on_loss_};
};

TEST_F(FailureDetectorTest, AnExitIsToldAtOnceWithItsStatus) {
  detector_.OnExit(0, 3 << 8);
  detector_.OnExit(0, 11);
  EXPECT_THAT(losses_, ElementsAre("0 exited with status 3, 3",
                                   ::testing::StartsWith("0 was killed by signal 11")));
  EXPECT_FALSE(is_orderly_);
  detector_.OnExit(0, 0);
  EXPECT_TRUE(is_orderly_);
}

TEST_F(FailureDetectorTest, AClosedConnectionWaitsForTheStatusOfAProcess) {
  detector_.OnDisconnected(1);
  EXPECT_THAT(losses_, ElementsAre("1 has closed its connection, 0"));
  losses_.clear();
  detector_.OnDisconnected(0);
  Advance(300);
  EXPECT_THAT(losses_, IsEmpty());
  detector_.OnExit(0, 3 << 8);
  Advance(1000);
  EXPECT_THAT(losses_, ElementsAre("0 exited with status 3, 3", "0 has closed its connection, 0"));
}

TEST_F(FailureDetectorTest, SilenceIsNoticedAndOneThatAnswersIsNot) {
  detector_.Watch(1, kj::heap<TestNode>(&answers_));
  Advance(5000);
  EXPECT_THAT(losses_, IsEmpty());
  answers_ = false;
  Advance(5000);
  EXPECT_THAT(losses_, ElementsAre("1 has not answered for 1s, 0"));
  EXPECT_THAT(launcher_.killed, IsEmpty());
}

TEST_F(FailureDetectorTest, OneMayBeSilentForLongWhileOthersJoin) {
  answers_ = false;
  joining_.Watch(1, kj::heap<TestNode>(&answers_));
  Advance(19'000);
  EXPECT_THAT(losses_, IsEmpty());
  Advance(10'000);
  EXPECT_THAT(losses_, ElementsAre("1 has not answered for 20s, 0"));
}

TEST_F(FailureDetectorTest, OnceAllHaveJoinedItIsNoticedSoon) {
  std::vector<uint32_t> bounds;
  joining_.Watch(1, kj::heap<TestNode>(&answers_, &bounds));
  Advance(1000);
  EXPECT_THAT(bounds, ::testing::Each(0));  // as it was told when it joined
  answers_ = false;
  Advance(10'000);
  joining_.OnAllJoined();
  EXPECT_THAT(losses_, IsEmpty());
  Advance(3000);
  EXPECT_THAT(losses_, ElementsAre("1 has not answered for 1s, 0"));
}

TEST_F(FailureDetectorTest, OnceAllHaveJoinedNodesAreToldTheirBound) {
  std::vector<uint32_t> bounds;
  joining_.Watch(1, kj::heap<TestNode>(&answers_, &bounds));
  joining_.OnAllJoined();
  Advance(1000);
  EXPECT_THAT(bounds, ::testing::AllOf(::testing::SizeIs(::testing::Gt(5)), ::testing::Each(1200)));
  EXPECT_THAT(losses_, IsEmpty());
}

// Its own signal is not its status; another one is.
TEST_F(FailureDetectorTest, ASilentProcessIsKilled) {
  answers_ = false;
  detector_.Watch(0, kj::heap<TestNode>(&answers_));
  while (launcher_.killed.empty() &&
         timer_.now() < kj::origin<kj::TimePoint>() + 60 * kj::SECONDS) {
    Advance(10);
  }
  EXPECT_THAT(launcher_.killed, ElementsAre(0));
  EXPECT_THAT(losses_, IsEmpty());
  detector_.OnExit(0, 9);
  EXPECT_THAT(losses_, ElementsAre("0 has not answered for 1s, 0"));
  losses_.clear();
  detector_.OnExit(0, 11);
  EXPECT_THAT(losses_, ElementsAre(::testing::StartsWith("0 was killed by signal 11")));
}

}  // namespace
}  // namespace penstock::actors
