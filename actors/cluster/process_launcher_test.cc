// The actor that starts processes, with real ones.

#include <signal.h>

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/child_process.h"
#include "actors/cluster/local_launcher_internal.h"
#include "actors/cluster/process_launcher_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kLaunchTimeout = absl::Seconds(20);

class ProcessLauncherTest : public ::testing::Test {
 protected:
  absl::Status Launch(uint32_t rank, const std::string& command) {
    return launcher_.Launch({rank, {"/bin/sh", "-c", command}, {}, {}}, kLaunchTimeout);
  }

  void Tell(std::string event) {
    const absl::MutexLock lock(&mutex_);
    events_.push_back(std::move(event));
  }
  // All events, once the last one is this.
  std::vector<std::string> EventsUntil(const std::string& last) {
    const auto is_there = [this, &last]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return !events_.empty() && events_.back() == last;
    };
    const absl::MutexLock lock(&mutex_);
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&is_there), kLaunchTimeout)) << last;
    return events_;
  }
  int pid() {
    const absl::MutexLock lock(&mutex_);
    return pid_;
  }

  absl::Mutex mutex_;
  std::vector<std::string> events_ ABSL_GUARDED_BY(mutex_);
  int pid_ ABSL_GUARDED_BY(mutex_) = 0;  // of the last process
  caf::actor_system_config config_;
  caf::actor_system system_{config_};
  ProcessLauncher launcher_{
      system_, [](kj::AsyncIoContext& io) { return std::make_unique<LocalLauncher>(io); },
      ProcessLauncher::Events{
          .on_launched =
              [this](const LaunchCommand& command, const LaunchedProcess& process) {
                Tell(StrCat("launched ", command.rank));
                const absl::MutexLock lock(&mutex_);
                pid_ = process.pid;
              },
          .on_line = [this](uint32_t rank,
                            std::string_view line) { Tell(StrCat(rank, ": ", line)); },
          .on_exit =
              [this](uint32_t rank, int wait_status, std::string_view) {
                Tell(StrCat(rank, " ", DescribeWaitStatus(wait_status)));
              },
          .on_finished = [this](uint32_t rank) { Tell(StrCat("finished ", rank)); },
          .on_ended = [this] { Tell("ended"); }}};
};

TEST_F(ProcessLauncherTest, TheEventsOfAProcessComeInOrder) {
  EXPECT_EQ(Launch(7, "echo one; echo two; exit 3"), absl::OkStatus());
  EXPECT_THAT(EventsUntil("finished 7"), ElementsAre("launched 7", "7: one", "7: two",
                                                     "7 exited with status 3", "finished 7"));
}

TEST_F(ProcessLauncherTest, OneIsKilledWhenItIsTold) {
  launcher_.Kill(0);  // nothing runs yet
  EXPECT_EQ(Launch(0, "exec sleep 1000"), absl::OkStatus());
  launcher_.Kill(1);
  launcher_.Kill(0);
  EXPECT_THAT(EventsUntil("finished 0"),
              ElementsAre("launched 0", "0 was killed by signal 9 (Killed)", "finished 0"));
}

TEST_F(ProcessLauncherTest, WhatCannotBeLaunchedIsNamed) {
  EXPECT_THAT(launcher_.Launch({1, {"/nowhere/node"}, {}, {}}, kLaunchTimeout).ToString(),
              HasSubstr("/nowhere/node: No such file"));
  EXPECT_EQ(Launch(1, "exit 0"), absl::OkStatus());
}

TEST_F(ProcessLauncherTest, ProcessesEndWithTheActor) {
  EXPECT_EQ(Launch(0, "exec sleep 1000"), absl::OkStatus());
  const int left = pid();
  ASSERT_EQ(kill(left, 0), 0);
  {
    caf::scoped_actor self(system_);
    self->send_exit(launcher_.actor(), caf::exit_reason::kill);
    self->wait_for(launcher_.actor());
  }
  EXPECT_EQ(kill(left, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  EXPECT_THAT(EventsUntil("ended"), ElementsAre("launched 0", "ended"));
  EXPECT_THAT(Launch(1, "exit 0").ToString(),
              HasSubstr("the launcher of the job does not answer, starting node 1"));
}

TEST_F(ProcessLauncherTest, ProcessesEndWhenItStops) {
  EXPECT_EQ(Launch(0, "exec sleep 1000"), absl::OkStatus());
  const int left = pid();
  launcher_.Stop();
  EXPECT_EQ(kill(left, 0), -1);
  EXPECT_THAT(EventsUntil("ended"), ElementsAre("launched 0", "ended"));
}

}  // namespace
}  // namespace penstock::actors
