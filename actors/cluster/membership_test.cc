#include <condition_variable>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

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

class MembershipTest : public ::testing::Test {
 protected:
  MembershipTest()
      : system_(config_),
        membership_(system_, RankTable(3, 6), [this](const MemberLoss& loss, const auto& report) {
          const std::lock_guard lock(mutex_);
          EXPECT_EQ(OriginOf(report).rank, static_cast<int32_t>(loss.rank));
          reports_.push_back(report);
        }) {}

  absl::StatusOr<NodeDescription> Join(int wanted, const std::string& host) {
    NodeDescription node;
    node.host = host;
    node.pid = 7;
    std::optional<absl::StatusOr<NodeDescription>> result;
    membership_.Join({wanted, node}, [&](const absl::StatusOr<NodeDescription>& joined) {
      const std::lock_guard lock(mutex_);
      result = joined;
      changed_.notify_all();
    });
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(
        changed_.wait_for(lock, std::chrono::seconds(20), [&] { return result.has_value(); }));
    return result.value_or(absl::StatusOr<NodeDescription>(absl::UnknownError("")));
  }

  // Of what was posted before.
  std::vector<absl::Status> Reports() {
    EXPECT_TRUE(membership_.List(absl::Seconds(20)).ok());
    const std::lock_guard lock(mutex_);
    return reports_;
  }

  caf::actor_system_config config_;
  caf::actor_system system_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<absl::Status> reports_;  // guarded by mutex_
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
  membership_.Lose({1, "was killed by signal 9 (Killed)", " in step 7", 137});
  membership_.Lose({1, "has closed its connection", " in step 7", 0});  // is known
  membership_.Lose({0, "exited with status 3", " before it joined", 3});
  membership_.Lose({99, "is nobody", "", 0});
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
  {
    caf::scoped_actor self(system_);
    self->send_exit(membership_.actor(), caf::exit_reason::kill);
    self->wait_for(membership_.actor());
  }
  EXPECT_THAT(membership_.List(absl::Seconds(20)).status().ToString(),
              HasSubstr("the membership of the job does not answer"));
  EXPECT_EQ(Join(-1, "b").status().code(), absl::StatusCode::kDeadlineExceeded);
}

}  // namespace
}  // namespace penstock::actors
