#include "cli/node_process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <string>

#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::cli {
namespace {

using Task = NodeProcess::Task;
using Events = NodeProcess::Events;

Task SomeTask() {
  return {.rank = 3,
          .coordinator = "host:1234",
          .key = "a key",
          .connect_timeout = absl::Milliseconds(1500),
          .is_watched = true,
          .may_fail = true};
}

// Work is done by a process of its own, so it tells what it has seen by its status.
class NodeProcessTest : public ::testing::Test {
 protected:
  // Both ends close with the process that has them.
  void SetUp() override { ASSERT_EQ(pipe2(pipe_, O_CLOEXEC), 0); }
  void TearDown() override {
    close(pipe_[0]);
    if (pipe_[1] >= 0) close(pipe_[1]);
    (void)signal(SIGINT, SIG_DFL);
  }

  int pipe_[2] = {-1, -1};
};

#define SKIP_WITHOUT_OWN_PROCESS(process) \
  if (!(process).is_own()) GTEST_SKIP() << "this program has threads, or no process can be made"

TEST_F(NodeProcessTest, DoesTasksOneAfterAnother) {
  int num_done = 0;
  NodeProcess process([&num_done](const Task& task, const Events& events) {
    ++num_done;
    if (task.rank == 4) events.on_joined();
    return absl::AbortedError(StrCat(num_done, " ", task.rank, " ", task.coordinator, " ", task.key,
                                     " ", absl::FormatDuration(task.connect_timeout), " ",
                                     task.is_watched, task.may_fail, "\nby ", getpid()));
  });
  SKIP_WITHOUT_OWN_PROCESS(process);
  ASSERT_NE(process.pid(), getpid());
  Task task = SomeTask();
  const NodeProcess::End first = process.Run(task);
  EXPECT_EQ(first.status,
            absl::AbortedError(StrCat("1 3 host:1234 a key 1.5s 11\nby ", process.pid())));
  EXPECT_FALSE(first.has_joined);
  EXPECT_FALSE(first.wait_status.has_value());
  task.rank = 4;
  task.is_watched = false;
  const NodeProcess::End second = process.Run(task);
  EXPECT_EQ(second.status,
            absl::AbortedError(StrCat("2 4 host:1234 a key 1.5s 01\nby ", process.pid())));
  EXPECT_TRUE(second.has_joined);
  EXPECT_EQ(num_done, 0);  // here
}

// What it has sent before its death counts.
TEST_F(NodeProcessTest, TellsHowTheProcessHasDied) {
  NodeProcess process([](const Task&, const Events& events) {
    events.on_joined();
    (void)raise(SIGKILL);
    return absl::OkStatus();
  });
  SKIP_WITHOUT_OWN_PROCESS(process);
  const NodeProcess::End end = process.Run(SomeTask());
  EXPECT_TRUE(end.has_joined);
  ASSERT_TRUE(end.wait_status.has_value());
  EXPECT_TRUE(WIFSIGNALED(*end.wait_status));
  EXPECT_EQ(WTERMSIG(*end.wait_status), SIGKILL);
  EXPECT_TRUE(absl::IsUnavailable(end.status));
  EXPECT_EQ(end.status.message().substr(0, 31), "was killed by signal 9 (Killed)");
  EXPECT_FALSE(process.is_own());
}

// Its copy of the socket stays open, so only the end of the process tells.
TEST_F(NodeProcessTest, AChildOfTheProcessDoesNotHideItsDeath) {
  NodeProcess process([this](const Task&, const Events&) {
    if (fork() == 0) {
      close(pipe_[1]);
      char byte = 0;
      (void)!read(pipe_[0], &byte, 1);  // until the test ends
      _exit(0);
    }
    _exit(7);
    return absl::OkStatus();
  });
  SKIP_WITHOUT_OWN_PROCESS(process);
  const NodeProcess::End end = process.Run(SomeTask());
  ASSERT_TRUE(end.wait_status.has_value());
  EXPECT_EQ(WEXITSTATUS(*end.wait_status), 7);
  EXPECT_EQ(end.status, absl::UnavailableError("exited with status 7"));
  EXPECT_FALSE(end.has_joined);
}

TEST_F(NodeProcessTest, TheProcessEndsWithItsOwner) {
  pid_t pid = 0;
  {
    const NodeProcess process([](const Task&, const Events&) { return absl::OkStatus(); });
    SKIP_WITHOUT_OWN_PROCESS(process);
    pid = process.pid();
    EXPECT_EQ(kill(pid, 0), 0);
  }
  EXPECT_EQ(kill(pid, 0), -1);
}

}  // namespace
}  // namespace penstock::cli
