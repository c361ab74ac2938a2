#include "actors/cluster/cluster_start.h"

#include <chrono>
#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/cord.h"
#include "absl/time/time.h"
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

  // Of a job with two nodes on other hosts: this script stands for the programs that start them.
  ClusterOptions OptionsWithStarter(const std::string& script) {
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
  void CallWhenBothStarted(ClusterOptions* options, const std::function<void()>& end) {
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
  ClusterOptions options = OptionsWithStarter("exec sleep 1000");
  CallWhenBothStarted(&options, [this] { start_.Cancel(cause_); });
  const auto begin = std::chrono::steady_clock::now();
  const auto cluster = Cluster::Start(options);
  EXPECT_EQ(cluster.status(), cause_);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
  ExpectGone();
  EXPECT_THAT(start_.MissingRanks(), IsEmpty());
}

TEST_F(ClusterStartTest, ProgramsThatDoNotEndAreKilled) {
  ClusterOptions options = OptionsWithStarter("trap '' TERM; sleep 1000; exit 1");
  options.stop_timeout = absl::Milliseconds(300);
  CallWhenBothStarted(&options, [this] { start_.Cancel(cause_); });
  EXPECT_EQ(Cluster::Start(options).status(), cause_);
  ExpectGone();
}

TEST_F(ClusterStartTest, IsKilledAtOnce) {
  ClusterOptions options = OptionsWithStarter("trap '' TERM; sleep 1000; exit 1");
  options.stop_timeout = absl::Minutes(1);
  CallWhenBothStarted(&options, [this] {
    start_.Cancel(cause_);
    start_.Kill();
  });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Cluster::Start(options).status(), cause_);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
  ExpectGone();
}

TEST_F(ClusterStartTest, IsKilledWithoutACancelBefore) {
  ClusterOptions options = OptionsWithStarter("trap '' TERM; sleep 1000; exit 1");
  options.stop_timeout = absl::Minutes(1);
  CallWhenBothStarted(&options, [this] { start_.Kill(); });
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(Cluster::Start(options).status(), absl::CancelledError("the job was ended"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
  ExpectGone();
}

TEST_F(ClusterStartTest, SaysWhoIsMissing) {
  ClusterOptions options = Options(3);
  options.places.resize(3);
  options.places[1].is_awaited = true;  // and never comes
  options.start = &start_;
  std::vector<uint32_t> missing;
  std::thread asker;
  options.on_join = [&](const NodeDescription&) {
    if (asker.joinable()) return;
    // Not on the thread that this is called on, which must not wait. The other node may take a
    // while to join.
    asker = std::thread([&] {
      const auto deadline = std::chrono::steady_clock::now() + kSlowdown * kBound;
      while (true) {
        missing = start_.MissingRanks();
        if (missing.size() == 1 || std::chrono::steady_clock::now() >= deadline) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      start_.Cancel(cause_);
    });
  };
  EXPECT_EQ(Cluster::Start(options).status(), cause_);
  if (asker.joinable()) asker.join();
  EXPECT_THAT(missing, ElementsAre(1));
}

TEST_F(ClusterStartTest, OneThatBeginsLaterFailsAtOnce) {
  ClusterOptions options = OptionsWithStarter("exec sleep 1000");
  CallWhenBothStarted(&options, [] { ADD_FAILURE() << "nothing should start"; });
  start_.Cancel(cause_);
  start_.Cancel(absl::CancelledError("again"));
  EXPECT_EQ(Cluster::Start(options).status(), cause_);
  EXPECT_THAT(pids_, IsEmpty());
}

}  // namespace
}  // namespace penstock::actors
