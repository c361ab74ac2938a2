// `penstock run --procs` as a user has it: signals from the keyboard, deaths, exit statuses, and
// what is left behind.

#include "cli/processes.h"

#include <dirent.h>
#include <sched.h>
#include <signal.h>

#include <chrono>
#include <cstdlib>
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

#include "base/machine.h"
#include "base/strings.h"
#include "tests/support/program.h"
#include "tests/support/temp_folder.h"

namespace penstock::cli {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::HasSubstr;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kBound{5};
constexpr std::chrono::seconds kPatience{60};

// The file of /proc; empty: the process is gone, maybe while it was read.
std::string ReadStat(const std::string& process) {
  std::ifstream stream(StrCat("/proc/", process, "/stat"));
  std::string text;
  std::getline(stream, text);
  return text;
}

// Processes whose parent is `pid`.
std::vector<int> ChildrenOf(int pid) {
  std::vector<int> children;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator("/proc", error)) {
    int candidate = 0;
    if (!absl::SimpleAtoi(entry.path().filename().string(), &candidate)) continue;
    const std::string text = ReadStat(entry.path().filename().string());
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
    std::vector<std::string> arguments = {
        PENSTOCK_COMMAND, "run",     PENSTOCK_SOURCE_DIR "/examples/gpt/demo.toml",
        "--procs",        processes, "--json"};
    for (const std::string& setting :
         {std::string("model.layers=1"), std::string("model.width=32"),
          std::string("model.context=16"), std::string("train.batch=4"),
          std::string("train.steps=1000000"), StrCat("data.text=[\"", text, "\"]")}) {
      arguments.insert(arguments.end(), {"--set", setting});
    }
    arguments.insert(arguments.end(), more.begin(), more.end());
    run_.emplace(arguments);
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

  const testing::TempFolder folder_;
  std::optional<testing::Program> run_;
};

TEST_F(ProcessesTest, OneInterruptEndsTheJobAfterAStep) {
  Start();
  ASSERT_TRUE(run_->AwaitOutput("\"step\": 3")) << run_->output();
  const std::vector<int> nodes = ChildrenOf(run_->pid());
  EXPECT_EQ(nodes.size(), 2u);
  const auto begin = Clock::now();
  kill(run_->pid(), SIGINT);
  EXPECT_EQ(run_->AwaitEnd(), 128 + SIGINT);
  EXPECT_LT(Clock::now() - begin, kBound);
  EXPECT_THAT(run_->output(), HasSubstr("interrupted (Interrupt) after step"));
  EXPECT_TRUE(AreGone(nodes));
}

// What ran is not lost.
TEST_F(ProcessesTest, AnInterruptedJobWritesWhatItWasAskedFor) {
  Start({"--trace", folder_.Path("trace.json"), "--svg", folder_.Path("step.svg"), "--report",
         folder_.Path("report.md")});
  ASSERT_TRUE(run_->AwaitOutput("\"step\": 5")) << run_->output();
  kill(run_->pid(), SIGINT);
  EXPECT_EQ(run_->AwaitEnd(), 128 + SIGINT);
  const auto read = [this](const char* name) {
    std::ifstream stream(folder_.Path(name));
    return std::string{std::istreambuf_iterator<char>(stream), {}};
  };
  const size_t at = run_->output().find("after step ");
  ASSERT_NE(at, std::string::npos) << run_->output();
  const std::string rest = run_->output().substr(at + 11);
  const std::string steps = rest.substr(0, rest.find_first_not_of("0123456789"));
  EXPECT_THAT(run_->output(), HasSubstr(StrCat("\"steps\": ", steps)));  // the summary
  EXPECT_THAT(read("report.md"), HasSubstr(StrCat(steps, " steps, final loss")));
  EXPECT_THAT(read("report.md"), HasSubstr("## Phases"));
  EXPECT_THAT(read("step.svg"), HasSubstr(StrCat(", step ", steps, ": ")));
  // F may have ended before this process took note of the end of the step before.
  EXPECT_THAT(read("step.svg"),
              ::testing::AnyOf(HasSubstr("<title>F 0: "), HasSubstr("<title>B 0: ")));
  EXPECT_THAT(read("trace.json"), HasSubstr(StrCat("\"step\":", steps)));
}

// Also where it evaluates when the interrupt comes, and when it has to be aborted: in one
// process nothing recorded is lost.
TEST_F(ProcessesTest, AJobOfOneProcessWritesItsTraceHoweverItEnds) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Start({"--devices", "1", "--set", "parallel.strategy=\"dp=1\"", "--trace",
           folder_.Path("trace.json"), "--set", "train.validation_every=2", "--set",
           "train.validation_sequences=100000"},
          "1");
    // Step 2 is reported with its validation: the next steps have begun.
    ASSERT_TRUE(run_->AwaitOutput("\"step\": 2")) << run_->output();
    kill(run_->pid(), signal);
    if (signal == SIGINT) kill(run_->pid(), signal);
    EXPECT_EQ(run_->AwaitEnd(), 128 + signal) << run_->output();
    std::ifstream stream(folder_.Path("trace.json"));
    const std::string trace{std::istreambuf_iterator<char>(stream), {}};
    EXPECT_THAT(trace, HasSubstr("\"step\":2")) << run_->output();
    EXPECT_THAT(run_->output(), HasSubstr("\"summary\""));
  }
}

// What the processes have recorded is lost with them: there is no trace, not an empty one.
TEST_F(ProcessesTest, ATerminatedJobWritesNoFilesWithoutContents) {
  Start({"--trace", folder_.Path("trace.json"), "--svg", folder_.Path("step.svg"), "--report",
         folder_.Path("report.md")});
  ASSERT_TRUE(run_->AwaitOutput("\"step\": 5")) << run_->output();
  kill(run_->pid(), SIGTERM);
  EXPECT_EQ(run_->AwaitEnd(), 128 + SIGTERM);
  EXPECT_FALSE(fs::exists(folder_.Path("trace.json")));
  EXPECT_FALSE(fs::exists(folder_.Path("step.svg")));
  EXPECT_THAT(run_->output(),
              HasSubstr(StrCat("note: the job was aborted, so the trace of its processes is "
                               "lost; not written: ",
                               folder_.Path("trace.json"), ", ", folder_.Path("step.svg"), "\n")));
  std::ifstream stream(folder_.Path("report.md"));
  const std::string report{std::istreambuf_iterator<char>(stream), {}};
  EXPECT_THAT(report, HasSubstr(" steps, final loss"));
}

// Nor is there anything to write before the first step.
TEST_F(ProcessesTest, AJobThatIsTerminatedBeforeAStepWritesNothing) {
  for (const char* processes : {"1", "2"}) {
    Start({"--trace", folder_.Path("trace.json"), "--svg", folder_.Path("step.svg"), "--report",
           folder_.Path("report.md")},
          processes);
    ASSERT_TRUE(run_->AwaitOutput("plan: ")) << run_->output();
    kill(run_->pid(), SIGTERM);
    EXPECT_EQ(run_->AwaitEnd(), 128 + SIGTERM) << run_->output();
    if (run_->output().find("\"step\": 1") != std::string::npos) continue;  // it was late
    for (const char* name : {"trace.json", "step.svg", "report.md"}) {
      EXPECT_FALSE(fs::exists(folder_.Path(name))) << name;
    }
  }
}

TEST_F(ProcessesTest, TwoInterruptsEndItAtOnce) {
  Start();
  ASSERT_TRUE(run_->AwaitOutput("\"step\": 3")) << run_->output();
  const std::vector<int> nodes = ChildrenOf(run_->pid());
  // A step that cannot end: one node stands still.
  for (const int node : nodes) kill(node, SIGSTOP);
  const auto begin = Clock::now();
  kill(run_->pid(), SIGINT);
  ASSERT_TRUE(run_->AwaitOutput("again: at once")) << run_->output();
  kill(run_->pid(), SIGINT);
  EXPECT_EQ(run_->AwaitEnd(), 128 + SIGINT);
  EXPECT_LT(Clock::now() - begin, 2 * kBound);
  EXPECT_THAT(run_->output(), HasSubstr("interrupted (Interrupt)"));
  EXPECT_TRUE(AreGone(nodes));
}

TEST_F(ProcessesTest, ATerminationEndsItAtOnce) {
  Start();
  ASSERT_TRUE(run_->AwaitOutput("\"step\": 3")) << run_->output();
  const std::vector<int> nodes = ChildrenOf(run_->pid());
  const auto begin = Clock::now();
  kill(run_->pid(), SIGTERM);
  EXPECT_EQ(run_->AwaitEnd(), 128 + SIGTERM);
  EXPECT_LT(Clock::now() - begin, kBound);
  EXPECT_TRUE(AreGone(nodes));
}

TEST_F(ProcessesTest, ANodeThatIsKilledGivesTheStatus) {
  Start();
  ASSERT_TRUE(run_->AwaitOutput("\"step\": 3")) << run_->output();
  const std::vector<int> nodes = ChildrenOf(run_->pid());
  ASSERT_EQ(nodes.size(), 2u);
  const auto begin = Clock::now();
  kill(nodes[0], SIGKILL);
  EXPECT_EQ(run_->AwaitEnd(), 128 + SIGKILL);
  EXPECT_LT(Clock::now() - begin, kBound);
  EXPECT_THAT(run_->output(), HasSubstr(StrCat("(pid ", nodes[0], " on ")));
  EXPECT_THAT(run_->output(), HasSubstr("was killed by signal 9 (Killed) in step"));
  EXPECT_TRUE(AreGone(nodes));
}

// Validation and sample run over the processes, by the layout of the training.
TEST_F(ProcessesTest, TheReplayedBoundIsThatOfTheLinks) {
  const auto bound = [this](std::vector<std::string> settings) {
    settings.insert(settings.end(),
                    {"--set", "train.steps=4", "--set", "sample.bytes=0", "--set",
                     "train.validation_sequences=0", "--trace", folder_.Path("trace.json")});
    Start(settings);
    EXPECT_EQ(run_->AwaitEnd(), 0) << run_->output();
    const std::string_view key = "\"replayed_step_time_s\": ";
    const std::string output = run_->output();
    const size_t at = output.find(key);
    double seconds = 0;
    if (at != std::string::npos) seconds = std::strtod(output.c_str() + at + key.size(), nullptr);
    EXPECT_GT(seconds, 0) << output;
    return seconds;
  };
  EXPECT_LT(bound({}), 2);
  // Two devices of dp=2 a process: at least the gradients of a device, some 100 kB, at 100 kB/s.
  EXPECT_GT(bound({"--set", "cluster.link_gbit_per_s=0.0008"}), 0.5);
  EXPECT_GT(bound({"--set", "cluster.link_latency_us=2e6"}), 2);
}

// As under taskset: both nodes are started on the one processor that this process may use.
TEST_F(ProcessesTest, AProcessorOfTwoProcessesIsCountedOnce) {
  cpu_set_t all;
  CPU_ZERO(&all);
  ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
  cpu_set_t one;
  CPU_ZERO(&one);
  for (size_t i = 0; CPU_COUNT(&one) == 0; ++i) {
    if (CPU_ISSET(i, &all)) CPU_SET(i, &one);
  }
  ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
  Start({"--devices", "2", "--set", "parallel.strategy=\"dp=2\"", "--set", "cluster.threads=1",
         "--set", "train.steps=2", "--set", "sample.bytes=0", "--set",
         "train.validation_sequences=0"});
  ASSERT_EQ(sched_setaffinity(0, sizeof(all), &all), 0);
  EXPECT_EQ(run_->AwaitEnd(), 0) << run_->output();
  EXPECT_THAT(run_->output(), HasSubstr("note: 2 devices share 1 core of "));
}

TEST_F(ProcessesTest, TheTrainedModelIsTriedWhereItLies) {
  std::vector<std::string> summaries;
  for (const char* processes : {"1", "2"}) {
    Start({"--devices", "2", "--set", "train.steps=2", "--set", "sample.bytes=8", "--set",
           "train.validation_sequences=3", "--set", "parallel.strategy=\"tp=2\""},
          processes);
    ASSERT_EQ(run_->AwaitEnd(), 0) << run_->output();
    const std::string& output = run_->output();
    const size_t begin = output.find("\"validation_loss\"");
    ASSERT_NE(begin, std::string::npos) << output;
    summaries.push_back(output.substr(begin, output.find("\"step_time_s\"", begin) - begin));
    EXPECT_THAT(summaries.back(), HasSubstr("\"sample\""));
  }
  EXPECT_EQ(summaries[0], summaries[1]);
}

class CoordinatorDeathTest : public ProcessesTest, public ::testing::WithParamInterface<int> {};

TEST_P(CoordinatorDeathTest, EndsTheNodes) {
  for (const bool is_training : {false, true}) {
    Start();
    if (is_training) {
      ASSERT_TRUE(run_->AwaitOutput("\"step\": 3")) << run_->output();
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
        const std::string text = ReadStat(StrCat(node));
        const size_t end = text.rfind(')');
        is_running = end != std::string::npos && text[end + 2] != 'Z';
      }
      EXPECT_FALSE(is_running) << "node " << node << " outlives its coordinator";
    }
    EXPECT_LT(Clock::now() - begin, kBound + std::chrono::seconds(1));
    kill(run_->pid(), SIGKILL);
    run_->AwaitEnd();
  }
}

INSTANTIATE_TEST_SUITE_P(Signals, CoordinatorDeathTest,
                         ::testing::Values(SIGKILL, SIGSEGV, SIGHUP, SIGSTOP),
                         [](const ::testing::TestParamInfo<int>& info) {
                           return info.param == SIGKILL   ? "Killed"
                                  : info.param == SIGSEGV ? "Crashed"
                                  : info.param == SIGHUP  ? "HungUp"
                                                          : "Stopped";
                         });

actors::NodeDescription NodeOn(const std::string& host, std::vector<uint32_t> processors) {
  actors::NodeDescription node;
  node.host = host;
  node.cores.processors = std::move(processors);
  node.num_devices = 2;
  return node;
}

TEST(OversubscriptionNoteTest, CountsTheCoresOfEachHost) {
  EXPECT_EQ(OversubscriptionNote({}, 1, 1), "");
  EXPECT_THAT(OversubscriptionNote({}, 4096, 1),
              AllOf(HasSubstr("4096 devices share "),
                    EndsWith(": expect longer steps than on 4096 cores")));
  const actors::NodeDescription a = NodeOn("a", {0, 1});
  actors::NodeDescription b = NodeOn("a", {2, 3});
  EXPECT_EQ(OversubscriptionNote({a, b}, 4, 1), "");
  b.num_devices = 3;
  EXPECT_THAT(OversubscriptionNote({a, b}, 5, 1), HasSubstr("3 devices share 2 cores of a: "));
  b.host = "b";
  EXPECT_THAT(OversubscriptionNote({a, b}, 5, 1), HasSubstr("3 devices share 2 cores of b: "));
  EXPECT_THAT(OversubscriptionNote({a}, 2, 2),
              HasSubstr("2 devices of 2 threads each share 2 cores of a: expect longer steps "
                        "than on 4 cores"));
}

// Two processes of one device each that may use the same core, on a host with more cores.
TEST(OversubscriptionNoteTest, CountsOverlappingMasksAndQuotasOnce) {
  actors::NodeDescription a = NodeOn("a", {0});
  a.num_devices = 1;
  EXPECT_THAT(OversubscriptionNote({a, a}, 2, 1), HasSubstr("2 devices share 1 core of a: "));
  a.cores = {{0, 1}, {{"28:17", 1.0}}};
  actors::NodeDescription b = a;
  b.cores.processors = {2, 3};
  EXPECT_THAT(OversubscriptionNote({a, b}, 2, 1), HasSubstr("2 devices share 1 core of a: "));
  b.cores.quotas[0].group = "28:18";
  EXPECT_EQ(OversubscriptionNote({a, b}, 2, 1), "");
}

TEST(CoresOfDevicesTest, ProcessesOnCoresOfTheirOwnAreGroups) {
  actors::SharedCores cores = CoresOfDevices({}, 3, 1);
  EXPECT_THAT(cores.groups, ElementsAre(0, 0, 0));
  EXPECT_THAT(cores.num_at_once, ElementsAre(UsableCores()));
  actors::NodeDescription a = NodeOn("a", {0, 1});
  actors::NodeDescription b = NodeOn("a", {2, 3});
  b.first_device = 2;
  cores = CoresOfDevices({a, b}, 4, 1);
  EXPECT_THAT(cores.groups, ElementsAre(0, 0, 1, 1));
  EXPECT_THAT(cores.num_at_once, ElementsAre(2, 2));
  EXPECT_THAT(CoresOfDevices({a, b}, 4, 8).num_at_once, ElementsAre(1, 1));
  // Both may use some of the same cores: so they share what they have together.
  a.cores.processors = {0, 1, 2, 3};
  cores = CoresOfDevices({a, b}, 4, 2);
  EXPECT_THAT(cores.groups, ElementsAre(0, 0, 0, 0));
  EXPECT_THAT(cores.num_at_once, ElementsAre(2));
}

TEST(PlacementNotesTest, TellWhatDoesNotFit) {
  const auto notes = [](const std::vector<std::string>& hosts,
                        const std::vector<uint32_t>& host_devices) {
    std::vector<actors::NodeDescription> nodes;
    for (const std::string& host : hosts) {
      nodes.emplace_back().host = host;
      nodes.back().rank = static_cast<uint32_t>(nodes.size() - 1);
      nodes.back().num_devices = 1;
    }
    return PlacementNotes(nodes, host_devices);
  };
  EXPECT_EQ(notes({"a", "a", "b", "b"}, {2, 2}), "");
  EXPECT_EQ(notes({"a", "a", "a"}, {1, 2}), "") << "a plan for several hosts may be tried on one";
  EXPECT_EQ(notes({"a", "b"}, {}), "");
  EXPECT_THAT(notes({"a", "b", "c"}, {3}),
              HasSubstr("cluster.hosts = 3 plans collectives for them"));
  EXPECT_THAT(notes({"a", "b", "a"}, {2, 1}), HasSubstr("penstock node --rank"));
  EXPECT_EQ(notes({"a", "a", "a", "b"}, {3, 1}), "");
  EXPECT_THAT(notes({"a", "a", "a", "b"}, {2, 2}),
              HasSubstr("note: a has 3 devices, not 2 as the job says of host 1; cluster.host "));
}

}  // namespace
}  // namespace penstock::cli
