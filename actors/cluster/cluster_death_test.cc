// Jobs over real processes on this host: what is told and left when one of them dies in any phase,
// and what goes on without it.

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/cluster.h"
#include "actors/engine/error_origin.h"
#include "actors/session/session.h"
#include "base/collective.h"
#include "base/strings.h"
#include "tests/programs/faulty_node.h"
#include "tests/support/cluster_fixture.h"
#include "tests/support/temp_folder.h"
namespace penstock::actors {
namespace {

using testing::ClusterTest;
using testing::Fault;
using ::testing::HasSubstr;
using testing::IsAlive;
using testing::kBound;
using testing::kSlowdown;
enum class When { kStart, kStep, kStop };

using DeathParam = std::tuple<int /*rank*/, Fault, When, std::string /*UCX_TLS*/>;

std::string_view FaultName(Fault fault) {
  static constexpr std::string_view kFaults[] = {"None", "Exit", "Crash", "Kill", "Stop"};
  return kFaults[static_cast<int>(fault)];
}

class ClusterDeathTestBase : public ClusterTest {
 protected:
  static void ExpectCause(const absl::Status& status, int rank, Fault fault) {
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

class ClusterDeathTest : public ClusterDeathTestBase,
                         public ::testing::WithParamInterface<DeathParam> {};

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
  static const char* const kWhen[] = {"Start", "Step", "Stop"};
  const auto& [rank, fault, when, tls] = info.param;
  return StrCat("Rank", rank, FaultName(fault), "During", kWhen[static_cast<int>(when)],
                tls.empty() ? "SharedMemory" : "Tcp");
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, ClusterDeathTest,
    ::testing::Combine(::testing::Values(0, 1),
                       ::testing::Values(Fault::kExit, Fault::kCrash, Fault::kKill, Fault::kStop),
                       ::testing::Values(When::kStart, When::kStep, When::kStop),
                       ::testing::Values("", "tcp")),
    NameOf);

// --- Losses that do not end the job --------------------------------------------------------------

class ClusterLossTest : public ClusterTest {
 protected:
  // Over the first two of three nodes.
  absl::StatusOr<std::unique_ptr<Session>> StartFew(Cluster& cluster) {
    SessionOptions options;
    options.kernels = &kernels_;
    options.num_processes = 2;
    options.start_engine = cluster.engine_factory();
    return Session::Start(MakePlan(2), options);
  }
};

// Counts the losses and goes on, unless it was a node whose loss ends the job.
class LossCounter {
 public:
  explicit LossCounter(int fatal_rank = -1) : fatal_rank_(fatal_rank) {}

  AfterLoss Count(const absl::Status& report) {
    const absl::MutexLock lock(&mutex_);
    reports_.push_back(report);
    return OriginOf(report).rank == fatal_rank_ ? AfterLoss::kEndJob : AfterLoss::kContinue;
  }
  std::vector<absl::Status> reports() {
    const absl::MutexLock lock(&mutex_);
    return reports_;
  }

 private:
  const int fatal_rank_;
  absl::Mutex mutex_;
  std::vector<absl::Status> reports_ ABSL_GUARDED_BY(mutex_);
};

// Messages number the steps of the whole run, as the console does, not those of the session.
TEST_F(ClusterLossTest, ALossInAResumedRunNamesItsStep) {
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  SessionOptions options;
  options.kernels = &kernels_;
  options.first_step = 200;
  options.start_engine = (*cluster)->engine_factory();
  absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(MakePlan(2), options);
  ASSERT_TRUE(session.ok()) << session.status();
  ASSERT_TRUE((*session)->Run(MakeFeeds(2)).ok());
  EXPECT_THAT((*session)->Run(MakeFeeds(2, 1, Fault::kKill)).status().ToString(),
              HasSubstr("killed by signal 9 (Killed) in step 202"));
}

TEST_F(ClusterLossTest, AJobMayGoOnWithoutANode) {
  LossCounter losses;
  ClusterOptions options = Options(3);
  options.on_loss = [&losses](const absl::Status& report) { return losses.Count(report); };
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> all = StartSession(**cluster, 4);  // two in the last
  ASSERT_TRUE(all.ok()) << all.status();
  absl::StatusOr<std::unique_ptr<Session>> few = StartFew(**cluster);
  ASSERT_TRUE(few.ok()) << few.status();
  ASSERT_TRUE((*few)->Run(MakeFeeds(2)).ok());

  const absl::Status lost = (*all)->Run(MakeFeeds(4, 2, Fault::kKill)).status();
  EXPECT_TRUE(absl::IsUnavailable(lost)) << lost;
  EXPECT_THAT(lost.ToString(), HasSubstr("killed by signal 9 (Killed) in step 1"));
  EXPECT_EQ(OriginOf(lost).rank, 2);
  // What the handler was told is the error of the session over the lost node. The other one goes
  // on, and so does one that starts now.
  EXPECT_THAT(losses.reports(), ::testing::ElementsAre(lost));
  all->reset();
  EXPECT_FALSE(StartSession(**cluster, 4).ok());
  absl::StatusOr<std::unique_ptr<Session>> next = StartFew(**cluster);
  ASSERT_TRUE(next.ok()) << next.status();
  for (auto& session : {&*few, &*next}) {
    const absl::StatusOr<StepResult> result = (*session)->Run(MakeFeeds(2));
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->Find("s")->As<float>()[0], -8);
  }

  // A second loss is another event.
  const absl::Status second = (*few)->Run(MakeFeeds(2, 1, Fault::kExit)).status();
  EXPECT_THAT(second.ToString(), HasSubstr("exited with status 3"));
  EXPECT_THAT(losses.reports(), ::testing::ElementsAre(lost, second));
  few->reset();
  next->reset();
  EXPECT_TRUE((*cluster)->Stop().ok()) << "the job went on without them";
}

TEST_F(ClusterLossTest, StopReturnsTheLossThatEndedTheJobAndNoneBefore) {
  LossCounter losses(/*fatal_rank=*/1);
  ClusterOptions options = Options(3);
  options.on_loss = [&losses](const absl::Status& report) { return losses.Count(report); };
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(options);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> few = StartFew(**cluster);
  ASSERT_TRUE(few.ok()) << few.status();
  {
    const absl::StatusOr<std::unique_ptr<Session>> all = StartSession(**cluster, 4);
    ASSERT_TRUE(all.ok()) << all.status();
    EXPECT_FALSE((*all)->Run(MakeFeeds(4, 2, Fault::kKill)).ok());
  }
  const absl::Status fatal = (*few)->Run(MakeFeeds(2, 1, Fault::kExit)).status();
  EXPECT_EQ(OriginOf(fatal).rank, 1) << fatal;
  EXPECT_EQ(losses.reports().size(), 2u);
  few->reset();
  EXPECT_EQ((*cluster)->Stop(), fatal);
}

TEST_F(ClusterLossTest, ALossBeforeAllHaveJoinedEndsTheJob) {
  LossCounter losses;
  ClusterOptions options = Options(2);
  options.on_loss = [&losses](const absl::Status& report) { return losses.Count(report); };
  setenv("FAULTY_NODE_START", StrCat("1:", static_cast<int>(Fault::kExit)).c_str(), 1);
  const absl::Status started = Cluster::Start(options).status();
  EXPECT_THAT(started.ToString(), HasSubstr("exited with status 3 before it joined"));
  EXPECT_THAT(losses.reports(), ::testing::ElementsAre(started));
}

// --- Death inside a collective -------------------------------------------------------------------

// A collective of many chunks, and the fault that strikes at each of them.
struct CollectiveDeath {
  CollectiveKind kind;
  int rank;
  Fault fault;
  std::string tls;  // UCX_TLS
  int num_processes = 2;
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kDirect;
  int64_t chunk_bytes = CollectiveSpec().chunk_bytes;  // of its messages
};

class CollectiveDeathTest : public ClusterDeathTestBase,
                            public ::testing::WithParamInterface<CollectiveDeath> {
 protected:
  static constexpr int kSize = 1 << 20;

  // Rows of -1, one a device, and what becomes of them by a collective of the kind.
  planner::Plan MakePlanWith(const CollectiveDeath& death) {
    const CollectiveKind kind = death.kind;
    const std::string num_processes = StrCat(death.num_processes);
    const bool is_permute = kind == CollectiveKind::kPermute;
    std::string result;
    switch (kind) {
      case CollectiveKind::kAllReduce:
        result = "reduce_sum(%y) {axes=[0]} : f32[SIZE]";
        break;
      case CollectiveKind::kReduceScatter:
        result = "reduce_sum(%y) {axes=[0]} : f32[SIZE] @[d]";
        break;
      case CollectiveKind::kAllGather:
        result = "neg(%y) : f32[ROWS, SIZE] @[_, _]";
        break;
      case CollectiveKind::kAllToAll:
        result = "neg(%y) : f32[ROWS, SIZE] @[_, d]";
        break;
      default:
        result = "neg(%y) : f32[ROWS, SIZE] @[b.a, _]";
    }
    const std::string text = StrCat("mesh m = [", is_permute ? "a=2, b=2" : "d=N",
                                    "]\n"
                                    "graph g {\n"
                                    "  %x = input : f32[ROWS, SIZE] @[",
                                    is_permute ? "a.b" : "d",
                                    ", _]\n"
                                    "  %y = neg(%x) : f32[ROWS, SIZE]\n"
                                    "  %z = ",
                                    result,
                                    "\n"
                                    "  return %z\n"
                                    "}\n");
    planner::Plan plan =
        PlanOf(absl::StrReplaceAll(text, {{"SIZE", StrCat(kSize)},
                                          {"ROWS", is_permute ? std::string("4") : num_processes},
                                          {"d=N", StrCat("d=", num_processes)}}));
    EXPECT_EQ(plan.collectives.size(), 1u);
    for (CollectiveSpec& spec : plan.collectives) {
      EXPECT_EQ(spec.kind, kind);
      spec.algorithm = death.algorithm;
      if (death.algorithm == CollectiveAlgorithm::kHierarchical) {  // two hosts
        for (size_t i = 0; i < spec.devices.size(); ++i) {
          spec.hosts.push_back(2 * i < spec.devices.size() ? 0 : 1);
        }
      }
      spec.chunk_bytes = death.chunk_bytes;
    }
    return plan;
  }

  // Runs a step during which the node does what it is told to at message `message`, counted from
  // the beginning of the collective. False if there were fewer, and the step has its result.
  bool DiesAtMessage(int message) { return Dies("FAULTY_NODE_MESSAGE", message); }

  // The same with what `variable` counts.
  bool Dies(const char* variable, int count) {
    const int rank = GetParam().rank;
    const int num_processes = GetParam().num_processes;
    const Fault fault = GetParam().fault;
    const CollectiveKind kind = GetParam().kind;
    const testing::TempFolder folder;
    const std::string mark = folder.Path("mark");
    setenv("FAULTY_NODE_MARK", mark.c_str(), 1);
    setenv(variable, StrCat(rank, ":", static_cast<int>(fault), ":", count).c_str(), 1);
    absl::StatusOr<std::unique_ptr<Cluster>> cluster =
        Cluster::Start(Options(static_cast<uint32_t>(num_processes)));
    EXPECT_TRUE(cluster.ok()) << cluster.status();
    if (!cluster.ok()) return false;
    const std::vector<int> pids = Pids(**cluster);
    SessionOptions options;
    options.kernels = &kernels_;
    options.timeout = absl::Seconds(20 * kSlowdown);
    options.start_engine = (*cluster)->engine_factory();
    absl::StatusOr<std::unique_ptr<Session>> session = Session::Start(plan_, options);
    EXPECT_TRUE(session.ok()) << session.status();
    if (!session.ok()) return false;
    Tensor x(plan_.feeds[0].type);
    std::fill_n(x.As<float>(), x.num_elements(), 1.0f);
    x.As<float>()[rank * x.num_elements() / num_processes] = testing::ToFeed(Fault::kCount);

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
      const bool is_sum =
          kind == CollectiveKind::kAllReduce || kind == CollectiveKind::kReduceScatter;
      EXPECT_EQ(result->fetches[0].second.As<float>()[1], is_sum ? -num_processes : 1);
    }
    return has_died;
  }

  const planner::Plan plan_ = MakePlanWith(GetParam());
};

TEST_P(CollectiveDeathTest, IsNamedAtEveryMessage) {
  const CollectiveDeath& death = GetParam();
  if (!death.tls.empty()) setenv("UCX_TLS", death.tls.c_str(), 1);
  // Silence takes its time to be noticed, and sanitizers take theirs, of several processes most.
  // With PENSTOCK_EVERY_MESSAGE none is left out.
  int stride = death.fault == Fault::kStop ? 7 : kSlowdown > 1 ? 5 : 1;
  if (death.num_processes > 2 && kSlowdown > 1) stride *= kSlowdown;
  if (std::getenv("PENSTOCK_EVERY_MESSAGE") != nullptr) stride = 1;
  // Where some are left out, others are each time; a failure says which one it was.
  int message = 1 + static_cast<int>(std::random_device()() % static_cast<unsigned>(stride));
  while (DiesAtMessage(message)) {
    if (HasFailure()) FAIL() << "message " << message;
    message += stride;
  }
  // Several chunks were sent and received.
  EXPECT_GT(message, 8);
}

INSTANTIATE_TEST_SUITE_P(
    Matrix, CollectiveDeathTest,
    ::testing::Values(CollectiveDeath{CollectiveKind::kAllReduce, 0, Fault::kKill, ""},
                      CollectiveDeath{CollectiveKind::kAllReduce, 1, Fault::kExit, ""},
                      CollectiveDeath{CollectiveKind::kAllReduce, 1, Fault::kStop, ""},
                      CollectiveDeath{CollectiveKind::kAllReduce, 0, Fault::kCrash, "tcp"},
                      CollectiveDeath{CollectiveKind::kAllReduce, 1, Fault::kKill, "tcp"},
                      CollectiveDeath{CollectiveKind::kAllReduce, 2, Fault::kKill, "", 4,
                                      CollectiveAlgorithm::kRing},
                      CollectiveDeath{CollectiveKind::kAllReduce, 1, Fault::kExit, "tcp", 4,
                                      CollectiveAlgorithm::kRing},
                      CollectiveDeath{CollectiveKind::kAllReduce, 3, Fault::kKill, "", 4,
                                      CollectiveAlgorithm::kHierarchical},
                      CollectiveDeath{CollectiveKind::kAllReduce, 0, Fault::kCrash, "tcp", 4,
                                      CollectiveAlgorithm::kHierarchical},
                      CollectiveDeath{CollectiveKind::kReduceScatter, 1, Fault::kKill, ""},
                      CollectiveDeath{CollectiveKind::kReduceScatter, 0, Fault::kKill, "tcp"},
                      CollectiveDeath{CollectiveKind::kReduceScatter, 3, Fault::kExit, "", 4,
                                      CollectiveAlgorithm::kRing},
                      CollectiveDeath{CollectiveKind::kAllGather, 0, Fault::kKill, ""},
                      CollectiveDeath{CollectiveKind::kAllGather, 1, Fault::kKill, "tcp"},
                      CollectiveDeath{CollectiveKind::kAllGather, 2, Fault::kKill, "tcp", 4,
                                      CollectiveAlgorithm::kRing},
                      CollectiveDeath{CollectiveKind::kAllToAll, 1, Fault::kKill, ""},
                      CollectiveDeath{CollectiveKind::kAllToAll, 0, Fault::kKill, "tcp"},
                      CollectiveDeath{CollectiveKind::kPermute, 0, Fault::kKill, ""},
                      CollectiveDeath{CollectiveKind::kPermute, 1, Fault::kKill, "tcp"}),
    [](const auto& info) {
      std::string name(Name(info.param.kind));
      name.erase(std::remove(name.begin(), name.end(), '_'), name.end());
      return StrCat(name, "Rank", info.param.rank, FaultName(info.param.fault),
                    info.param.tls.empty() ? "SharedMemory" : "Tcp",
                    info.param.num_processes == 2                        ? ""
                    : info.param.algorithm == CollectiveAlgorithm::kRing ? "RingOfFour"
                                                                         : "FourOnTwoHosts");
    });

// Messages of 2 MiB, which are asked for in chunks: the node dies between those, in any of the
// calls that advance a message.
class LongMessageDeathTest : public CollectiveDeathTest {};

TEST_P(LongMessageDeathTest, IsNamedWithinAMessage) {
  setenv("UCX_TLS", GetParam().tls.c_str(), 1);
  std::minstd_rand random(std::random_device{}());
  int count = 1;
  for (int most = 2; Dies("FAULTY_NODE_WITHIN", count); most *= 3) {
    if (HasFailure()) FAIL() << "call " << count;
    count += 1 + static_cast<int>(random() % static_cast<unsigned>(most));
  }
  EXPECT_GT(count, 8);
}

INSTANTIATE_TEST_SUITE_P(Matrix, LongMessageDeathTest,
                         ::testing::Values(CollectiveDeath{.kind = CollectiveKind::kAllReduce,
                                                           .rank = 0,
                                                           .fault = Fault::kKill,
                                                           .tls = "tcp",
                                                           .chunk_bytes = 4 << 20},
                                           CollectiveDeath{.kind = CollectiveKind::kAllGather,
                                                           .rank = 1,
                                                           .fault = Fault::kExit,
                                                           .tls = "tcp",
                                                           .chunk_bytes = 4 << 20}),
                         [](const auto& info) {
                           return StrCat("Rank", info.param.rank, FaultName(info.param.fault));
                         });

// A node whose communication executor ends fails the session, and says so.
TEST_F(ClusterLossTest, TheEndOfACommunicationExecutorIsNamedWithItsNode) {
  setenv("FAULTY_NODE_WAIT", StrCat("1:", static_cast<int>(Fault::kError)).c_str(), 1);
  absl::StatusOr<std::unique_ptr<Cluster>> cluster = Cluster::Start(Options(2));
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  absl::StatusOr<std::unique_ptr<Session>> session = StartSession(**cluster, 2);
  ASSERT_TRUE(session.ok()) << session.status();
  // It ends as it next waits, which may be after the end of a step.
  const absl::Time deadline = absl::Now() + absl::Seconds(20 * kSlowdown);
  absl::Status status;
  while (status.ok() && absl::Now() < deadline) {
    status = (*session)->Run(MakeFeeds(2, 1, Fault::kCount)).status();
  }
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_THAT(status.ToString(), HasSubstr("node 1 (pid "));
  EXPECT_THAT(status.ToString(), HasSubstr("the communication executor has ended: "));
  EXPECT_EQ(OriginOf(status).rank, 1);
  EXPECT_EQ(OriginOf(status).actor, "communication executor");
  session->reset();
  const absl::Status ended = (*cluster)->Stop();
  EXPECT_TRUE(ended.ok()) << ended;
}

}  // namespace
}  // namespace penstock::actors
