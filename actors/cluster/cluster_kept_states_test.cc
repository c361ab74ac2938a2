// States that outlive their session in real processes: where they go, and what passes through the
// coordinator.

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster.h"
#include "actors/engine/error_origin.h"
#include "actors/session/session.h"
#include "base/strings.h"
#include "tests/programs/faulty_node.h"
#include "tests/support/cluster_fixture.h"
#include "tests/support/temp_folder.h"

namespace penstock::actors {
namespace {

using testing::ClusterTest;
using ::testing::ContainsRegex;
using testing::Fault;
using ::testing::HasSubstr;
using testing::kBound;
using testing::kSlowdown;

class KeptStatesTest : public ClusterTest {
 protected:
  static constexpr int kSize = 600'001;  // tiles of more than one chunk

  void SetUp() override {
    options_.kernels = &kernels_;
    Restart(Options(2));
  }

  void Restart(const ClusterOptions& options) {
    cluster_ = nullptr;
    absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    cluster_ = *std::move(cluster);
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

// As a checkpoint: each node writes tiles that it has, and each tile is written once.
TEST_F(KeptStatesTest, EachNodeWritesItsShare) {
  const auto kept = Train(nullptr, 2);
  ASSERT_NE(kept, nullptr);
  const testing::TempFolder folder;
  const std::string path = folder.path().string();
  const absl::Status status = kept->Write(path, {{kWriterKey, "test"}, {"step", "2"}});
  ASSERT_TRUE(status.ok()) << status;
  EXPECT_EQ(StateBytes(), 0u);
  const auto checkpoint = Checkpoint::Open(path);
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(checkpoint->has_checksums());
  EXPECT_EQ(checkpoint->metadata().at("step"), "2");
  EXPECT_TRUE(AreSame(checkpoint->Read("c"), kept->Read("c")));
  // A file that is there is not written over.
  EXPECT_FALSE(kept->Write(path, {}).ok());
  EXPECT_TRUE(AreSame(Checkpoint::Open(path)->Read("c"), kept->Read("c")));
}

// A path that means the folder in this process alone stands for hosts that do not share it.
TEST_F(KeptStatesTest, ThisProcessWritesAllWhereNodesDoNotSeeTheFolder) {
  const auto kept = Train(nullptr, 2);
  ASSERT_NE(kept, nullptr);
  const testing::TempFolder folder;
  const int opened = open(folder.path().c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  ASSERT_GE(opened, 0);
  const int high = fcntl(opened, F_DUPFD_CLOEXEC, 700);
  const absl::Status status = kept->Write(StrCat("/proc/self/fd/", high), {{"step", "2"}});
  EXPECT_TRUE(status.ok()) << status;
  close(high);
  close(opened);
  EXPECT_TRUE(std::filesystem::exists(folder.Path("model.safetensors")));
  const auto checkpoint = Checkpoint::Open(folder.path().string());
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_TRUE(AreSame(checkpoint->Read("c"), kept->Read("c")));
}

TEST_F(KeptStatesTest, ALostNodeWritesNothing) {
  const auto kept = Train(nullptr, 1);
  ASSERT_NE(kept, nullptr);
  const testing::TempFolder folder;
  kill(Pids(*cluster_)[1], SIGKILL);
  const absl::Status status = kept->Write(folder.path().string(), {});
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_FALSE(Checkpoint::Open(folder.path().string()).ok());
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
  Restart(options);
  EXPECT_EQ(Move({4, "[d, _]"}, {4, "[_, d]"}), kBytes / 2);
}

// Every node sends to the others and receives from them, more than a chunk.
TEST_F(KeptMatrixTest, ThreeProcessesExchangeUnevenTiles) {
  Restart(Options(3));
  constexpr int kLong = 2003;
  const uint64_t num_bytes = Move({5, "[d, _]"}, {4, "[_, d]"}, kLong, kLong);
  EXPECT_GT(num_bytes, kLong * kLong * sizeof(float) / 2);
  EXPECT_LT(num_bytes, kLong * kLong * sizeof(float));
}

TEST_F(KeptMatrixTest, NodesMayHaveTcpAlone) {
  setenv("UCX_TLS", "tcp", 1);
  Restart(Options(2));
  EXPECT_EQ(Move({4, "[d, _]"}, {4, "[_, d]"}), kBytes / 2);
}

// It answers heartbeats, but neither the other node nor the call.
TEST_F(KeptMatrixTest, AnExchangeThatHangsNamesBothNodes) {
  setenv("FAULTY_NODE_MESSAGE", StrCat("0:", static_cast<int>(Fault::kHang), ":2").c_str(), 1);
  Restart(Options(2));
  const std::vector<int> pids = Pids(*cluster_);
  const auto kept = Keep({4, "[d, _]"}, Fault::kCount);
  ASSERT_NE(kept, nullptr);
  options_.timeout = absl::Seconds(2);
  const auto session = Start({4, "[_, d]"}, kept);
  EXPECT_EQ(session.status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_THAT(
      session.status().ToString(),
      ContainsRegex(StrCat("node 1 \\(pid ", pids[1], " on .*\\), with node 0 \\(pid ", pids[0],
                           " on .*\\): the exchange of states takes too long: .*; node 0 \\(pid ",
                           pids[0], " on .*\\) has not answered")));
}

// While it sends: the job ends in its name, and no node waits for it.
TEST_F(KeptMatrixTest, TheLossOfANodeInAnExchangeIsTold) {
  for (const auto& [fault, cause] : {std::pair(Fault::kKill, "killed by signal 9"),
                                     std::pair(Fault::kStop, "has not answered")}) {
    SCOPED_TRACE(cause);
    setenv("FAULTY_NODE_MESSAGE", StrCat("0:", static_cast<int>(fault), ":2").c_str(), 1);
    Restart(Options(2));
    const std::vector<int> pids = Pids(*cluster_);
    const auto kept = Keep({4, "[d, _]"}, Fault::kCount);
    ASSERT_NE(kept, nullptr);
    const auto begin = std::chrono::steady_clock::now();
    const auto session = Start({4, "[_, d]"}, kept);
    EXPECT_EQ(session.status().code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(session.status().ToString(), HasSubstr("node 0"));
    EXPECT_THAT(session.status().ToString(), HasSubstr(cause));
    cluster_ = nullptr;
    EXPECT_LT(std::chrono::steady_clock::now() - begin, kSlowdown * kBound);
    for (const int pid : pids) EXPECT_NE(kill(pid, 0), 0) << pid;
  }
}

}  // namespace
}  // namespace penstock::actors
