#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/child_process.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/host_agent.h"
#include "actors/cluster/local_launcher_internal.h"
#include "actors/cluster/node_place.h"
#include "actors/cluster/oom_kills.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LocalLauncherTest : public ::testing::Test {
 protected:
  LocalLauncherTest() {
    auto loop = control::ControlLoop::Start();
    EXPECT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
    OnLoop([this] {
      launcher_ = std::make_unique<LocalLauncher>(loop_->io());
      launcher_->SetEvents(
          {[this](uint32_t rank, std::string_view line) { lines_[rank].emplace_back(line); },
           [this](uint32_t rank, int status, std::string_view note) {
             exit_order_.push_back(rank);
             exits_[rank].push_back(ShellStatus(status));
             wait_statuses_[rank] = status;
             notes_[rank] = note;
           }});
    });
  }
  ~LocalLauncherTest() override {
    OnLoop([this] { launcher_ = nullptr; });
  }

  void OnLoop(const std::function<void()>& work) {
    const absl::Status status = loop_->Await(
        [&]() -> kj::Promise<void> {
          work();
          return kj::READY_NOW;
        },
        absl::Seconds(20), "the work");
    EXPECT_TRUE(status.ok()) << status;
  }

  absl::StatusOr<LaunchedProcess> Launch(uint32_t rank, const std::string& command) {
    absl::StatusOr<LaunchedProcess> launched = absl::UnknownError("");
    OnLoop([&] {
      launched = launcher_->Launch({rank, {"/bin/sh", "-c", command}, {{"NAME", "value"}}, {}});
    });
    return launched;
  }

  // Until each rank has printed so many lines.
  void AwaitLines(const std::map<uint32_t, size_t>& counts) {
    const absl::Status status =
        loop_->Await([&] { return UntilLines(counts); }, absl::Seconds(20), "the lines");
    EXPECT_TRUE(status.ok()) << status;
  }
  kj::Promise<void> UntilLines(std::map<uint32_t, size_t> counts) {
    bool is_reached = true;
    for (const auto& [rank, count] : counts) {
      is_reached = is_reached && lines_[rank].size() >= count;
    }
    if (is_reached) return kj::READY_NOW;
    return loop_->timer().afterDelay(kj::MILLISECONDS).then([this, counts = std::move(counts)] {
      return UntilLines(counts);
    });
  }

  void AwaitExits(const std::vector<uint32_t>& ranks) {
    const absl::Status status =
        loop_->Await([&] { return Until(ranks); }, absl::Seconds(20), "the exits");
    EXPECT_TRUE(status.ok()) << status;
  }
  kj::Promise<void> Until(std::vector<uint32_t> ranks) {
    bool is_reached = true;
    for (const uint32_t rank : ranks) {
      is_reached = is_reached && launcher_->IsFinished(rank) && exits_.contains(rank);
    }
    if (is_reached) return kj::READY_NOW;
    return loop_->timer().afterDelay(kj::MILLISECONDS).then([this, ranks] { return Until(ranks); });
  }

  std::unique_ptr<control::ControlLoop> loop_;
  std::unique_ptr<Launcher> launcher_;
  std::map<uint32_t, std::vector<std::string>> lines_;
  std::map<uint32_t, std::vector<int>> exits_;
  std::vector<uint32_t> exit_order_;
  std::map<uint32_t, int> wait_statuses_;  // the last one
  std::map<uint32_t, std::string> notes_;
};

// A control group whose processes may have little memory; without a path where none can be made.
class SmallMemory {
 public:
  SmallMemory() {
    const std::string name = StrCat("penstock_test_", getpid());
    for (const auto& [root, limit] : {std::pair("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
                                      std::pair("/sys/fs/cgroup", "memory.max")}) {
      const std::string path = StrCat(root, "/", name);
      if (mkdir(path.c_str(), 0755) != 0) continue;
      std::ofstream file(StrCat(path, "/", limit));
      if (file << (16 << 20) << std::flush) {
        path_ = path;
        return;
      }
      rmdir(path.c_str());
    }
  }
  ~SmallMemory() {
    if (!path_.empty()) rmdir(path_.c_str());
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A shell stands for ssh with an agent behind it: what the agent tells is of the nodes.
TEST_F(LocalLauncherTest, AnAgentTellsOfItsNodes) {
  LaunchCommand command;
  command.rank = 4;
  command.agent_ranks = 3;
  command.remote_host = "there";
  const auto line = [](const AgentReport& report) { return StrCat(ToLine(report), "\n"); };
  using Kind = AgentReport::Kind;
  const std::string told = StrCat(
      "welcome\n", line({Kind::kLine, 5, 0, "of 5"}), line({Kind::kLine, 9, 0, "of nobody here"}),
      line({Kind::kExit, 5, SIGSEGV, ", a note"}), line({Kind::kLine, 5, 0, "late"}),
      line({Kind::kFinished, 5, 0, ""}), line({Kind::kExit, 4, 0, ""}),
      line({Kind::kFinished, 4, 0, ""}));
  command.arguments = {"/bin/sh", "-c", StrCat("printf '%s' '", told, "'; kill -9 $$")};
  OnLoop([&] {
    ASSERT_TRUE(launcher_->Launch(command).ok());
    EXPECT_TRUE(launcher_->HasLaunched(6));
    EXPECT_FALSE(launcher_->HasLaunched(7));
    LaunchCommand again;
    again.rank = 6;
    again.arguments = {"/bin/true"};
    EXPECT_FALSE(launcher_->Launch(again).ok());
  });
  AwaitExits({4, 5, 6});
  EXPECT_THAT(lines_[5], ElementsAre("of 5", "late"));
  ASSERT_EQ(lines_[4].size(), 2u);
  EXPECT_EQ(lines_[4][0], "welcome");
  EXPECT_FALSE(lines_.contains(9));
  EXPECT_THAT(exits_[4], ElementsAre(0));
  EXPECT_THAT(exits_[5], ElementsAre(128 + SIGSEGV));
  EXPECT_EQ(notes_[5], ", a note");
  // The end of the program that had started the agent.
  EXPECT_THAT(exits_[6], ElementsAre(128 + SIGKILL));
}

// Whoever hears of the exits takes the first for the cause of the others.
TEST_F(LocalLauncherTest, TheNodeThatIsKilledIsToldBeforeTheOthersOfItsAgent) {
  LaunchCommand command;
  command.rank = 4;
  command.agent_ranks = 3;
  command.remote_host = "there";
  command.arguments = {"/bin/sh", "-c", "exec sleep 1000"};
  OnLoop([&] {
    ASSERT_TRUE(launcher_->Launch(command).ok());
    launcher_->Kill(5);
    launcher_->Kill(6);
  });
  AwaitExits({4, 5, 6});
  EXPECT_THAT(exit_order_, ElementsAre(5, 4, 6));
}

// An srun ends what it has started on other hosts.
TEST_F(LocalLauncherTest, AProgramThatStartsANodeElsewhereIsAskedToEnd) {
  LaunchCommand command;
  command.remote_host = "there";
  command.arguments = {"/bin/sh", "-c",
                       "trap 'exit 3' TERM; echo ready; while :; do sleep 0.01; done"};
  OnLoop([&] { ASSERT_TRUE(launcher_->Launch(command).ok()); });
  // Descendants that outlive it are killed.
  command.rank = 1;
  command.arguments[2] = "sleep 1000 & echo $!; trap 'exit 4' TERM; echo ready; wait";
  OnLoop([&] { ASSERT_TRUE(launcher_->Launch(command).ok()); });
  AwaitLines({{0, 1}, {1, 2}});
  OnLoop([&] {
    launcher_->Terminate(0);
    launcher_->Terminate(1);
    launcher_->Terminate(2);
  });
  AwaitExits({0, 1});
  EXPECT_THAT(exits_[0], ElementsAre(3));
  EXPECT_THAT(exits_[1], ElementsAre(4));
  const int left = std::stoi(lines_[1][0]);
  const bool is_alive = kill(left, 0) == 0;
  std::ifstream status(StrCat("/proc/", left, "/stat"));
  std::string number, name, state;
  status >> number >> name >> state;
  EXPECT_TRUE(!is_alive || state == "Z" || !status) << state;
}

TEST_F(LocalLauncherTest, OneThatDoesNotEndIsKilled) {
  LaunchCommand command;
  command.remote_host = "there";
  command.arguments = {"/bin/sh", "-c", "trap '' TERM; echo ready; sleep 1000; exit 1"};
  OnLoop([&] { ASSERT_TRUE(launcher_->Launch(command).ok()); });
  AwaitLines({{0, 1}});
  OnLoop([&] {
    launcher_->Terminate(0);
    EXPECT_FALSE(launcher_->IsFinished(0));
    launcher_->Kill(0);
  });
  AwaitExits({0});
  EXPECT_THAT(exits_[0], ElementsAre(128 + SIGKILL));
}

TEST_F(LocalLauncherTest, SaysWhereTheKernelHasKilledForLackOfMemory) {
  const SmallMemory group;
  if (group.path().empty()) GTEST_SKIP() << "no control group can be made here";
  ASSERT_TRUE(Launch(0, "kill -9 $$").ok());
  AwaitExits({0});
  EXPECT_EQ(notes_[0], "");
  // Keeps the one line that it reads, which has no end. Outside of the group it would go far.
  const std::string too_much =
      StrCat("ulimit -v 4000000; echo $$ > ", group.path(), "/cgroup.procs && exec tail /dev/zero");
  ASSERT_TRUE(Launch(1, too_much).ok());
  AwaitExits({1});
  EXPECT_EQ(exits_[1].back(), 128 + SIGKILL);
  EXPECT_EQ(notes_[1], kProbablyOutOfMemory);
  // Through a shell of another host.
  ASSERT_TRUE(Launch(2, WatchedForMemory(StrCat("sh -c ", QuoteForShell(too_much)))).ok());
  ASSERT_TRUE(Launch(3, WatchedForMemory("(exit 3)")).ok());
  AwaitExits({2, 3});
  EXPECT_EQ(exits_[2].back(), 128 + SIGKILL);
  EXPECT_THAT(lines_[2], ::testing::Contains(::testing::HasSubstr(kProbablyOutOfMemory)));
  EXPECT_EQ(exits_[3].back(), 3);
  EXPECT_TRUE(lines_[3].empty());
}

TEST_F(LocalLauncherTest, ProcessesTellTheirOutputAndExit) {
  const auto first = Launch(0, "echo $NAME; exit 3");
  const auto second = Launch(7, "echo other");
  ASSERT_TRUE(first.ok() && second.ok());
  EXPECT_GT(first->pid, 0);
  EXPECT_NE(first->pid, second->pid);
  EXPECT_NE(first->host, "");
  AwaitExits({0, 7});
  EXPECT_THAT(lines_[0], ElementsAre("value"));
  EXPECT_THAT(lines_[7], ElementsAre("other"));
  EXPECT_THAT(exits_[0], ElementsAre(3));
  EXPECT_THAT(exits_[7], ElementsAre(0));
}

TEST_F(LocalLauncherTest, OneIsKilledWithoutTheOthers) {
  ASSERT_TRUE(Launch(0, "exec sleep 1000").ok());
  ASSERT_TRUE(Launch(1, "exec sleep 1000").ok());
  OnLoop([this] {
    EXPECT_TRUE(launcher_->HasLaunched(1));
    EXPECT_FALSE(launcher_->HasLaunched(2));
    launcher_->Kill(1);
    launcher_->Kill(2);
  });
  AwaitExits({1});
  EXPECT_THAT(exits_[1], ElementsAre(128 + 9));
  OnLoop([this] {
    EXPECT_FALSE(launcher_->IsFinished(0));
    EXPECT_TRUE(launcher_->IsFinished(2));
  });
}

TEST_F(LocalLauncherTest, AProcessReadsItsInput) {
  OnLoop([this] {
    LaunchCommand command;
    command.arguments = {"/bin/sh", "-c", "read line; echo \"got $line\"; read more || echo end"};
    command.input = "a secret\n";
    EXPECT_TRUE(launcher_->Launch(command).ok());
    command.rank = 1;
    command.input = std::string(kMaxInputBytes + 1, 'x');
    EXPECT_FALSE(launcher_->Launch(command).ok());
  });
  AwaitExits({0});
  EXPECT_THAT(lines_[0], ElementsAre("got a secret", "end"));
}

TEST_F(LocalLauncherTest, ARemoteProcessHasNoPidAndItsSignalIsTold) {
  OnLoop([this] {
    LaunchCommand command;
    command.arguments = {"/bin/sh", "-c", "exit 137"};
    command.remote_host = "elsewhere";
    const absl::StatusOr<LaunchedProcess> launched = launcher_->Launch(command);
    ASSERT_TRUE(launched.ok()) << launched.status();
    EXPECT_EQ(launched->pid, 0);
    EXPECT_EQ(launched->host, "elsewhere");
    command.rank = 1;
    command.arguments = {"/bin/sh", "-c", "exit 255"};
    EXPECT_TRUE(launcher_->Launch(command).ok());
  });
  AwaitExits({0, 1});
  EXPECT_THAT(exits_[0], ElementsAre(128 + 9));
  EXPECT_THAT(exits_[1], ElementsAre(255));
  EXPECT_TRUE(WIFSIGNALED(wait_statuses_[0]));
  EXPECT_TRUE(WIFEXITED(wait_statuses_[1]));
}

TEST_F(LocalLauncherTest, WhatCannotBeLaunchedIsNamed) {
  ASSERT_TRUE(Launch(0, "exit 0").ok());
  EXPECT_THAT(Launch(0, "exit 0").status().ToString(), HasSubstr("rank 0 was launched before"));
  OnLoop([this] {
    EXPECT_THAT(launcher_->Launch({1, {"/nowhere/node"}, {}, {}}).status().ToString(),
                HasSubstr("/nowhere/node: No such file"));
  });
}

}  // namespace
}  // namespace penstock::actors
