// Jobs over real processes on this host: what they compute, tell and leave.

#include "actors/cluster/cluster.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/status_client.h"
#include "actors/engine/device_memory.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/stall_detector.h"
#include "actors/session/session.h"
#include "base/collective.h"
#include "base/strings.h"
#include "tests/programs/faulty_node.h"
#include "tests/support/cluster_fixture.h"
#include "tests/support/engine_plan.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using testing::ClusterTest;
using ::testing::ContainsRegex;
using testing::Fault;
using ::testing::HasSubstr;
using testing::IsAlive;
using testing::kBound;
using testing::kSlowdown;

int NumOpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

// On CPU devices and on emulated ones.
class ClusterDevicesTest : public ClusterTest, public ::testing::WithParamInterface<std::string> {
 protected:
  static ClusterOptions Options() {
    ClusterOptions options = ClusterTest::Options(2);
    options.node_command.insert(options.node_command.end(), {"--devices", GetParam()});
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, ClusterDevicesTest, ::testing::Values("cpu", "emulated", "mixed"),
                         [](const auto& info) { return info.param; });

TEST_P(ClusterDevicesTest, StepsStatesAndTracesAreThoseOfOneProcess) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  ASSERT_EQ((*cluster)->nodes().size(), 2u);
  EXPECT_EQ((*cluster)->nodes()[1].rank, 1u);
  EXPECT_GT((*cluster)->nodes()[1].memory_bytes, 0u);
  SessionOptions options;
  options.kernels = &kernels_;
  options.trace = true;
  options.start_engine = (*cluster)->engine_factory();
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(MakePlan(4), options);
  ASSERT_TRUE(session.ok()) << session.status();
  for (int step = 1; step <= 3; ++step) {
    const absl::StatusOr<StepResult> result = (*session)->Run(MakeFeeds(4));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->Find("s")->As<float>()[0], -8);
    for (int i = 0; i < 8; ++i) EXPECT_EQ(result->Find("y")->As<float>()[i], -1);
    EXPECT_EQ(result->devices.size(), 4u);
    const absl::StatusOr<Tensor> state = (*session)->Fetch("c");
    ASSERT_TRUE(state.ok()) << state.status();
    EXPECT_EQ(state->As<float>()[7], -step);
  }
  Tensor value({DType::kF32, {8}});
  for (int i = 0; i < 8; ++i) value.As<float>()[i] = static_cast<float>(i);
  ASSERT_TRUE((*session)->SetState("c", value).ok());
  const absl::StatusOr<Tensor> state = (*session)->Fetch("c");
  ASSERT_TRUE(state.ok()) << state.status();
  for (int i = 0; i < 8; ++i) EXPECT_EQ(state->As<float>()[i], i);
  std::set<uint32_t> traced;
  for (const TraceEvent& event : (*session)->TakeTrace()) traced.insert(event.device);
  EXPECT_EQ(traced.size(), 4u);
}

// Feeds, fetches and states of many chunks, and steps that follow each other closely.
TEST_P(ClusterDevicesTest, LongDataAreThoseOfOneProcess) {
  constexpr int kSize = 3'000'001;  // 12 MB
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options());
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions options;
  options.kernels = &kernels_;
  options.start_engine = (*cluster)->engine_factory();
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(MakePlan(4, kSize), options);
  ASSERT_TRUE(session.ok()) << session.status();
  Tensor x({DType::kF32, {kSize}});
  Tensor state({DType::kF32, {kSize}});
  for (int i = 0; i < kSize; ++i) {
    x.As<float>()[i] = static_cast<float>(i % 1000);
    state.As<float>()[i] = static_cast<float>(i);
  }
  ASSERT_TRUE((*session)->SetState("c", state).ok());
  std::vector<int64_t> steps;
  for (int i = 0; i < 3; ++i) {
    const absl::StatusOr<int64_t> step = (*session)->Submit({{"x", x}});
    ASSERT_TRUE(step.ok()) << step.status();
    steps.push_back(*step);
  }
  for (const int64_t step : steps) {
    const absl::StatusOr<StepResult> result = (*session)->Wait(step);
    ASSERT_TRUE(result.ok()) << result.status();
    const float* y = result->Find("y")->As<float>();
    for (int i = 0; i < kSize; ++i) ASSERT_EQ(y[i], -static_cast<float>(i % 1000)) << i;
  }
  const absl::StatusOr<Tensor> sums = (*session)->Fetch("c");
  ASSERT_TRUE(sums.ok()) << sums.status();
  for (int i = 0; i < kSize; ++i) {
    ASSERT_EQ(sums->As<float>()[i], static_cast<float>(i) - 3 * static_cast<float>(i % 1000)) << i;
  }
}

TEST_F(ClusterTest, SessionsFollowOneAnother) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  for (int i = 0; i < 10; ++i) {
    absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 2 + i % 3);
    ASSERT_TRUE(session.ok()) << session.status();
    const absl::StatusOr<StepResult> result = (*session)->Run(MakeFeeds(2 + i % 3));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->Find("s")->As<float>()[0], -8);
  }
  EXPECT_THAT(StartSession(**cluster, 1).status().ToString(), HasSubstr("2 processes"));
}

// One that waits keeps its place and its states while another runs.
TEST_F(ClusterTest, SessionsRunBesideEachOther) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> first = StartSession(**cluster, 4);
  ASSERT_TRUE(first.ok()) << first.status();
  for (int i = 1; i <= 3; ++i) {
    ASSERT_TRUE((*first)->Run(MakeFeeds(4)).ok());
    absl::StatusOr<std::unique_ptr<Session>> second = StartSession(**cluster, 2);
    ASSERT_TRUE(second.ok()) << second.status();
    for (auto& session : {&*first, &*second}) ASSERT_TRUE((*session)->Run(MakeFeeds(4)).ok());
    EXPECT_EQ((*second)->Fetch("c")->As<float>()[0], -1);
    EXPECT_EQ((*first)->Fetch("c")->As<float>()[0], -2 * i);
  }
  // The loss of a node ends all of them.
  absl::StatusOr<std::unique_ptr<Session>> second = StartSession(**cluster, 2);
  ASSERT_TRUE(second.ok()) << second.status();
  kill((*cluster)->nodes()[1].pid, SIGKILL);
  for (auto& session : {&*first, &*second}) {
    const absl::Status status = (*session)->Run(MakeFeeds(4)).status();
    EXPECT_THAT(status.ToString(), HasSubstr("killed by signal 9"));
    EXPECT_EQ(OriginOf(status).rank, 1);
  }
}

// A node that is stopped is named, and others are seen all the same; the inspector outlives the
// job.
TEST_F(ClusterTest, TheInspectorSeesTheNodes) {
  ClusterOptions cluster_options = Options(2);
  cluster_options.heartbeat_timeout = absl::Minutes(5);
  cluster_options.listen = "127.0.0.1:0";
  StatusAddress address;
  cluster_options.on_listening = [&](const std::string& at, const std::string& key) {
    address = {at, key};
  };
  cluster_options.status_answers = std::make_shared<StatusAnswers>([] {
    JobStatus status;
    status.name = "a job";
    return status;
  });
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(cluster_options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 4);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->Run(MakeFeeds(4)).ok());
  const std::shared_ptr<Inspector> inspector = (*session)->inspector();
  absl::StatusOr<EngineSnapshot> snapshot = inspector->Inspect(absl::Seconds(20));
  ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  ASSERT_EQ(snapshot->processes.size(), 2u);
  ASSERT_EQ(snapshot->devices.size(), 4u);
  for (const ProcessSnapshot& process : snapshot->processes) {
    EXPECT_TRUE(process.answers);
    EXPECT_EQ(process.pid, (*cluster)->nodes()[process.rank].pid);
    EXPECT_EQ(process.num_devices, 2u);
    EXPECT_GT(process.resident_bytes, 0u);
  }
  for (const DeviceSnapshot& device : snapshot->devices) {
    EXPECT_EQ(device.state, DeviceSnapshot::State::kIdle);
    EXPECT_EQ(device.step, 1);
  }

  const pid_t stopped = (*cluster)->nodes()[1].pid;
  kill(stopped, SIGSTOP);
  // It may run on for a moment, and the other node may be slow to answer.
  const absl::Time deadline = absl::Now() + absl::Minutes(1);
  do {
    snapshot = inspector->Inspect(absl::Milliseconds(500));
    ASSERT_TRUE(snapshot.ok()) << snapshot.status();
  } while (absl::Now() < deadline &&
           (snapshot->processes[1].answers || !snapshot->processes[0].answers));
  EXPECT_TRUE(snapshot->processes[0].answers);
  EXPECT_FALSE(snapshot->processes[1].answers);
  EXPECT_EQ(snapshot->devices[1].state, DeviceSnapshot::State::kIdle);
  EXPECT_EQ(snapshot->devices[2].state, DeviceSnapshot::State::kSilent);
  EXPECT_EQ(snapshot->devices[2].device, 2u);
  kill(stopped, SIGCONT);
  ASSERT_TRUE((*session)->Run(MakeFeeds(4)).ok());

  // Who knows the key may ask the coordinator.
  absl::StatusOr<std::unique_ptr<StatusClient>> client = StatusClient::Create();
  ASSERT_TRUE(client.ok()) << client.status();
  const absl::StatusOr<JobStatus> status = (*client)->Ask(address, absl::Seconds(20));
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->name, "a job");
  address.key = std::string(64, '0');
  EXPECT_FALSE((*client)->Ask(address, absl::Seconds(20)).ok());

  (*session)->Stop();
  EXPECT_EQ(inspector->Inspect(absl::Seconds(1)).status().code(),
            absl::StatusCode::kFailedPrecondition);
  *session = nullptr;
  *cluster = nullptr;
  EXPECT_EQ(inspector->Inspect(absl::Seconds(1)).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST_F(ClusterTest, ASessionMayHaveTheFirstProcessesAlone) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(3));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions options;
  options.kernels = &kernels_;
  options.start_engine = (*cluster)->engine_factory();
  for (const uint32_t num_processes : {1u, 2u}) {
    options.num_processes = num_processes;
    auto session = Session::Start(MakePlan(static_cast<int>(num_processes)), options);
    ASSERT_TRUE(session.ok()) << session.status();
    const absl::StatusOr<StepResult> result = (*session)->Run(MakeFeeds(2));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->Find("s")->As<float>()[0], -8);
  }
  EXPECT_EQ((*cluster)->traffic()[2].feed_bytes, 0u);
}

// --- What travels through the coordinator --------------------------------------------------------

// Each node gets the part of x that its devices read, and sends the part of y that they make.
TEST_F(ClusterTest, FeedsAndFetchesAreThoseOfANodesDevices) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 4);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->Run(MakeFeeds(4)).ok());
  const std::vector<NodeTraffic> traffic = (*cluster)->traffic();
  ASSERT_EQ(traffic.size(), 2u);
  for (const NodeTraffic& node : traffic) {
    EXPECT_EQ(node.feed_bytes, 4 * sizeof(float));
    EXPECT_GE(node.fetch_bytes, 4 * sizeof(float));        // y
    EXPECT_LE(node.fetch_bytes, (4 + 1) * sizeof(float));  // and s, from one of them
    EXPECT_EQ(node.state_bytes_read + node.state_bytes_written, 0u);
  }
  EXPECT_EQ(traffic[0].fetch_bytes + traffic[1].fetch_bytes, (8 + 1) * sizeof(float));
}

TEST_F(ClusterTest, ProcessesMayHaveUnevenDevices) {
  ClusterOptions options = Options(2);
  options.process_devices = {3, 1};
  options.num_devices = 4;
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ((*cluster)->nodes()[1].first_device, 3u);
  absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 4);
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<StepResult> result = (*session)->Run(MakeFeeds(4));
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->Find("s")->As<float>()[0], -8);
  EXPECT_EQ((*cluster)->traffic()[0].feed_bytes, 6 * sizeof(float));
  EXPECT_EQ((*cluster)->traffic()[1].feed_bytes, 2 * sizeof(float));
  options.process_devices = {4, 0};
  EXPECT_THAT(Cluster::Start(options).status().ToString(),
              HasSubstr("(4, 0); expected at least one for each of 2"));
}

// A kernel's error is the step's, with the names of its node and actor, and the job goes on.
TEST_F(ClusterTest, ErrorsOfKernelsComeWithTheirNames) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 2);
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<StepResult> failed = (*session)->Run(MakeFeeds(2, 1, Fault::kError));
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(ToStd(failed.status().message()),
              ContainsRegex("^node 1 \\(pid [0-9]+ on .*\\): actor y on device 1, step 1, "));
  EXPECT_THAT(failed.status().ToString(), HasSubstr("told to fail"));
  const absl::StatusOr<StepResult> next = (*session)->Run(MakeFeeds(2));
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_EQ(next->Find("s")->As<float>()[0], -8);
}

TEST_F(ClusterTest, AHundredJobsLeaveNothing) {
  int num_files = 0;
  for (int i = 0; i < 100 / kSlowdown; ++i) {
    std::vector<int> pids;
    {
      absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
      ASSERT_TRUE(cluster.ok()) << cluster.status();
      pids = Pids(**cluster);
      absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 2);
      ASSERT_TRUE(session.ok()) << session.status();
      ASSERT_TRUE((*session)->Run(MakeFeeds(2)).ok());
    }
    for (const int pid : pids) EXPECT_FALSE(IsAlive(pid));
    if (i == 0) num_files = NumOpenFiles();
  }
  EXPECT_EQ(NumOpenFiles(), num_files);
}

// A stop shorter than the bound of the heartbeat is survived.
TEST_F(ClusterTest, AShortStopIsSurvived) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 2);
  ASSERT_TRUE(session.ok()) << session.status();
  const int pid = (*cluster)->nodes()[0].pid;
  ASSERT_EQ(kill(pid, SIGSTOP), 0);
  const absl::StatusOr<int64_t> step = (*session)->Submit(MakeFeeds(2));
  ASSERT_TRUE(step.ok()) << step.status();
  std::this_thread::sleep_for(std::chrono::milliseconds(900));
  ASSERT_EQ(kill(pid, SIGCONT), 0);
  const absl::StatusOr<StepResult> result = (*session)->Wait(*step);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->Find("s")->As<float>()[0], -8);
}

// CPU time that a process has taken, in clock ticks.
int64_t CpuTicks(int pid) {
  std::ifstream stream(StrCat("/proc/", pid, "/stat"));
  std::string text{std::istreambuf_iterator<char>(stream), {}};
  std::istringstream fields(text.substr(std::min(text.rfind(')') + 2, text.size())));
  std::string skipped;
  for (int i = 0; i < 11; ++i) fields >> skipped;
  int64_t user = 0;
  int64_t system = 0;
  fields >> user >> system;
  return user + system;
}

// Between steps nobody spins: less than a hundredth of a core a process.
TEST_F(ClusterTest, AnIdleJobCostsNothing) {
  if (kSlowdown > 1) GTEST_SKIP() << "sanitizers work while idle";
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 4);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->Run(MakeFeeds(4)).ok());
  std::vector<int> pids = Pids(**cluster);
  pids.push_back(getpid());
  std::vector<int64_t> before;
  for (const int pid : pids) before.push_back(CpuTicks(pid));
  constexpr int kSeconds = 4;
  std::this_thread::sleep_for(std::chrono::seconds(kSeconds));
  for (size_t i = 0; i < pids.size(); ++i) {
    const int64_t ticks = CpuTicks(pids[i]) - before[i];
    EXPECT_LE(ticks, kSeconds * sysconf(_SC_CLK_TCK) / 100) << "process " << i;
    RecordProperty(StrCat("ticks_", i), static_cast<int>(ticks));
    std::cout << "process " << i << ": " << ticks << " of " << kSeconds * sysconf(_SC_CLK_TCK)
              << " ticks\n";
  }
}

// A kernel that does not end is named, and does not keep its process when the job ends.
TEST_F(ClusterTest, AHungKernelEndsWithItsJob) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> session =
      StartSession(**cluster, 2, absl::Seconds(kSlowdown));
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<StepResult> result = (*session)->Run(MakeFeeds(2, 0, Fault::kHang));
  EXPECT_EQ(result.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(result.status().ToString(), HasSubstr("device 0: does not answer; is in actor"));
  EXPECT_THAT(result.status().ToString(), HasSubstr("device 1"));
  const std::vector<int> pids = Pids(**cluster);
  const auto begin = std::chrono::steady_clock::now();
  session->reset();
  cluster->reset();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 2 * kBound);
  for (const int pid : pids) EXPECT_FALSE(IsAlive(pid));
}

// Two stages in two processes; stage 0 takes `milliseconds` for its second micro-batch.
planner::Plan TwoStagePlan(std::string_view policy, int64_t milliseconds) {
  testing::EnginePlanBuilder b(2, std::string(policy));
  b.AddDevice(0);
  b.AddDevice(1);
  const uint32_t x0 = b.AddRegister(0, 2);
  b.BeginPhase(0, "F", planner::PhaseKind::kForward);
  const uint32_t slow =
      b.AddKernel(0, "slow", testing::kSlowKernel, {}, {x0}, {{"milliseconds", milliseconds}});
  b.BeginPhase(0, "send", planner::PhaseKind::kTransfer, planner::Lane::kFloating);
  b.AddChannel(0, slow, b.AddSend(0, "send.h", x0, 1), 1, 1, 2);
  const uint32_t x1 = b.AddRegister(1, 2);
  b.BeginPhase(1, "recv", planner::PhaseKind::kTransfer, planner::Lane::kFloating);
  const uint32_t recv = b.AddRecv(1, "recv.h", x1, b.last_transfer());
  b.BeginPhase(1, "F", planner::PhaseKind::kForward);
  const uint32_t y1 = b.AddRegister(1);
  b.AddChannel(1, recv, b.AddKernel(1, "use", "neg", {x1}, {y1}), 1, 1, 2);
  return b.Build();
}

// A stage of two devices in two processes, whose phases F and B add up what both have: they have to
// choose alike.
planner::Plan SharedStagePlan(uint32_t num_microbatches) {
  testing::EnginePlanBuilder b(num_microbatches, testing::kChancePolicy);
  for (int d = 0; d < 2; ++d) b.AddDevice(0);
  const uint32_t forward = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, {2, 2}, true);
  const uint32_t backward = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1}, {2, 2}, true);
  for (uint32_t d = 0; d < 2; ++d) {
    const uint32_t x = b.AddRegister(d);
    const uint32_t stash = b.AddRegister(d, num_microbatches);
    const uint32_t y = b.AddRegister(d);
    b.BeginPhase(d, "F", planner::PhaseKind::kForward);
    const uint32_t feed = b.AddFeed(d, "x", x);
    const uint32_t reduce = b.AddCollective(d, "reduce", forward, x, stash);
    b.AddChannel(d, feed, reduce);
    b.BeginPhase(d, "B", planner::PhaseKind::kBackward);
    const uint32_t again = b.AddCollective(d, "reduce again", backward, stash, y);
    if (d == 0) b.AddChannel(d, again, b.AddFetch(d, "y", y));
    b.AddChannel(d, reduce, again, 1, 1, num_microbatches);
  }
  return b.Build();
}

TEST_F(ClusterTest, OneProcessDecidesForAStageInSeveral) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions options;
  options.kernels = &kernels_;
  options.trace = true;
  options.start_engine = (*cluster)->engine_factory();
  constexpr int64_t kMicrobatches = 8;
  const planner::Plan plan = SharedStagePlan(kMicrobatches);
  auto session = Session::Start(plan, options);
  ASSERT_TRUE(session.ok()) << session.status();
  Tensor x({DType::kF64, {kMicrobatches, testing::kWidth}});
  for (int64_t i = 0; i < x.num_elements(); ++i) x.As<double>()[i] = static_cast<double>(i);
  for (int step = 0; step < 20; ++step) {
    const absl::StatusOr<StepResult> result = (*session)->Run({{"x", x}});
    ASSERT_TRUE(result.ok()) << result.status();
    const Tensor& y = result->fetches[0].second;
    for (int64_t i = 0; i < y.num_elements(); ++i) {
      EXPECT_EQ(y.As<double>()[i], 4.0 * static_cast<double>(i));
    }
  }
  std::map<uint32_t, std::vector<std::pair<int64_t, std::string>>> orders;
  for (const TraceEvent& event : (*session)->TakeTrace()) {
    if (event.actor != planner::kNone) continue;
    orders[event.device].push_back(
        {event.begin_ns, StrCat(plan.devices[event.device].phases[event.phase].name, " ",
                                event.step, " ", event.microbatch)});
  }
  ASSERT_EQ(orders.size(), 2u);
  std::vector<std::vector<std::string>> names;
  for (auto& [device, order] : orders) {
    std::sort(order.begin(), order.end());
    std::vector<std::string>& of_device = names.emplace_back();
    for (const auto& [begin_ns, name] : order) of_device.push_back(name);
    EXPECT_EQ(of_device.size(), 2u * 20 * kMicrobatches);
  }
  EXPECT_EQ(names[0], names[1]);
}

// One process has declined, the other has nothing more to do.
TEST_F(ClusterTest, APolicyThatStallsFailsTheSession) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions options;
  options.kernels = &kernels_;
  options.timeout = absl::Minutes(4);
  options.start_engine = (*cluster)->engine_factory();
  auto session = Session::Start(TwoStagePlan(testing::kSilentPolicy, 0), options);
  ASSERT_TRUE(session.ok()) << session.status();
  const auto begin = std::chrono::steady_clock::now();
  const absl::Status status = (*session)->Run({}).status();
  const std::chrono::duration<double> duration = std::chrono::steady_clock::now() - begin;
  std::cout << "noticed after " << duration.count() << " s\n";
  EXPECT_LT(duration.count(), 20 * kSlowdown);
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  const std::string message(status.message());
  EXPECT_THAT(message, ::testing::StartsWith(StrCat(kPolicyStalled, "stage 1, policy 'silent'")));
  EXPECT_THAT(message, HasSubstr("F issued 0 completed 0 ready 2"));
  EXPECT_THAT(message, HasSubstr("on node 1 (pid"));
}

// Stage 1 declines its first micro-batch for longer than a stall takes to be noticed, while stage 0
// computes the second one.
TEST_F(ClusterTest, APolicyThatWaitsForAnotherProcessIsNotTakenForOneThatStalls) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions options;
  options.kernels = &kernels_;
  options.start_engine = (*cluster)->engine_factory();
  auto session = Session::Start(TwoStagePlan(testing::kPatientPolicy, 4000), options);
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<StepResult> result = (*session)->Run({});
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GE(result->wall_ns, 4'000'000'000);
}

// The same where the second micro-batch is computed, and its message is what takes so long.
TEST_F(ClusterTest, APolicyThatWaitsForASlowMessageIsNotTakenForOneThatStalls) {
  setenv("FAULTY_NODE_SLOW", "1:6000", 1);
  setenv("UCX_TLS", "tcp", 1);
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions options;
  options.kernels = &kernels_;
  options.start_engine = (*cluster)->engine_factory();
  auto session = Session::Start(TwoStagePlan(testing::kPatientPolicy, 0), options);
  ASSERT_TRUE(session.ok()) << session.status();
  int64_t longest_ns = 0;
  for (int step = 0; step < 8 && longest_ns < 3'000'000'000; ++step) {
    const absl::StatusOr<StepResult> result = (*session)->Run({});
    ASSERT_TRUE(result.ok()) << result.status();
    longest_ns = std::max(longest_ns, result->wall_ns);
  }
  EXPECT_GE(longest_ns, 3'000'000'000);
}

TEST_F(ClusterTest, NodesThatDoNotJoinAreNamed) {
  ClusterOptions options = Options(3);
  options.join_timeout = absl::Seconds(2 * kSlowdown);
  setenv("FAULTY_NODE_START", StrCat("2:", static_cast<int>(Fault::kHang)).c_str(), 1);
  const absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  EXPECT_EQ(cluster.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(cluster.status().ToString(), HasSubstr("missing ranks 2"));
}

// The processes of a host share its memory.
TEST_F(ClusterTest, APlanThatDoesNotFitNamesTheDevice) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions options;
  options.kernels = &kernels_;
  options.start_engine = (*cluster)->engine_factory();
  const planner::Plan plan = MakePlan(4);
  for (uint32_t d = 0; d < 3; ++d) {
    options.max_memory_bytes += MemoryOf(plan, d, nullptr, /*is_synchronous=*/true).total();
  }
  const absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(plan, options);
  EXPECT_EQ(session.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(session.status().ToString(), HasSubstr("devices 0 to 3 need "));
  // Clocks cannot count as far as this, and need not.
  options.max_memory_bytes = 0;
  options.timeout = absl::InfiniteDuration();
  absl::StatusOr<std::unique_ptr<Session>> patient = Session::Start(plan, options);
  ASSERT_TRUE(patient.ok()) << patient.status();
  EXPECT_TRUE((*patient)->Run(MakeFeeds(4)).ok());
}

TEST_F(ClusterTest, AFileThatIsNoSocketOfOursStays) {
  const testing::TempFolder folder;
  const std::string path = folder.Path("socket");
  std::ofstream(path) << "precious";
  ClusterOptions options = Options(1);
  options.listen = StrCat("unix:", path);
  EXPECT_FALSE(Cluster::Start(options).ok());
  EXPECT_TRUE(std::filesystem::exists(path));
  std::filesystem::remove(path);
  // One of ours goes with its cluster.
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(std::filesystem::exists(path));
  cluster->reset();
  EXPECT_FALSE(std::filesystem::exists(path));
}

TEST_F(ClusterTest, ACommandThatDoesNotExistIsNamed) {
  ClusterOptions options = Options(1);
  options.node_command = {"/nowhere/penstock"};
  const absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  EXPECT_THAT(cluster.status().ToString(), HasSubstr("/nowhere/penstock: No such file"));
}

// --- Many nodes ----------------------------------------------------------------------------------

TEST_F(ClusterTest, SixtyFourNodesStartRunAndStop) {
  if (kSlowdown > 1) GTEST_SKIP() << "64 instrumented processes do not fit a small machine";
  constexpr int kNodes = 64;
  constexpr int kRounds = 20;
  for (int round = 0; round < kRounds; ++round) {
    ClusterOptions options = Options(kNodes);
    options.join_timeout = absl::Seconds(30);
    options.heartbeat_timeout = absl::Seconds(10);
    absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    {
      SessionOptions session_options;
      session_options.kernels = &kernels_;
      session_options.timeout = absl::Seconds(60);
      session_options.start_engine = (*cluster)->engine_factory();
      absl::StatusOr<std::unique_ptr<Session>> session =
          Session::Start(MakePlan(kNodes, kNodes), session_options);
      ASSERT_TRUE(session.ok()) << session.status();
      Tensor x({DType::kF32, {kNodes}});
      std::fill_n(x.As<float>(), kNodes, 1.0f);
      const absl::StatusOr<StepResult> result = (*session)->Run({{"x", x}});
      ASSERT_TRUE(result.ok()) << result.status();
      EXPECT_EQ(result->fetches[0].second.As<float>()[0], -kNodes);
    }
    const absl::Status ended = (*cluster)->Stop();
    EXPECT_TRUE(ended.ok()) << ended;
  }
}

}  // namespace
}  // namespace penstock::actors
