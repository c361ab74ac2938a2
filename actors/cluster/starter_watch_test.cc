#include "actors/cluster/starter_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/child_process.h"
#include "actors/cluster/process_tree.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr int kPatienceMs = 20'000;
constexpr absl::Duration kTestGrace = absl::Milliseconds(300);
// For a shell to run its trap on a busy host, before it is killed.
constexpr absl::Duration kTrapGrace = absl::Seconds(2);
// Tells the watching process its grace.
constexpr char kGraceVariable[] = "STARTER_WATCH_TEST_GRACE_MS";

// Its watching process is one of the test: this program again, which runs `RunsAsWatch` alone.
std::vector<std::string> WatchCommand() {
  return {"/proc/self/exe", "--gtest_also_run_disabled_tests",
          "--gtest_filter=StarterWatchTest.DISABLED_RunsAsWatch"};
}

ChildProcess StartShell(const std::string& script) {
  auto child = ChildProcess::Start(
      {.arguments = {"/bin/sh", "-c", script}, .environment = {}, .cores = {}, .input = {}});
  EXPECT_TRUE(child.ok()) << child.status();
  return *std::move(child);
}

// The wait status; -1: it has not ended in time.
int AwaitExit(ChildProcess& child) {
  pollfd exit = {child.exit_fd(), POLLIN, 0};
  if (poll(&exit, 1, kPatienceMs) <= 0) return -1;
  return child.Reap().value_or(-1);
}

// What the process prints first, which says that it is ready.
std::string ReadLine(int fd) {
  std::string line;
  char byte = 0;
  while (read(fd, &byte, 1) == 1 && byte != '\n') line += byte;
  return line;
}

TEST(StarterWatchTest, DISABLED_RunsAsWatch) {
  const char* const grace_ms = getenv(kGraceVariable);
  WatchStarters(STDIN_FILENO,
                grace_ms == nullptr ? kTestGrace : absl::Milliseconds(std::stoi(grace_ms)));
}

TEST(StarterWatchTest, SaysWhyItsProcessDoesNotStart) {
  const auto watch = StarterWatch::Start({"/nowhere/watch"});
  EXPECT_THAT(watch.status().ToString(),
              ::testing::HasSubstr("starting /nowhere/watch: No such file"));
}

class StarterWatchEndTest : public ::testing::Test {
 protected:
  ~StarterWatchEndTest() override {
    watch_ = nullptr;
    while (wait(nullptr) > 0) {
    }
  }

  void StartWatch(absl::Duration grace = kTestGrace) {
    setenv(kGraceVariable, StrCat(absl::ToInt64Milliseconds(grace)).c_str(), 1);
    auto watch = StarterWatch::Start(WatchCommand());
    unsetenv(kGraceVariable);
    ASSERT_TRUE(watch.ok()) << watch.status();
    watch_ = *std::move(watch);
  }

  std::unique_ptr<StarterWatch> watch_;
};

TEST_F(StarterWatchEndTest, AsksStartersToEnd) {
  ASSERT_NO_FATAL_FAILURE(StartWatch(kTrapGrace));
  ChildProcess starter = StartShell("trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done");
  const int output = starter.TakeOutputFd();
  EXPECT_EQ(ReadLine(output), "ready");
  watch_->Add(starter.pid(), starter.exit_fd());
  watch_ = nullptr;
  EXPECT_EQ(AwaitExit(starter), 3 << 8);
  close(output);
}

TEST_F(StarterWatchEndTest, KillsThoseThatDoNotWithWhatTheyHaveStarted) {
  ASSERT_NO_FATAL_FAILURE(StartWatch());
  ChildProcess starter = StartShell("trap '' TERM; sleep 1000 & echo $!; wait");
  const int output = starter.TakeOutputFd();
  const int started = std::stoi(ReadLine(output));
  watch_->Add(starter.pid(), starter.exit_fd());
  watch_ = nullptr;
  EXPECT_EQ(AwaitExit(starter), SIGKILL);
  // The other one has the pipe open as long as it lives.
  pollfd end = {output, POLLIN, 0};
  EXPECT_EQ(poll(&end, 1, kPatienceMs), 1) << started;
  EXPECT_EQ(ReadLine(output), "");
  close(output);
}

TEST_F(StarterWatchEndTest, LeavesOthersAlone) {
  ASSERT_NO_FATAL_FAILURE(StartWatch());
  ChildProcess other = StartShell("exec sleep 1000");
  ChildProcess starter = StartShell("exec sleep 1000");
  watch_->Add(starter.pid(), starter.exit_fd());
  watch_ = nullptr;
  EXPECT_EQ(AwaitExit(starter), SIGTERM);
  EXPECT_FALSE(other.Reap().has_value());
}

TEST_F(StarterWatchEndTest, ManyAreWatched) {
  ASSERT_NO_FATAL_FAILURE(StartWatch());
  ChildProcess last = StartShell("exec sleep 1000");
  for (int i = 0; i < 2000; ++i) watch_->Add(last.pid(), last.exit_fd());
  watch_ = nullptr;
  EXPECT_EQ(AwaitExit(last), SIGTERM);
}

// Whoever starts nodes must not wait again and again for a process that is stuck.
TEST_F(StarterWatchEndTest, WaitsOnceForAProcessThatTakesNothing) {
  auto watch = StarterWatch::Start({"/bin/sleep", "60"});
  ASSERT_TRUE(watch.ok()) << watch.status();
  const std::vector<pid_t> stuck = DescendantsOf(getpid());
  ChildProcess starter = StartShell("exec sleep 1000");
  const auto begin = std::chrono::steady_clock::now();
  for (int i = 0; i < 2000; ++i) (*watch)->Add(starter.pid(), starter.exit_fd());
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(kPatienceMs));
  for (const pid_t pid : stuck) kill(pid, SIGKILL);
}

}  // namespace
}  // namespace penstock::actors
