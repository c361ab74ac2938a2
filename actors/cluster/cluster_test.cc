// Jobs over real processes on this host: what they compute, and what is told and left when one of
// them dies in any phase.

#include "actors/cluster/cluster.h"

#include <dirent.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/engine/device_memory.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/stall_detector.h"
#include "actors/session/session.h"
#include "base/strings.h"
#include "graph/text.h"
#include "kernels/kernel.h"
#include "planner/compile.h"
#include "planner/policy/policy.h"
#include "tests/programs/faulty_node.h"
#include "tests/support/engine_plan.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using testing::Fault;
using ::testing::HasSubstr;

// From a death to the end of the last process.
constexpr std::chrono::seconds kBound{5};

// Programs built with a sanitizer start and end slowly.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr int kSlowdown = 5;
#else
constexpr int kSlowdown = 1;
#endif

std::set<std::string> SharedMemory() {
  std::set<std::string> names;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm", error)) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

int NumOpenFiles() {
  const std::filesystem::directory_iterator files("/proc/self/fd");
  return static_cast<int>(std::distance(begin(files), end(files)));
}

bool IsAlive(int pid) { return kill(pid, 0) == 0 || errno != ESRCH; }

class ClusterTest : public ::testing::Test {
 protected:
  ClusterTest() : shared_memory_(SharedMemory()) {}

  ~ClusterTest() override {
    unsetenv("FAULTY_NODE_START");
    unsetenv("FAULTY_NODE_STOP");
    unsetenv("FAULTY_NODE_MESSAGE");
    unsetenv("FAULTY_NODE_SLOW");
    unsetenv("FAULTY_NODE_MARK");
    unsetenv("UCX_TLS");
    EXPECT_EQ(NewSharedMemory(), "");
  }

  // What has come since the test began and stays: other programs make and remove theirs too.
  std::string NewSharedMemory() const {
    std::set<std::string> added;
    const auto begin = std::chrono::steady_clock::now();
    do {
      const std::set<std::string> now = SharedMemory();
      std::set<std::string> still;
      for (const std::string& name : now) {
        if (!shared_memory_.contains(name) && (added.empty() || added.contains(name))) {
          still.insert(name);
        }
      }
      added = std::move(still);
      if (added.empty()) return "";
      std::this_thread::yield();
    } while (std::chrono::steady_clock::now() - begin < kBound);
    return *added.begin();
  }

  static ClusterOptions Options(uint32_t num_processes) {
    ClusterOptions options;
    options.num_processes = num_processes;
    options.node_command = {PENSTOCK_FAULTY_NODE};
    options.join_timeout = absl::Seconds(10 * kSlowdown);
    options.heartbeat_timeout = absl::Milliseconds(1500 * kSlowdown);
    options.stop_timeout = absl::Seconds(3);
    return options;
  }

  // y = -x over devices of an axis, its sum, and a state that adds it up.
  planner::Plan MakePlan(int num_devices, int size = 8) {
    const std::string type = StrCat("f32[", size, "]");
    const std::string text = StrCat("mesh m = [d=", num_devices,
                                    "]\n"
                                    "graph g {\n"
                                    "  %x = input : ",
                                    type,
                                    " @[d]\n"
                                    "  %c = state : ",
                                    type,
                                    " @[d]\n"
                                    "  %y = neg(%x) : ",
                                    type,
                                    "\n"
                                    "  %n = add(%c, %y) : ",
                                    type,
                                    "\n"
                                    "  assign(%c, %n)\n"
                                    "  %s = reduce_sum(%y) {axes=[0]} : f32[]\n"
                                    "  return %s, %y\n"
                                    "}\n");
    return PlanOf(text);
  }

  planner::Plan PlanOf(const std::string& text) {
    absl::StatusOr<graph::Graph> graph = graph::ParseGraph(text, "test.pst", ops_);
    EXPECT_TRUE(graph.ok()) << graph.status();
    planner::CompileOptions options;
    options.policies = &policies_;
    options.kernels = kernels::TraitsOf(kernels_, 1);
    absl::StatusOr<planner::Plan> plan = planner::Compile(ops_, *std::move(graph), options);
    EXPECT_TRUE(plan.ok()) << plan.status();
    return *std::move(plan);
  }

  absl::StatusOr<std::unique_ptr<Session>> StartSession(
      Cluster& cluster, int num_devices, absl::Duration timeout = absl::Seconds(20 * kSlowdown)) {
    SessionOptions options;
    options.kernels = &kernels_;
    options.timeout = timeout;
    options.start_engine = cluster.engine_factory();
    return Session::Start(MakePlan(num_devices), options);
  }

  // Ones; where `fault` is given, the first element of the device's part asks for it.
  static Feeds MakeFeeds(int num_devices, int device = 0, Fault fault = Fault::kNone) {
    Tensor x({DType::kF32, {8}});
    for (int i = 0; i < 8; ++i) x.As<float>()[i] = 1;
    if (fault != Fault::kNone) x.As<float>()[device * 8 / num_devices] = testing::ToFeed(fault);
    return {{"x", x}};
  }

  static std::vector<int> Pids(const Cluster& cluster) {
    std::vector<int> pids;
    for (const NodeDescription& node : cluster.nodes()) pids.push_back(node.pid);
    return pids;
  }

  graph::OpRegistry ops_ = graph::BuiltinOps();
  kernels::KernelRegistry kernels_ = kernels::CpuKernels();
  planner::PolicyRegistry policies_ = planner::BuiltinPolicies();
  const std::set<std::string> shared_memory_;
};

// On CPU devices and on emulated ones.
class ClusterDevicesTest : public ClusterTest, public ::testing::WithParamInterface<std::string> {
 protected:
  static ClusterOptions Options() {
    ClusterOptions options = ClusterTest::Options(2);
    options.node_command.insert(options.node_command.end(), {"--devices", GetParam()});
    return options;
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, ClusterDevicesTest, ::testing::Values("cpu", "emulated"),
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

class KeptStatesTest : public ClusterTest {
 protected:
  static constexpr int kSize = 600'001;  // tiles of more than one chunk

  void SetUp() override {
    absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
    options_.kernels = &kernels_;
    options_.start_engine = cluster_->engine_factory();
  }

  // Runs a session of four devices from `states` for some steps; what it keeps.
  std::shared_ptr<const KeptStates> Train(std::shared_ptr<const KeptStates> states, int num_steps) {
    options_.states = std::move(states);
    auto session = Session::Start(MakePlan(4, kSize), options_);
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return nullptr;
    Tensor x({DType::kF32, {kSize}});
    for (int i = 0; i < kSize; ++i) x.As<float>()[i] = 0.1f * static_cast<float>(i % 1001);
    for (int i = 0; i < num_steps; ++i) EXPECT_TRUE((*session)->Run({{"x", x}}).ok());
    auto kept = (*session)->KeepStates(StateSelection::kAll);
    EXPECT_TRUE(kept.ok()) << kept.status();
    return kept.ok() ? *std::move(kept) : nullptr;
  }

  uint64_t StateBytes() const {
    uint64_t num_bytes = 0;
    for (const NodeTraffic& node : cluster_->traffic()) {
      num_bytes += node.state_bytes_read + node.state_bytes_written;
    }
    return num_bytes;
  }

  static bool AreSame(const absl::StatusOr<Tensor>& a, const absl::StatusOr<Tensor>& b) {
    return a.ok() && b.ok() && memcmp(a->data(), b->data(), a->num_bytes()) == 0;
  }

  std::unique_ptr<Cluster> cluster_;
  SessionOptions options_;
};

TEST_F(KeptStatesTest, StayOnTheirNodesWhereTheLayoutIsTheSame) {
  const auto whole = Train(nullptr, 5);
  const auto after_two = Train(nullptr, 2);
  const auto after_five = Train(after_two, 3);
  ASSERT_NE(after_five, nullptr);
  EXPECT_EQ(StateBytes(), 0u);
  // Read for the test alone. What was kept first has not changed.
  EXPECT_TRUE(AreSame(after_five->Read("c"), whole->Read("c")));
  EXPECT_EQ(StateBytes(), 2 * kSize * sizeof(float));
  EXPECT_EQ(after_two->Read("c")->As<float>()[1], -0.2f);
}

// Kept in another process than the session that takes them.
TEST_F(KeptStatesTest, TravelBetweenClusterAndThisProcess) {
  const auto kept = Train(nullptr, 2);
  ASSERT_NE(kept, nullptr);
  options_.states = kept;
  options_.start_engine = nullptr;
  auto local = Session::Start(MakePlan(4, kSize), options_);
  ASSERT_TRUE(local.ok()) << local.status();
  EXPECT_TRUE(AreSame((*local)->Fetch("c"), kept->Read("c")));
  options_.states = *(*local)->KeepStates(StateSelection::kAll);
  options_.start_engine = cluster_->engine_factory();
  auto back = Session::Start(MakePlan(4, kSize), options_);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_TRUE(AreSame((*back)->Fetch("c"), kept->Read("c")));
}

// A session that cannot start, one whose kernel fails, and one that is dropped in the middle.
TEST_F(KeptStatesTest, AreNotLostByLaterSessions) {
  const auto kept = Train(nullptr, 2);
  const absl::StatusOr<Tensor> before = kept->Read("c");
  options_.states = kept;
  options_.max_memory_bytes = 1;
  EXPECT_FALSE(Session::Start(MakePlan(4, kSize), options_).ok());
  options_.max_memory_bytes = 0;
  {
    auto failing = Session::Start(MakePlan(4, kSize), options_);
    ASSERT_TRUE(failing.ok()) << failing.status();
    Tensor x({DType::kF32, {kSize}});
    x.As<float>()[0] = testing::ToFeed(Fault::kError);
    const absl::Status status = (*failing)->Run({{"x", x}}).status();
    EXPECT_THAT(status.ToString(), HasSubstr("told to fail"));
    EXPECT_EQ(OriginOf(status), (ErrorOrigin{.rank = 0, .device = 0, .step = 0}));
    ASSERT_TRUE((*failing)->Submit({{"x", x}}).ok());
  }
  EXPECT_TRUE(AreSame(kept->Read("c"), before));
  EXPECT_TRUE(AreSame(Train(kept, 0)->Read("c"), before));
}

// A node keeps no more copies than it is asked to: far more than it may hold at a time.
TEST_F(KeptStatesTest, GoWithTheirLastReference) {
  auto session = Session::Start(MakePlan(4, kSize), options_);
  ASSERT_TRUE(session.ok()) << session.status();
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE((*session)->KeepStates(StateSelection::kAll).ok()) << i;
  }
  std::vector<std::shared_ptr<const KeptStates>> many;
  absl::Status status;
  while (many.size() < 100 && status.ok()) {
    auto kept = (*session)->KeepStates(StateSelection::kAll);
    status = kept.status();
    if (kept.ok()) many.push_back(*std::move(kept));
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.ToString(), HasSubstr("too many copies"));
  // They may outlive the cluster, and have no values then.
  session->reset();
  cluster_ = nullptr;
  EXPECT_EQ(many[0]->Read("c").status().code(), absl::StatusCode::kFailedPrecondition);
}

// How a matrix lies in a session, such as {4, "[d, _]"}: its rows over four devices.
struct MatrixLayout {
  int num_devices;
  std::string sharding;
  uint32_t num_processes = 0;  // 0: all
};

class KeptMatrixTest : public KeptStatesTest {
 protected:
  static constexpr int kRows = 600;
  static constexpr int kColumns = 1000;
  static constexpr uint64_t kBytes = uint64_t{kRows} * kColumns * sizeof(float);

  absl::StatusOr<std::unique_ptr<Session>> Start(const MatrixLayout& layout,
                                                 std::shared_ptr<const KeptStates> states,
                                                 int rows = kRows, int columns = kColumns) {
    const std::string type = StrCat("f32[", rows, ", ", columns, "]");
    options_.states = std::move(states);
    options_.num_processes = layout.num_processes;
    return Session::Start(PlanOf(StrCat("mesh m = [d=", layout.num_devices,
                                        "]\n"
                                        "graph g {\n"
                                        "  %x = input : ",
                                        type, " @", layout.sharding,
                                        "\n"
                                        "  %w = state : ",
                                        type, " @", layout.sharding,
                                        "\n"
                                        "  %one = state : f32[] @[]\n"
                                        "  %y = neg(%x) : ",
                                        type,
                                        "\n"
                                        "  %n = add(%w, %y) : ",
                                        type,
                                        "\n"
                                        "  assign(%w, %n)\n"
                                        "  %two = add(%one, %one) : f32[]\n"
                                        "  assign(%one, %two)\n"
                                        "  return %y\n"
                                        "}\n")),
                          options_);
  }

  // Different numbers in a session of this layout, or what the first one says.
  std::shared_ptr<const KeptStates> Keep(const MatrixLayout& layout, Fault first = Fault::kNone,
                                         int rows = kRows, int columns = kColumns) {
    auto session = Start(layout, nullptr, rows, columns);
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return nullptr;
    Tensor x({DType::kF32, {rows, columns}});
    for (int i = 0; i < rows * columns; ++i) x.As<float>()[i] = static_cast<float>(i);
    if (first != Fault::kNone) x.As<float>()[0] = testing::ToFeed(first);
    EXPECT_TRUE((*session)->Run({{"x", x}}).ok());
    Tensor one({DType::kF32, {}});
    one.As<float>()[0] = 1;
    EXPECT_TRUE((*session)->SetState("one", one).ok());
    before_ = StateBytes();
    auto kept = (*session)->KeepStates(StateSelection::kAll);
    EXPECT_TRUE(kept.ok()) << kept.status();
    return kept.ok() ? *std::move(kept) : nullptr;
  }

  uint64_t BytesBetweenNodes() const {
    uint64_t num_bytes = 0;
    for (const NodeTraffic& node : cluster_->traffic()) num_bytes += node.state_bytes_from_nodes;
    return num_bytes;
  }

  // Opens a session of another layout from what one has kept, checks that no state came to this
  // process, and returns how many bytes went between nodes.
  uint64_t Move(const MatrixLayout& from, const MatrixLayout& to, int rows = kRows,
                int columns = kColumns) {
    const auto kept = Keep(from, Fault::kNone, rows, columns);
    if (kept == nullptr) return 0;
    const uint64_t between_nodes = BytesBetweenNodes();
    auto session = Start(to, kept, rows, columns);
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return 0;
    EXPECT_EQ(StateBytes() - before_, 0u);
    EXPECT_TRUE(AreSame((*session)->Fetch("w"), kept->Read("w")));
    EXPECT_TRUE(AreSame((*session)->Fetch("one"), kept->Read("one")));
    const auto w = (*session)->Fetch("w");
    EXPECT_TRUE(w.ok() &&
                w->As<float>()[rows * columns - 1] == -static_cast<float>(rows * columns - 1));
    return BytesBetweenNodes() - between_nodes;
  }

  uint64_t before_ = 0;
};

// Each node has half of the matrix and needs the other half of half of it.
TEST_F(KeptMatrixTest, GoesFromNodeToNodeWhereTheLayoutIsAnother) {
  EXPECT_EQ(Move({4, "[d, _]"}, {4, "[d, _]"}), 0u);
  EXPECT_EQ(Move({4, "[d, _]"}, {4, "[_, d]"}), kBytes / 2);
  EXPECT_EQ(Move({4, "[_, d]"}, {2, "[d, _]"}), kBytes / 2);
  EXPECT_EQ(Move({4, "[d, _]"}, {2, "[d, _]"}), 0u);
}

TEST_F(KeptMatrixTest, GoesToFewerProcessesAndToMore) {
  EXPECT_EQ(Move({4, "[d, _]"}, {1, "[_, _]", 1}), kBytes / 2);
  EXPECT_EQ(Move({1, "[_, _]", 1}, {4, "[d, _]"}), kBytes / 2 + sizeof(float));
}

// A node gets what its devices share once, and nothing that it has.
TEST_F(KeptMatrixTest, ReplicasNeedNothingAndAreFilledOnce) {
  EXPECT_EQ(Move({4, "[_, _]"}, {4, "[_, d]"}), 0u);
  EXPECT_EQ(Move({4, "[_, d]"}, {4, "[_, _]"}), kBytes);
}

TEST_F(KeptMatrixTest, TilesMayBeUneven) {
  EXPECT_GT(Move({3, "[d, _]"}, {4, "[_, d]"}, 7, 1001), 0u);
  EXPECT_GT(Move({4, "[_, d]"}, {3, "[d, _]"}, 601, 7), 0u);
}

// Beside the session that keeps them, and more often than a node has room for exchanges.
TEST_F(KeptMatrixTest, GoesIntoAnOpenSessionAnyNumberOfTimes) {
  auto from = Start({4, "[d, _]"}, nullptr, 8, 8);
  auto to = Start({4, "[_, d]"}, nullptr, 8, 8);
  ASSERT_TRUE(from.ok() && to.ok()) << from.status() << to.status();
  Tensor w({DType::kF32, {8, 8}});
  for (int i = 0; i < 20; ++i) {
    for (int j = 0; j < 64; ++j) w.As<float>()[j] = static_cast<float>(100 * i + j);
    ASSERT_TRUE((*from)->SetState("w", w).ok());
    auto kept = (*from)->KeepStates(StateSelection::kAll);
    ASSERT_TRUE(kept.ok()) << kept.status();
    ASSERT_EQ((*to)->TakeStates(**kept), absl::OkStatus());
    EXPECT_TRUE(AreSame((*to)->Fetch("w"), w));
  }
}

TEST_F(KeptMatrixTest, DevicesMayBeAsynchronous) {
  ClusterOptions options = Options(2);
  options.node_command.insert(options.node_command.end(), {"--devices", "emulated"});
  cluster_ = nullptr;
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  cluster_ = *std::move(cluster);
  options_.start_engine = cluster_->engine_factory();
  EXPECT_EQ(Move({4, "[d, _]"}, {4, "[_, d]"}), kBytes / 2);
}

// While it sends: the job ends in its name, and no node waits for it.
TEST_F(KeptMatrixTest, TheLossOfANodeInAnExchangeIsTold) {
  setenv("FAULTY_NODE_MESSAGE", StrCat("0:", static_cast<int>(Fault::kKill), ":2").c_str(), 1);
  SetUp();
  const auto kept = Keep({4, "[d, _]"}, Fault::kCount);
  ASSERT_NE(kept, nullptr);
  const auto begin = std::chrono::steady_clock::now();
  const auto session = Start({4, "[_, d]"}, kept);
  EXPECT_EQ(session.status().code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(session.status().ToString(), HasSubstr("node 0"));
  EXPECT_THAT(session.status().ToString(), HasSubstr("killed by signal 9"));
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
}

// A kernel's error is the step's, with the actor's name, and the job goes on.
TEST_F(ClusterTest, ErrorsOfKernelsComeWithTheirNames) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 2);
  ASSERT_TRUE(session.ok()) << session.status();
  const absl::StatusOr<StepResult> failed = (*session)->Run(MakeFeeds(2, 1, Fault::kError));
  EXPECT_EQ(failed.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(failed.status().ToString(), HasSubstr("told to fail"));
  EXPECT_THAT(failed.status().ToString(), HasSubstr("device 1"));
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
  EXPECT_THAT(session.status().ToString(), HasSubstr("device 3 needs"));
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

// --- Death ---------------------------------------------------------------------------------------

enum class When { kStart, kStep, kStop };

using DeathParam = std::tuple<int /*rank*/, Fault, When, std::string /*UCX_TLS*/>;

class ClusterDeathTest : public ClusterTest, public ::testing::WithParamInterface<DeathParam> {
 protected:
  void ExpectCause(const absl::Status& status, int rank, Fault fault) {
    EXPECT_THAT(status.ToString(), HasSubstr(StrCat("node ", rank, " (pid ")));
    switch (fault) {
      case Fault::kExit:
        EXPECT_THAT(status.ToString(), HasSubstr("exited with status 3"));
        break;
      case Fault::kCrash:
        EXPECT_THAT(status.ToString(), HasSubstr("killed by signal 11"));
        break;
      case Fault::kKill:
        EXPECT_THAT(status.ToString(), HasSubstr("killed by signal 9"));
        break;
      default:
        // Whichever bound is reached first: that of silence or, while the job stops, that of exits.
        EXPECT_THAT(status.ToString(), ::testing::AnyOf(HasSubstr("has not answered for"),
                                                        HasSubstr("has not exited for")));
    }
  }
};

TEST_P(ClusterDeathTest, IsToldWithWhoWhereAndWhyAndLeavesNothing) {
  const auto& [rank, fault, when, tls] = GetParam();
  if (!tls.empty()) setenv("UCX_TLS", tls.c_str(), 1);
  const std::string spec = StrCat(rank, ":", static_cast<int>(fault));
  const testing::TempFolder folder;
  const std::string mark = folder.Path("mark");
  setenv("FAULTY_NODE_MARK", mark.c_str(), 1);
  // At whatever point the test ends: the node has done what it was told.
  const auto check_mark = absl::MakeCleanup(
      [mark] { EXPECT_TRUE(std::filesystem::remove(mark)) << "the fault did not happen"; });
  ClusterOptions options = Options(2);
  if (when == When::kStart) {
    setenv("FAULTY_NODE_START", spec.c_str(), 1);
    if (fault == Fault::kStop) options.join_timeout = absl::Seconds(2 * kSlowdown);
  }
  if (when == When::kStop) setenv("FAULTY_NODE_STOP", spec.c_str(), 1);

  auto begin = std::chrono::steady_clock::now();
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  if (when == When::kStart) {
    ASSERT_FALSE(cluster.ok());
    if (fault == Fault::kStop) {
      EXPECT_THAT(cluster.status().ToString(), HasSubstr(StrCat("missing ranks ", rank)));
    } else {
      ExpectCause(cluster.status(), rank, fault);
      EXPECT_THAT(cluster.status().ToString(), HasSubstr("before it joined"));
    }
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
    return;  // what was started was this process's, and is reaped: see ~ClusterTest
  }
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const std::vector<int> pids = Pids(**cluster);
  {
    absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 4);
    ASSERT_TRUE(session.ok()) << session.status();
    ASSERT_TRUE((*session)->Run(MakeFeeds(4)).ok());
    begin = std::chrono::steady_clock::now();
    if (when == When::kStep) {
      const absl::StatusOr<StepResult> result = (*session)->Run(MakeFeeds(4, 2 * rank, fault));
      ASSERT_FALSE(result.ok());
      EXPECT_EQ(result.status().code(), absl::StatusCode::kUnavailable);
      ExpectCause(result.status(), rank, fault);
      EXPECT_THAT(result.status().ToString(), HasSubstr("in step 2"));
    }
  }
  const absl::Status ended = (*cluster)->Stop();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
  ExpectCause(ended, rank, fault);
  EXPECT_EQ((*cluster)->Stop(), ended);
  for (const int pid : pids) EXPECT_FALSE(IsAlive(pid)) << pid;
}

std::string NameOf(const ::testing::TestParamInfo<DeathParam>& info) {
  static const char* const kFaults[] = {"None", "Exit", "Crash", "Kill", "Stop"};
  static const char* const kWhen[] = {"Start", "Step", "Stop"};
  const auto& [rank, fault, when, tls] = info.param;
  return StrCat("Rank", rank, kFaults[static_cast<int>(fault)], "During",
                kWhen[static_cast<int>(when)], tls.empty() ? "SharedMemory" : "Tcp");
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, ClusterDeathTest,
    ::testing::Combine(::testing::Values(0, 1),
                       ::testing::Values(Fault::kExit, Fault::kCrash, Fault::kKill, Fault::kStop),
                       ::testing::Values(When::kStart, When::kStep, When::kStop),
                       ::testing::Values("", "tcp")),
    NameOf);

// --- Death inside a collective -------------------------------------------------------------------

class CollectiveDeathTest : public ClusterDeathTest {
 protected:
  static constexpr int kSize = 1 << 20;

  // Sums two rows, one a device, by an all_reduce of many chunks.
  planner::Plan MakeSum() {
    return PlanOf(
        StrCat("mesh m = [d=2]\n"
               "graph g {\n"
               "  %x = input : f32[2, ",
               kSize,
               "] @[d, _]\n"
               "  %y = neg(%x) : f32[2, ",
               kSize,
               "]\n"
               "  %s = reduce_sum(%y) {axes=[0]} : f32[",
               kSize,
               "]\n"
               "  return %s\n"
               "}\n"));
  }

  // Runs a step during which the node does what it is told to at message `message`, counted from
  // the beginning of the collective. False if there were fewer, and the step has its result.
  bool DiesAtMessage(int rank, Fault fault, int message) {
    const testing::TempFolder folder;
    const std::string mark = folder.Path("mark");
    setenv("FAULTY_NODE_MARK", mark.c_str(), 1);
    setenv("FAULTY_NODE_MESSAGE", StrCat(rank, ":", static_cast<int>(fault), ":", message).c_str(),
           1);
    absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    if (!cluster.ok()) return false;
    const std::vector<int> pids = Pids(**cluster);
    SessionOptions options;
    options.kernels = &kernels_;
    options.timeout = absl::Seconds(20 * kSlowdown);
    options.start_engine = (*cluster)->engine_factory();
    absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(sum_, options);
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return false;
    Tensor x({DType::kF32, {2, kSize}});
    std::fill_n(x.As<float>(), x.num_elements(), 1.0f);
    x.As<float>()[rank * kSize] = testing::ToFeed(Fault::kCount);

    const auto begin = std::chrono::steady_clock::now();
    const absl::StatusOr<StepResult> result = (*session)->Run({{"x", x}});
    const bool has_died = std::filesystem::exists(mark);
    EXPECT_NE(result.ok(), has_died);
    session->reset();
    const absl::Status ended = (*cluster)->Stop();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
    for (const int pid : pids) EXPECT_FALSE(IsAlive(pid)) << pid;
    if (has_died && !result.ok()) {
      ExpectCause(result.status(), rank, fault);
      ExpectCause(ended, rank, fault);
      EXPECT_THAT(result.status().ToString(), HasSubstr("in step 1"));
    } else {
      EXPECT_TRUE(ended.ok()) << ended;
      EXPECT_EQ(result->fetches[0].second.As<float>()[1], -2);
    }
    return has_died;
  }

  const planner::Plan sum_ = MakeSum();
};

TEST_P(CollectiveDeathTest, IsNamedAtEveryMessage) {
  const auto& [rank, fault, when, tls] = GetParam();
  if (!tls.empty()) setenv("UCX_TLS", tls.c_str(), 1);
  // Silence takes its time to be noticed, and sanitizers take theirs.
  const int stride = fault == Fault::kStop ? 7 : kSlowdown > 1 ? 5 : 1;
  int message = 1;
  while (DiesAtMessage(rank, fault, message)) {
    if (HasFailure()) FAIL() << "message " << message;
    message += stride;
  }
  // Several chunks were sent and received.
  EXPECT_GT(message, 8);
}

INSTANTIATE_TEST_SUITE_P(Matrix, CollectiveDeathTest,
                         ::testing::Values(DeathParam(0, Fault::kKill, When::kStep, ""),
                                           DeathParam(1, Fault::kExit, When::kStep, ""),
                                           DeathParam(1, Fault::kStop, When::kStep, ""),
                                           DeathParam(0, Fault::kCrash, When::kStep, "tcp"),
                                           DeathParam(1, Fault::kKill, When::kStep, "tcp")),
                         NameOf);

// --- Many nodes ----------------------------------------------------------------------------------

TEST_F(ClusterTest, SixtyFourNodesStartRunAndStop) {
  if (kSlowdown > 1) GTEST_SKIP() << "64 instrumented processes do not fit a small machine";
  constexpr int kNodes = 64;
  for (int round = 0; round < 3; ++round) {
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
