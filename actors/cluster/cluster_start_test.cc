#include "actors/cluster/cluster_start.h"

#include <functional>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster.h"
#include "tests/support/cluster_fixture.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using testing::kBound;
using testing::kSlowdown;

class ClusterStartTest : public testing::ClusterTest {
 protected:
  ClusterStartTest() { cause_.SetPayload(kShellStatusPayload, absl::Cord("130")); }

  // Of two nodes elsewhere, which are started through this script.
  ClusterOptions Through(const std::string& script) {
    ClusterOptions options = Options(2);
    options.join_timeout = absl::Minutes(10);
    options.start = &start_;
    for (const char* host : {"a", "b"}) {
      NodePlace place;
      place.host = host;
      place.through = {"/bin/sh", "-c", script};
      options.places.push_back(std::move(place));
    }
    return options;
  }

  // Calls `end` when both programs that start nodes have been started.
  void OnBothStarters(ClusterOptions* options, const std::function<void()>& end) {
    options->on_starter = [this, end](int pid, int) {
      pids_.insert(pid);
      if (pids_.size() == 2) end();
    };
  }

  void ExpectGone() const {
    EXPECT_EQ(pids_.size(), 2u);
    for (const int pid : pids_) EXPECT_FALSE(testing::IsAlive(pid));
  }

  ClusterStart start_;
  absl::Status cause_ = absl::CancelledError("the user has changed their mind");
  std::set<int> pids_;
};

TEST_F(ClusterStartTest, IsCancelledWithItsCause) {
  ClusterOptions options = Through("exec sleep 1000");
  OnBothStarters(&options, [this] { start_.Cancel(cause_); });
  const auto begin = std::chrono::steady_clock::now();
  const auto cluster = Cluster::Start(options);
  EXPECT_EQ(cluster.status(), cause_);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kBound);
  ExpectGone();
  EXPECT_THAT(start_.MissingRanks(), IsEmpty());
}

TEST_F(ClusterStartTest, ProgramsThatDoNotEndAreKilled) {
  ClusterOptions options = Through("trap '' TERM; sleep 1000; exit 1");
  options.stop_timeout = absl::Milliseconds(300);
  OnBothStarters(&options, [this] { start_.Cancel(cause_); });
  EXPECT_EQ(Cluster::Start(options).status(), cause_);
  ExpectGone();
}

TEST_F(ClusterStartTest, IsKilledAtOnce) {
  ClusterOptions options = Through("trap '' TERM; sleep 1000; exit 1");
  options.stop_timeout = absl::Minutes(1);
  OnBothStarters(&options, [this] {
    start_.Cancel(cause_);
    start_.Kill();
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Cluster::Start(options).status(), cause_);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
  ExpectGone();
}

TEST_F(ClusterStartTest, SaysWhoIsMissing) {
  ClusterOptions options = Options(3);
  options.places.resize(3);
  options.places[1].is_awaited = true;  // and never comes
  options.start = &start_;
  absl::Mutex mutex;
  std::vector<uint32_t> missing;
  std::vector<std::thread> threads;
  options.on_join = [&](const NodeDescription&) {
    // Not on the thread that this is called on, which must not wait.
    threads.emplace_back([&] {
      const absl::MutexLock lock(&mutex);
      missing = start_.MissingRanks();
      if (missing.size() == 1) start_.Cancel(cause_);
    });
  };
  EXPECT_EQ(Cluster::Start(options).status(), cause_);
  for (std::thread& thread : threads) thread.join();
  const absl::MutexLock lock(&mutex);
  EXPECT_THAT(missing, ElementsAre(1));
}

TEST_F(ClusterStartTest, OneThatBeginsLaterFailsAtOnce) {
  ClusterOptions options = Through("exec sleep 1000");
  OnBothStarters(&options, [] { ADD_FAILURE() << "nothing should start"; });
  start_.Cancel(cause_);
  start_.Cancel(absl::CancelledError("again"));
  EXPECT_EQ(Cluster::Start(options).status(), cause_);
  EXPECT_THAT(pids_, IsEmpty());
}

}  // namespace
}  // namespace penstock::actors
