// The coordinator's side of nodes that a launcher of the test pretends to start.

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include <capnp/message.h>
#include <kj/debug.h>

#include "actors/cluster/cluster_actors_internal.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/cluster/oom_kills.h"
#include "actors/engine/error_origin.h"
#include "base/machine.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// What was asked of the launcher, and what it answers; on the thread of its loop.
struct LauncherLog {
  std::map<uint32_t, LaunchCommand> launched;
  std::set<uint32_t> finished;
  std::vector<uint32_t> killed;
  Launcher::Events events;
};

// Processes that exist only in a log, on hosts of their own.
class FakeLauncher final : public Launcher {
 public:
  explicit FakeLauncher(LauncherLog& log) : log_(log) {}

  void SetEvents(Events events) override { log_.events = std::move(events); }
  absl::StatusOr<LaunchedProcess> Launch(const LaunchCommand& command) override {
    if (command.arguments.empty()) return absl::NotFoundError("the queue has no such program");
    log_.launched[command.rank] = command;
    const LaunchedProcess process{4700 + static_cast<int>(command.rank),
                                  StrCat("host-", command.rank)};
    return process;
  }
  bool HasLaunched(uint32_t rank) const override { return log_.launched.contains(rank); }
  bool IsFinished(uint32_t rank) override {
    return !HasLaunched(rank) || log_.finished.contains(rank);
  }
  void Kill(uint32_t rank) override {
    if (IsFinished(rank)) return;
    log_.killed.push_back(rank);
    log_.finished.insert(rank);
  }

 private:
  LauncherLog& log_;
};

class NodeSupervisorTest : public ::testing::Test {
 protected:
  NodeSupervisorTest() : loop_(*control::ControlLoop::Start()) {
    options_.num_processes = 3;
    options_.max_starts = 1;
    options_.listen = StrCat("unix-abstract:penstock-test-", getpid());
    const auto end_job = [this](const absl::Status& cause) {
      loop_->Post([this, cause] { supervisor_->Fail(cause); });
    };
    supervisor_ = std::make_unique<NodeSupervisor>(options_, *loop_);
    actors_ = std::make_unique<ClusterActors>(ClusterActors::Setup{
        .on_output =
            [this](uint32_t rank, std::string_view host, std::string_view line) {
              lines_.push_back(StrCat(rank, " ", host, " ", line));
            },
        .ranks = RankTable(3, 3),
        .on_loss = [end_job](const MemberLoss&, const absl::Status& report) { end_job(report); },
        .times = NodeSupervisor::TimesOf(options_),
        .detector = supervisor_->detector_handlers(),
        .make_launcher =
            [this](kj::AsyncIoContext&) {
              launcher_loop_ = kj::getCurrentThreadExecutor().addRef();
              return std::make_unique<FakeLauncher>(log_);
            },
        .processes = supervisor_->process_events(),
        .on_failure = end_job});
    const absl::Status listening = loop_->Await(
        [this] { return supervisor_->Listen(std::string(32, 'k'), *actors_); }, kTimeout, "");
    EXPECT_TRUE(listening.ok()) << listening;
  }
  ~NodeSupervisorTest() noexcept override {
    OnLoop([this] { supervisor_->Close(); });
    actors_->Stop(kTimeout);
    loop_ = nullptr;
  }

  // Runs it on the loop, in the order of the calls.
  template <typename Work>
  void OnLoop(Work work) {
    const absl::Status done = loop_->Await(
        [&work]() -> kj::Promise<void> {
          work();
          return kj::READY_NOW;
        },
        kTimeout, "the work of the test");
    EXPECT_TRUE(done.ok()) << done;
  }
  // On that of the launcher. REQUIRES: a command was launched.
  template <typename Work>
  void OnLauncher(Work work) {
    // ThreadSanitizer does not see the lock of the library.
    std::atomic<bool> is_begun = true;
    std::atomic<bool> is_done = false;
    launcher_loop_->executeSync([&] {
      if (is_begun) work();
      is_done = true;
    });
    ASSERT_TRUE(is_done);
  }

  static LaunchCommand CommandOf(uint32_t rank, std::vector<std::string> arguments) {
    LaunchCommand command;
    command.rank = rank;
    command.arguments = std::move(arguments);
    return command;
  }
  // As Cluster does.
  absl::Status Launch(const LaunchCommand& command) {
    absl::Status turn =
        loop_->Await([&] { return supervisor_->AwaitTurn(command); }, kTimeout, "the turn");
    return turn.ok() ? actors_->launcher().Launch(command, kTimeout) : turn;
  }
  absl::Status Launch(uint32_t rank, std::vector<std::string> arguments) {
    return Launch(CommandOf(rank, std::move(arguments)));
  }
  absl::Status AwaitJoined() {
    return loop_->Await([this] { return supervisor_->AwaitJoined(); }, kTimeout, "the nodes");
  }
  // A member that was not started here, whose starter reports its end.
  void JoinWatched(uint32_t rank, int pid) {
    const absl::Status joined = loop_->Await(
        [&]() -> control::StatusPromise {
          capnp::MallocMessageBuilder message;
          auto info = message.initRoot<control::NodeInfo>();
          info.setRank(static_cast<int32_t>(rank));
          info.setPid(pid);
          info.setHost("far");
          info.setIsWatched(true);
          return host()
              .Admit(/*connection=*/1, info.asReader(),
                     control::Node::Client(KJ_EXCEPTION(DISCONNECTED, "the node of the test")))
              .then([](absl::StatusOr<control::Admission>&& admission) -> absl::Status {
                return admission.status();
              });
        },
        kTimeout, "the node");
    EXPECT_EQ(joined, absl::OkStatus());
  }
  // For what comes from members.
  control::ControlPort::Host& host() { return *supervisor_; }
  // The ranks whose processes have been killed, once there are so many.
  std::vector<uint32_t> AwaitKilled(size_t count) {
    std::vector<uint32_t> killed;
    const absl::Time deadline = absl::Now() + kTimeout;
    while (killed.size() < count && absl::Now() < deadline) {
      OnLauncher([&] { killed = log_.killed; });
    }
    return killed;
  }

  ClusterOptions options_;
  LauncherLog log_;
  kj::Own<const kj::Executor> launcher_loop_;
  std::vector<std::string> lines_;  // of the pump, for whoever has flushed it
  std::unique_ptr<NodeSupervisor> supervisor_;
  std::unique_ptr<ClusterActors> actors_;
  std::unique_ptr<control::ControlLoop> loop_;  // last: its thread uses all of the above
};

TEST_F(NodeSupervisorTest, NodesAreStartedByTheLauncherThatItIsGiven) {
  ASSERT_TRUE(Launch(1, {"penstock", "node"}).ok());
  EXPECT_EQ(Launch(2, {}), absl::NotFoundError("the queue has no such program"));
  OnLauncher([this] {
    ASSERT_EQ(log_.launched.size(), 1u);
    EXPECT_THAT(log_.launched[1].arguments, ElementsAre("penstock", "node"));
    log_.events.on_line(1, "loading");
  });
  OnLoop([this] { EXPECT_EQ(supervisor_->NameOf(1), "node 1 (pid 4701 on host-1)"); });
  ASSERT_EQ(actors_->pump().Flush(kTimeout), absl::OkStatus());
  EXPECT_THAT(lines_, ElementsAre("1 host-1 loading"));
}

TEST_F(NodeSupervisorTest, AHostThatWaitsForItsTurnLearnsOfTheEnd) {
  std::vector<LaunchCommand> commands;
  for (uint32_t rank = 0; rank < 3; ++rank) {
    commands.push_back(CommandOf(rank, {"ssh"}));
    if (rank < 2) commands[rank].remote_host = "far";
  }
  ASSERT_EQ(Launch(commands[0]), absl::OkStatus());
  absl::Status second = absl::UnknownError("has not begun");
  kj::Promise<void> turn = nullptr;
  OnLoop([&] {
    turn = supervisor_->AwaitTurn(commands[1])
               .then([&](absl::Status&& status) { second = std::move(status); })
               .eagerlyEvaluate(nullptr);
  });
  // A process of this host does not wait.
  EXPECT_EQ(Launch(commands[2]), absl::OkStatus());
  EXPECT_EQ(loop_->Await([this] { return loop_->timer().afterDelay(20 * kj::MILLISECONDS); },
                         kTimeout, "a while"),
            absl::OkStatus());
  OnLoop([&] { EXPECT_TRUE(absl::IsUnknown(second)) << second; });
  // The first host has failed, and with it the job.
  OnLauncher([this] { log_.events.on_exit(0, SIGKILL, ""); });
  EXPECT_TRUE(absl::IsUnavailable(AwaitJoined()));
  EXPECT_EQ(loop_->Await([&] { return kj::mv(turn); }, kTimeout, "the turn of the second"),
            absl::OkStatus());
  EXPECT_THAT(second.message(), ::testing::HasSubstr("was killed by signal 9"));
}

TEST_F(NodeSupervisorTest, TheEndOfAProcessEndsTheJobAndTheOthers) {
  ASSERT_TRUE(Launch(0, {"penstock", "node"}).ok());
  ASSERT_TRUE(Launch(1, {"penstock", "node"}).ok());
  OnLauncher([this] {
    log_.finished.insert(1);
    log_.events.on_exit(1, SIGKILL, ", probably for lack of memory");
  });
  const absl::Status joined = AwaitJoined();
  EXPECT_EQ(joined.message(),
            "node 1 (pid 4701 on host-1) was killed by signal 9 (Killed), probably for lack of "
            "memory before it joined");
  EXPECT_EQ(OriginOf(joined).rank, 1);
  EXPECT_THAT(AwaitKilled(1), ElementsAre(0));  // it has not joined: nothing else can tell it
  OnLoop([this, &joined] { EXPECT_EQ(supervisor_->loss(), joined); });
  EXPECT_EQ(Launch(2, {"penstock", "node"}), joined);
}

// ssh tells the status of a node alone: that the host was out of memory, a line says that comes
// before.
TEST_F(NodeSupervisorTest, TheHostOfANodeSaysThatItWasOutOfMemory) {
  LaunchCommand command = CommandOf(1, {"ssh"});
  command.remote_host = "far";
  ASSERT_TRUE(Launch(command).ok());
  OnLauncher([this] {
    log_.finished.insert(1);
    log_.events.on_line(1, OutOfMemoryLine());
    log_.events.on_line(1, "Connection closed.");
    log_.events.on_exit(1, SIGKILL, "");
  });
  const absl::Status joined = AwaitJoined();
  EXPECT_EQ(joined.message(), StrCat("node 1 (pid 4701 on host-1) was killed by signal 9 (Killed)",
                                     kProbablyOutOfMemory, " before it joined"));
}

TEST_F(NodeSupervisorTest, WhatStartsANodeOnAHostIsNamedWhereItFails) {
  LaunchCommand command = CommandOf(1, {"/usr/bin/ssh"});
  command.remote_host = "far";
  ASSERT_TRUE(Launch(command).ok());
  OnLauncher([this] {
    log_.finished.insert(1);
    log_.events.on_line(1, "ssh: connect to host far port 22: No route to host\r");
    log_.events.on_exit(1, 255 << 8, "");
  });
  const absl::Status joined = AwaitJoined();
  EXPECT_EQ(joined.message(),
            StrCat("node 1 (pid 4701 on host-1) exited with status 255 (ssh on ", HostName(),
                   ": ssh: connect to host far port 22: No route to host) before it joined"));
}

// --- Members whose ends are reported -------------------------------------------------------------

TEST_F(NodeSupervisorTest, AClosedConnectionWaitsForTheReport) {
  JoinWatched(1, 4711);
  OnLoop([this] {
    host().OnMemberGone(1);
    host().OnMemberEnd({.rank = 1, .pid = 4711, .wait_status = SIGKILL, .is_out_of_memory = true});
  });
  EXPECT_EQ(AwaitJoined().message(),
            StrCat("node 1 (pid 4711 on far) was killed by signal 9 (Killed)", kProbablyOutOfMemory,
                   " while the job was loading"));
}

TEST_F(NodeSupervisorTest, AReportOfAnotherProcessIsNoNews) {
  JoinWatched(1, 4711);
  OnLoop([this] {
    host().OnMemberEnd({.rank = 1, .pid = 4712, .wait_status = SIGKILL, .is_out_of_memory = false});
    host().OnMemberEnd({.rank = 9, .pid = 4711, .wait_status = SIGKILL, .is_out_of_memory = false});
    host().OnMemberGone(1);
  });
  EXPECT_EQ(AwaitJoined().message(),
            "node 1 (pid 4711 on far) has closed its connection while the job was loading");
}

// The end of the job waits for the report, too: without it, the job would have ended in order.
TEST_F(NodeSupervisorTest, AReportCountsWhileTheJobStops) {
  ASSERT_TRUE(Launch(0, {"penstock", "node"}).ok());
  JoinWatched(1, 4711);
  bool is_reported = false;
  bool is_reported_before_end = false;
  kj::Promise<void> report = nullptr;
  kj::Promise<void> stop = nullptr;
  OnLoop([&] {
    stop = supervisor_->Stop(absl::OkStatus()).then([&] { is_reported_before_end = is_reported; });
    host().OnMemberGone(1);
    report = loop_->timer().afterDelay(100 * kj::MILLISECONDS).then([&] {
      is_reported = true;
      host().OnMemberEnd(
          {.rank = 1, .pid = 4711, .wait_status = SIGSEGV, .is_out_of_memory = false});
    });
    report = report.eagerlyEvaluate(nullptr);
    stop = stop.eagerlyEvaluate(nullptr);
  });
  OnLauncher([this] {
    log_.finished.insert(0);
    log_.events.on_exit(0, 0, "");
  });
  EXPECT_EQ(loop_->Await([&] { return kj::mv(stop); }, kTimeout, "the end"), absl::OkStatus());
  EXPECT_TRUE(is_reported_before_end);
  EXPECT_EQ(actors_->failure_detector().Flush(kTimeout), absl::OkStatus());
  OnLoop([&] {
    report = nullptr;
    EXPECT_EQ(supervisor_->loss().message(),
              "node 1 (pid 4711 on far) was killed by signal 11 (Segmentation fault) while the job "
              "was stopping");
  });
}

// --- The end -------------------------------------------------------------------------------------

// It was not there when the others were told.
TEST_F(NodeSupervisorTest, OneThatIsLaunchedWhileTheJobEndsIsKilled) {
  OnLoop([this] { supervisor_->Fail(absl::InternalError("enough")); });
  ASSERT_TRUE(actors_->launcher().Launch(CommandOf(1, {"penstock", "node"}), kTimeout).ok());
  EXPECT_THAT(AwaitKilled(1), ElementsAre(1));
}

// --- The end of an actor -------------------------------------------------------------------------

TEST_F(NodeSupervisorTest, TheEndOfAnActorBeforeListenIsToldByListen) {
  NodeSupervisor supervisor(options_, *loop_);
  const absl::Status cause = absl::InternalError("the membership has ended");
  OnLoop([&] { supervisor.Fail(cause); });
  EXPECT_EQ(loop_->Await([&] { return supervisor.Listen(std::string(32, 'k'), *actors_); },
                         kTimeout, "listening"),
            cause);
  EXPECT_EQ(loop_->Await([&] { return supervisor.Stop(cause); }, kTimeout, "the end"),
            absl::OkStatus());
  OnLoop([&] {
    EXPECT_EQ(supervisor.loss(), cause);
    supervisor.Close();
  });
}

TEST_F(NodeSupervisorTest, TheEndOfTheFailureDetectorEndsTheJobAndIsNamed) {
  ASSERT_TRUE(Launch(0, {"penstock", "node"}).ok());
  {
    caf::scoped_actor self(actors_->system());
    self->send_exit(actors_->failure_detector().actor(), caf::exit_reason::kill);
  }
  const absl::Status joined = AwaitJoined();
  EXPECT_THAT(joined.message(), ::testing::HasSubstr("the failure detector has ended: "));
  EXPECT_EQ(OriginOf(joined).actor, "failure detector");
  EXPECT_THAT(AwaitKilled(1), ElementsAre(0));
  OnLoop([this, &joined] { EXPECT_EQ(supervisor_->loss(), joined); });
}

TEST_F(NodeSupervisorTest, TheEndOfTheLauncherEndsTheJobAndIsNamed) {
  ASSERT_TRUE(Launch(0, {"penstock", "node"}).ok());
  {
    caf::scoped_actor self(actors_->system());
    self->send_exit(actors_->launcher().actor(), caf::exit_reason::kill);
  }
  const absl::Status joined = AwaitJoined();
  EXPECT_THAT(joined.message(), ::testing::HasSubstr("the launcher has ended: "));
  EXPECT_EQ(OriginOf(joined).actor, "launcher");
  EXPECT_EQ(Launch(1, {"penstock", "node"}), joined);
  // Its processes have ended with it: nobody waits for them.
  EXPECT_EQ(loop_->Await([this] { return supervisor_->Stop(absl::OkStatus()); },
                         options_.stop_timeout / 2, "the end of the nodes"),
            absl::OkStatus());
}

}  // namespace
}  // namespace penstock::actors
