// `penstock run --procs` as a user has it: signals from the keyboard, deaths, exit statuses, and
// what is left behind.

#include "cli/processes.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/child_process.h"
#include "base/strings.h"
#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBound{5};
constexpr std::chrono::seconds kPatience{60};

// Processes whose parent is `pid`.
std::vector<int> ChildrenOf(int pid) {
  std::vector<int> children;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    int candidate = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &candidate)) continue;
    std::ifstream stream(entry.path() / "stat");
    const std::string text{std::istreambuf_iterator<char>(stream), {}};
    const size_t end = text.rfind(')');
    int parent = 0;
    if (end == std::string::npos || end + 4 > text.size()) continue;
    const size_t begin = end + 4;
    if (absl::SimpleAtoi(text.substr(begin, text.find(' ', begin) - begin), &parent) &&
        parent == pid) {
      children.push_back(candidate);
    }
  }
  return children;
}

bool IsAlive(int pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

// A job that trains for ever over two processes.
class ProcessesTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& more = {}, const char* processes = "2") {
    const std::string text = folder_.Path("text.txt");
    std::ofstream stream(text);
    for (int i = 0; i < 4000; ++i) stream << "the quick brown fox " << i * i << "\n";
    stream.close();
    actors::ChildCommand command;
    command.arguments = {PENSTOCK_COMMAND, "run",     PENSTOCK_SOURCE_DIR "/examples/gpt/demo.toml",
                         "--procs",        processes, "--json"};
    for (const std::string& setting :
         {std::string("model.layers=1"), std::string("model.width=32"),
          std::string("model.context=16"), std::string("train.batch=4"),
          std::string("train.steps=1000000"), StrCat("data.text=[\"", text, "\"]")}) {
      command.arguments.insert(command.arguments.end(), {"--set", setting});
    }
    command.arguments.insert(command.arguments.end(), more.begin(), more.end());
    absl::StatusOr<actors::ChildProcess> child = actors::ChildProcess::Start(command);
    ASSERT_TRUE(child.ok()) << child.status();
    run_.emplace(*std::move(child));
    output_fd_ = run_->TakeOutputFd();
    fcntl(output_fd_, F_SETFL, O_NONBLOCK);
  }

  ~ProcessesTest() override {
    if (output_fd_ >= 0) close(output_fd_);
  }

  // Reads on until the output holds `text`.
  [[nodiscard]] bool AwaitOutput(std::string_view text) {
    const auto begin = Clock::now();
    while (output_.find(text) == std::string::npos) {
      if (Clock::now() - begin > kPatience || !ReadSome()) return false;
    }
    return true;
  }

  // Waits for the end of the command; its status, as a shell tells it.
  std::optional<int> AwaitEnd() {
    const auto begin = Clock::now();
    while (Clock::now() - begin < kPatience) {
      while (ReadSome(10)) {
      }
      if (const std::optional<int> status = run_->Reap()) {
        while (ReadSome(0)) {
        }
        return actors::ShellStatus(*status);
      }
    }
    return std::nullopt;
  }

  // Whether all of these are gone within the bound.
  static bool AreGone(const std::vector<int>& pids) {
    const auto begin = Clock::now();
    while (Clock::now() - begin < kBound) {
      bool is_any_alive = false;
      for (const int pid : pids) is_any_alive |= IsAlive(pid);
      if (!is_any_alive) return true;
      std::this_thread::yield();
    }
    return false;
  }

  // False at the end of the output, or when there is none for a while.
  bool ReadSome(int timeout_ms = 60'000) {
    pollfd poll_fd = {output_fd_, POLLIN, 0};
    if (poll(&poll_fd, 1, timeout_ms) <= 0) return false;
    char buffer[4096];
    const ssize_t num_bytes = read(output_fd_, buffer, sizeof(buffer));
    if (num_bytes <= 0) return false;
    output_.append(buffer, static_cast<size_t>(num_bytes));
    return true;
  }

  const testing::TempFolder folder_;
  std::optional<actors::ChildProcess> run_;
  int output_fd_ = -1;
  std::string output_;
};

TEST_F(ProcessesTest, OneInterruptEndsTheJobAfterAStep) {
  Start();
  ASSERT_TRUE(AwaitOutput("\"step\": 3")) << output_;
  const std::vector<int> nodes = ChildrenOf(run_->pid());
  EXPECT_EQ(nodes.size(), 2u);
  const auto begin = Clock::now();
  kill(run_->pid(), SIGINT);
  EXPECT_EQ(AwaitEnd(), 128 + SIGINT);
  EXPECT_LT(Clock::now() - begin, kBound);
  EXPECT_THAT(output_, HasSubstr("interrupted (Interrupt) after step"));
  EXPECT_TRUE(AreGone(nodes));
}

TEST_F(ProcessesTest, TwoInterruptsEndItAtOnce) {
  Start();
  ASSERT_TRUE(AwaitOutput("\"step\": 3")) << output_;
  const std::vector<int> nodes = ChildrenOf(run_->pid());
  // A step that cannot end: one node stands still.
  for (const int node : nodes) kill(node, SIGSTOP);
  const auto begin = Clock::now();
  kill(run_->pid(), SIGINT);
  ASSERT_TRUE(AwaitOutput("again: at once")) << output_;
  kill(run_->pid(), SIGINT);
  EXPECT_EQ(AwaitEnd(), 128 + SIGINT);
  EXPECT_LT(Clock::now() - begin, 2 * kBound);
  EXPECT_THAT(output_, HasSubstr("interrupted (Interrupt)"));
  EXPECT_TRUE(AreGone(nodes));
}

TEST_F(ProcessesTest, ATerminationEndsItAtOnce) {
  Start();
  ASSERT_TRUE(AwaitOutput("\"step\": 3")) << output_;
  const std::vector<int> nodes = ChildrenOf(run_->pid());
  const auto begin = Clock::now();
  kill(run_->pid(), SIGTERM);
  EXPECT_EQ(AwaitEnd(), 128 + SIGTERM);
  EXPECT_LT(Clock::now() - begin, kBound);
  EXPECT_TRUE(AreGone(nodes));
}

TEST_F(ProcessesTest, ANodeThatIsKilledGivesTheStatus) {
  Start();
  ASSERT_TRUE(AwaitOutput("\"step\": 3")) << output_;
  const std::vector<int> nodes = ChildrenOf(run_->pid());
  ASSERT_EQ(nodes.size(), 2u);
  const auto begin = Clock::now();
  kill(nodes[0], SIGKILL);
  EXPECT_EQ(AwaitEnd(), 128 + SIGKILL);
  EXPECT_LT(Clock::now() - begin, kBound);
  EXPECT_THAT(output_, HasSubstr(StrCat("(pid ", nodes[0], " on ")));
  EXPECT_THAT(output_, HasSubstr("was killed by signal 9 (Killed) in step"));
  EXPECT_TRUE(AreGone(nodes));
}

// Validation and sample run over the processes, by the layout of the training.
TEST_F(ProcessesTest, TheTrainedModelIsTriedWhereItLies) {
  std::vector<std::string> summaries;
  for (const char* processes : {"1", "2"}) {
    output_.clear();
    Start({"--devices", "2", "--set", "train.steps=2", "--set", "sample.bytes=8", "--set",
           "train.validation_sequences=3", "--set", "parallel.strategy=\"tp=2\""},
          processes);
    ASSERT_EQ(AwaitEnd(), 0) << output_;
    close(output_fd_);
    const size_t begin = output_.find("\"validation_loss\"");
    ASSERT_NE(begin, std::string::npos) << output_;
    summaries.push_back(output_.substr(begin, output_.find("\"step_time_s\"", begin) - begin));
    EXPECT_THAT(summaries.back(), HasSubstr("\"sample\""));
  }
  output_fd_ = -1;
  EXPECT_EQ(summaries[0], summaries[1]);
}

class CoordinatorDeathTest : public ProcessesTest, public ::testing::WithParamInterface<int> {};

TEST_P(CoordinatorDeathTest, EndsTheNodes) {
  for (const bool is_training : {false, true}) {
    output_.clear();
    Start();
    if (is_training) {
      ASSERT_TRUE(AwaitOutput("\"step\": 3")) << output_;
    } else {
      const auto begin = Clock::now();
      while (ChildrenOf(run_->pid()).size() < 2 && Clock::now() - begin < kPatience) {
      }
    }
    const std::vector<int> nodes = ChildrenOf(run_->pid());
    ASSERT_EQ(nodes.size(), 2u);
    kill(run_->pid(), GetParam());
    // Orphans are reaped by whoever adopts them: gone, or dead and not reaped yet.
    const auto begin = Clock::now();
    for (const int node : nodes) {
      bool is_running = true;
      while (is_running && Clock::now() - begin < 2 * kBound) {
        std::ifstream stream(StrCat("/proc/", node, "/stat"));
        const std::string text{std::istreambuf_iterator<char>(stream), {}};
        const size_t end = text.rfind(')');
        is_running = end != std::string::npos && text[end + 2] != 'Z';
      }
      EXPECT_FALSE(is_running) << "node " << node << " outlives its coordinator";
    }
    EXPECT_LT(Clock::now() - begin, kBound + std::chrono::seconds(1));
    kill(run_->pid(), SIGKILL);
    AwaitEnd();
    close(std::exchange(output_fd_, -1));
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, CoordinatorDeathTest,
                         ::testing::Values(SIGKILL, SIGSEGV, SIGSTOP),
                         [](const ::testing::TestParamInfo<int>& info) {
                           return info.param == SIGKILL   ? "Killed"
                                  : info.param == SIGSEGV ? "Crashed"
                                                          : "Stopped";
                         });

TEST(PlacementNotesTest, TellWhatDoesNotFit) {
  const auto notes = [](const std::vector<std::string>& hosts, int64_t num_hosts) {
    std::vector<actors::NodeDescription> nodes;
    for (const std::string& host : hosts) {
      nodes.emplace_back().host = host;
      nodes.back().rank = static_cast<uint32_t>(nodes.size() - 1);
    }
    return PlacementNotes(nodes, num_hosts);
  };
  EXPECT_EQ(notes({"a", "a", "b", "b"}, 2), "");
  EXPECT_EQ(notes({"a", "a", "a"}, 2), "") << "a plan for several hosts may be tried on one";
  EXPECT_EQ(notes({"a", "b"}, 0), "");
  EXPECT_THAT(notes({"a", "b", "c"}, 1), HasSubstr("cluster.hosts = 3 makes"));
  EXPECT_THAT(notes({"a", "b", "a"}, 2), HasSubstr("penstock node --rank"));
}

}  // namespace
}  // namespace penstock::cli
