#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster.h"
#include "actors/cluster/membership_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Joined = absl::StatusOr<NodeDescription>;

// The answer to a join that has been sent off.
class Answer {
 public:
  Membership::OnJoined OnJoined() {
    return [this](const Joined& joined) {
      const absl::MutexLock lock(&mutex_);
      EXPECT_FALSE(joined_.has_value()) << "answered twice";
      joined_ = joined;
    };
  }
  Joined Wait() {
    const auto is_there = [this]()
                              ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return joined_.has_value(); };
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_there), absl::Seconds(20)));
    return joined_.value_or(Joined(absl::UnknownError("no answer")));
  }

 private:
  absl::Mutex mutex_;
  std::optional<Joined> joined_ ABSL_GUARDED_BY(mutex_);
};

Joined Join(Membership& membership, int wanted, const std::string& host) {
  NodeDescription node;
  node.host = host;
  node.pid = 7;
  Answer answer;
  membership.Join({wanted, node}, answer.OnJoined());
  return answer.Wait();
}

void End(caf::actor_system& system, const caf::actor& actor) {
  caf::scoped_actor self(system);
  self->send_exit(actor, caf::exit_reason::kill);
  self->wait_for(actor);
}

class MembershipTest : public ::testing::Test {
 protected:
  MembershipTest()
      : system_(config_),
        membership_(system_, RankTable(3, 6), [this](const MemberLoss& loss, const auto& report) {
          EXPECT_EQ(OriginOf(report).rank, static_cast<int32_t>(loss.rank));
          if (loss.cause == "blocks") may_return_.WaitForNotification();
          const absl::MutexLock lock(&mutex_);
          reports_.push_back(report);
        }) {}

  Joined Join(int wanted, const std::string& host) {
    return actors::Join(membership_, wanted, host);
  }

  void Lose(MemberLoss loss) { caf::anon_send(membership_.typed_actor(), std::move(loss)); }

  // Of what was posted before.
  std::vector<absl::Status> Reports() {
    EXPECT_TRUE(membership_.List(absl::Seconds(20)).ok());
    const absl::MutexLock lock(&mutex_);
    return reports_;
  }

  absl::Notification may_return_;  // the handler of a loss that "blocks"
  caf::actor_system_config config_;
  caf::actor_system system_;
  absl::Mutex mutex_;
  std::vector<absl::Status> reports_ ABSL_GUARDED_BY(mutex_);
  Membership membership_;
};

TEST_F(MembershipTest, NodesGetRanksAndDevices) {
  membership_.Reserve({0, 5, "a"});
  const auto any = Join(-1, "b");
  ASSERT_TRUE(any.ok()) << any.status();
  EXPECT_EQ(any->rank, 1u);
  EXPECT_EQ(any->first_device, 2u);
  EXPECT_EQ(any->num_devices, 2u);
  EXPECT_EQ(Join(1, "c").status().code(), absl::StatusCode::kResourceExhausted);
  auto list = membership_.List(absl::Seconds(20));
  ASSERT_TRUE(list.ok()) << list.status();
  EXPECT_THAT(list->missing, ElementsAre(0, 2));
  ASSERT_TRUE(Join(0, "a").ok());
  ASSERT_TRUE(Join(2, "c").ok());
  list = membership_.List(absl::Seconds(20));
  EXPECT_THAT(list->missing, IsEmpty());
  ASSERT_EQ(list->nodes.size(), 3u);
  EXPECT_EQ(list->nodes[2].host, "c");
}

TEST_F(MembershipTest, ALossIsAnEventWithAReport) {
  ASSERT_TRUE(Join(1, "b").ok());
  Lose({1, "was killed by signal 9 (Killed)", " in step 7", 137});
  Lose({1, "has closed its connection", " in step 7", 0});  // is known
  Lose({0, "exited with status 3", " before it joined", 3});
  Lose({99, "is nobody", "", 0});
  const std::vector<absl::Status> reports = Reports();
  ASSERT_EQ(reports.size(), 2u);
  EXPECT_EQ(reports[0].code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(reports[0].message(), "node 1 (pid 7 on b) was killed by signal 9 (Killed) in step 7");
  EXPECT_EQ(reports[0].GetPayload(kShellStatusPayload), absl::Cord("137"));
  EXPECT_EQ(reports[1].message(), "node 0 exited with status 3 before it joined");
  // The rank is not given again.
  EXPECT_EQ(Join(1, "c").status().code(), absl::StatusCode::kResourceExhausted);
}

TEST_F(MembershipTest, AnActorThatIsGoneIsAnErrorAndNoWait) {
  End(system_, membership_.actor());
  EXPECT_THAT(membership_.List(absl::Seconds(20)).status().ToString(),
              HasSubstr("the membership of the job does not answer"));
  EXPECT_EQ(Join(-1, "b").status().code(), absl::StatusCode::kDeadlineExceeded);
}

// The one that waits for the membership, and one that finds no proxy.
TEST_F(MembershipTest, AJoinIsAnsweredWhenItsProxyEnds) {
  Lose({0, "blocks", "", 0});
  Answer waiting;
  membership_.Join({-1, {}}, waiting.OnJoined());
  End(system_, membership_.join_proxy());
  EXPECT_EQ(waiting.Wait().status(),
            absl::UnavailableError("the join proxy of the job has ended; join again"));
  EXPECT_TRUE(absl::IsUnavailable(Join(-1, "b").status()));
  may_return_.Notify();
  membership_.StartJoinProxy();
  const Joined joined = Join(-1, "b");
  EXPECT_TRUE(joined.ok()) << joined.status();
}

TEST_F(MembershipTest, AJoinAfterTheEndIsAnswered) {
  membership_.Stop();
  EXPECT_TRUE(absl::IsUnavailable(Join(-1, "b").status()));
}

}  // namespace
}  // namespace penstock::actors
