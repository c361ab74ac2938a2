// What becomes of a coordinator's actors when one of them ends: the table of strategies, on the
// actors themselves.

#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster_actors_internal.h"
#include "actors/cluster/local_launcher_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::HasSubstr;

class ClusterActorsTest : public ::testing::Test {
 protected:
  void End(const caf::actor& actor) {
    caf::scoped_actor self(actors_.system());
    self->send_exit(actor, caf::exit_reason::kill);
    self->wait_for(actor);
  }

  // The first one that was told, within the bound.
  absl::Status AwaitFailure() {
    const auto has_failed = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !failures_.empty();
    };
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&has_failed), absl::Seconds(20)));
    return failures_.empty() ? absl::OkStatus() : failures_.front();
  }

  void ExpectEscalation(const caf::actor& actor, const std::string& name) {
    End(actor);
    const absl::Status failure = AwaitFailure();
    EXPECT_EQ(failure.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(failure.ToString(), HasSubstr(StrCat("the ", name, " has ended: ")));
    EXPECT_EQ(OriginOf(failure).actor, name);
  }

  absl::StatusOr<NodeDescription> Join(int rank) {
    struct Answer {
      absl::Notification is_given;
      absl::StatusOr<NodeDescription> joined = absl::UnknownError("no answer");
    };
    const auto answer = std::make_shared<Answer>();  // it may come after the wait
    actors_.membership().Join({rank, {}}, [answer](const absl::StatusOr<NodeDescription>& joined) {
      answer->joined = joined;
      answer->is_given.Notify();
    });
    // Each is answered, after kJoinTimeout at the latest.
    if (!answer->is_given.WaitForNotificationWithTimeout(absl::Seconds(60))) {
      return absl::DeadlineExceededError("a request to join was not answered");
    }
    return answer->joined;
  }

  absl::Mutex mutex_;
  std::vector<absl::Status> failures_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> lines_ ABSL_GUARDED_BY(mutex_);
  ClusterActors actors_{ClusterActors::Setup{
      .on_output =
          [this](uint32_t, std::string_view, std::string_view line) {
            const absl::MutexLock lock(&mutex_);
            lines_.emplace_back(line);
          },
      .ranks = RankTable(3, 3),
      .on_loss = [](const MemberLoss&, const absl::Status&) {},
      .times = {absl::Seconds(1), absl::Seconds(1)},
      .detector = {.on_loss = [](const MemberLoss&, bool) {},
                   .look_again = [](uint32_t) {},
                   .kill = nullptr},
      .make_launcher = [](kj::AsyncIoContext& io) { return std::make_unique<LocalLauncher>(io); },
      .processes = {.on_launched = [](const LaunchCommand&, const LaunchedProcess&) {},
                    .on_line = nullptr,
                    .on_exit = [](uint32_t, int, std::string_view) {},
                    .on_finished = [](uint32_t) {},
                    .on_ended = [] {}},
      .on_failure =
          [this](const absl::Status& status) {
            const absl::MutexLock lock(&mutex_);
            failures_.push_back(status);
          }}};
};

// --- Without state: another one takes its place --------------------------------------------------

TEST_F(ClusterActorsTest, AJoinProxyThatEndsIsReplaced) {
  for (int rank = 0; rank < 3; ++rank) {
    End(actors_.membership().join_proxy());
    absl::StatusOr<NodeDescription> joined;
    const absl::Time deadline = absl::Now() + absl::Seconds(20);
    do {
      joined = Join(rank);
    } while (absl::IsUnavailable(joined.status()) && absl::Now() < deadline);
    ASSERT_TRUE(joined.ok()) << joined.status();
    EXPECT_EQ(joined->rank, static_cast<uint32_t>(rank));
  }
  const absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(failures_.empty()) << failures_[0];
}

TEST_F(ClusterActorsTest, AnOutputPumpThatEndsIsReplaced) {
  End(caf::actor_cast<caf::actor>(actors_.pump().actor()));
  const absl::Time deadline = absl::Now() + absl::Seconds(20);
  const auto has_printed = [this] {
    const absl::MutexLock lock(&mutex_);
    return !lines_.empty();
  };
  while (!has_printed() && absl::Now() < deadline) {
    actors_.pump().Print({0, "here", "a line"});
    (void)actors_.pump().Flush(absl::Seconds(20));
  }
  EXPECT_TRUE(has_printed());
  const absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(failures_.empty()) << failures_[0];
}

// --- With state: the owner is told, with the name of the actor -----------------------------------

TEST_F(ClusterActorsTest, TheEndOfTheMembershipEscalates) {
  ExpectEscalation(actors_.membership().actor(), "membership");
}

TEST_F(ClusterActorsTest, TheEndOfTheFailureDetectorEscalates) {
  ExpectEscalation(actors_.failure_detector().actor(), "failure detector");
}

TEST_F(ClusterActorsTest, TheEndOfTheLauncherEscalates) {
  ExpectEscalation(actors_.launcher().actor(), "launcher");
}

// What a process prints goes to the reader without a detour.
TEST_F(ClusterActorsTest, TheLauncherPrintsThroughThePump) {
  LaunchCommand command;
  command.arguments = {"/bin/sh", "-c", "echo hello"};
  ASSERT_EQ(actors_.launcher().Launch(command, absl::Seconds(20)), absl::OkStatus());
  const auto has_printed = [this]()
                               ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !lines_.empty(); };
  const absl::MutexLock lock(&mutex_);
  ASSERT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&has_printed), absl::Seconds(20)));
  EXPECT_EQ(lines_[0], "hello");
}

TEST_F(ClusterActorsTest, AnOrderlyEndIsNoFailure) {
  actors_.Stop(absl::Seconds(20));
  const absl::MutexLock lock(&mutex_);
  EXPECT_TRUE(failures_.empty()) << failures_[0];
}

}  // namespace
}  // namespace penstock::actors
