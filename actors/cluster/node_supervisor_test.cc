// The coordinator's side of nodes that a launcher of the test pretends to start.

#include <signal.h>
#include <unistd.h>

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

#include "actors/cluster/cluster_actors_internal.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/engine/error_origin.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

constexpr absl::Duration kTimeout = absl::Seconds(20);

// What was asked of the launcher, and what it answers; on the thread of the loop.
struct LauncherLog {
  std::map<uint32_t, LaunchCommand> launched;
  std::set<uint32_t> finished;
  std::vector<uint32_t> killed;
  Launcher::Events events;
  bool is_alive = false;
};

// Processes that exist only in a log, on hosts of their own.
class FakeLauncher final : public Launcher {
 public:
  explicit FakeLauncher(LauncherLog& log) : log_(log) { log_.is_alive = true; }
  ~FakeLauncher() override { log_.is_alive = false; }

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
    supervisor_ = std::make_unique<NodeSupervisor>(
        options_, *loop_,
        [this](kj::AsyncIoContext&) { return std::make_unique<FakeLauncher>(log_); },
        [this](uint32_t rank, const std::string& host, std::string_view line) {
          lines_.push_back(StrCat(rank, " ", host, " ", line));
        });
    actors_ = std::make_unique<ClusterActors>(ClusterActors::Setup{
        .ranks = RankTable(3, 3),
        .on_loss = [end_job](const MemberLoss&, const absl::Status& report) { end_job(report); },
        .times = NodeSupervisor::TimesOf(options_),
        .detector = supervisor_->detector_handlers(),
        .on_failure = end_job});
    const absl::Status listening = loop_->Await(
        [this] { return supervisor_->Listen(std::string(32, 'k'), *actors_); }, kTimeout, "");
    EXPECT_TRUE(listening.ok()) << listening;
  }
  ~NodeSupervisorTest() override {
    OnLoop([this] { supervisor_->Close(); });
    EXPECT_FALSE(log_.is_alive);
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

  absl::Status Launch(uint32_t rank, std::vector<std::string> arguments) {
    absl::Status status;
    OnLoop([&] {
      LaunchCommand command;
      command.rank = rank;
      command.arguments = std::move(arguments);
      status = supervisor_->Launch(command);
    });
    return status;
  }

  ClusterOptions options_;
  LauncherLog log_;
  std::vector<std::string> lines_;
  std::unique_ptr<ClusterActors> actors_;
  std::unique_ptr<NodeSupervisor> supervisor_;
  std::unique_ptr<control::ControlLoop> loop_;  // last: its thread uses all of the above
};

TEST_F(NodeSupervisorTest, NodesAreStartedByTheLauncherThatItIsGiven) {
  ASSERT_TRUE(Launch(1, {"penstock", "node"}).ok());
  EXPECT_EQ(Launch(2, {}), absl::NotFoundError("the queue has no such program"));
  OnLoop([this] {
    ASSERT_EQ(log_.launched.size(), 1u);
    EXPECT_THAT(log_.launched[1].arguments, ElementsAre("penstock", "node"));
    EXPECT_EQ(supervisor_->NameOf(1), "node 1 (pid 4701 on host-1)");
    log_.events.on_line(1, "loading");
    EXPECT_THAT(lines_, ElementsAre("1 host-1 loading"));
  });
}

TEST_F(NodeSupervisorTest, AHostThatWaitsForItsTurnLearnsOfTheEnd) {
  std::vector<LaunchCommand> commands(3);
  for (uint32_t rank = 0; rank < 3; ++rank) {
    commands[rank].rank = rank;
    commands[rank].arguments = {"ssh"};
    if (rank < 2) commands[rank].remote_host = "far";
  }
  absl::Status second = absl::UnknownError("has not begun");
  kj::Promise<void> turn = nullptr;
  OnLoop([&] {
    turn = supervisor_->LaunchInTurn(commands[0])
               .then([&](absl::Status&& first) {
                 EXPECT_EQ(first, absl::OkStatus());
                 return supervisor_->LaunchInTurn(commands[1]);
               })
               .then([&](absl::Status&& status) { second = std::move(status); })
               .eagerlyEvaluate(nullptr);
  });
  // A process of this host does not wait.
  EXPECT_EQ(
      loop_->Await([&] { return supervisor_->LaunchInTurn(commands[2]); }, kTimeout, "a turn"),
      absl::OkStatus());
  EXPECT_EQ(loop_->Await([this] { return loop_->timer().afterDelay(20 * kj::MILLISECONDS); },
                         kTimeout, "a while"),
            absl::OkStatus());
  OnLoop([&] {
    EXPECT_EQ(log_.launched.size(), 2u);
    EXPECT_TRUE(absl::IsUnknown(second)) << second;
    // The first host has failed, and with it the job.
    log_.events.on_exit(0, SIGKILL, "");
  });
  EXPECT_TRUE(absl::IsUnavailable(
      loop_->Await([this] { return supervisor_->AwaitJoined(); }, kTimeout, "the nodes")));
  EXPECT_EQ(loop_->Await([&] { return kj::mv(turn); }, kTimeout, "the turn of the second"),
            absl::OkStatus());
  EXPECT_FALSE(log_.launched.contains(1));
  EXPECT_THAT(second.message(), ::testing::HasSubstr("was killed by signal 9"));
}

TEST_F(NodeSupervisorTest, TheEndOfAProcessEndsTheJobAndTheOthers) {
  ASSERT_TRUE(Launch(0, {"penstock", "node"}).ok());
  ASSERT_TRUE(Launch(1, {"penstock", "node"}).ok());
  OnLoop([this] {
    log_.finished.insert(1);
    log_.events.on_exit(1, SIGKILL, ", probably for lack of memory");
  });
  const absl::Status joined =
      loop_->Await([this] { return supervisor_->AwaitJoined(); }, kTimeout, "the nodes");
  EXPECT_EQ(joined.message(),
            "node 1 (pid 4701 on host-1) was killed by signal 9 (Killed), probably for lack of "
            "memory before it joined");
  EXPECT_EQ(OriginOf(joined).rank, 1);
  OnLoop([this, &joined] {
    EXPECT_THAT(log_.killed, ElementsAre(0));  // it has not joined: nothing else can tell it
    EXPECT_EQ(supervisor_->loss(), joined);
  });
  EXPECT_EQ(Launch(2, {"penstock", "node"}), joined);
}

TEST_F(NodeSupervisorTest, TheEndOfTheFailureDetectorEndsTheJobAndIsNamed) {
  ASSERT_TRUE(Launch(0, {"penstock", "node"}).ok());
  {
    caf::scoped_actor self(actors_->system());
    self->send_exit(actors_->failure_detector().actor(), caf::exit_reason::kill);
  }
  const absl::Status joined =
      loop_->Await([this] { return supervisor_->AwaitJoined(); }, kTimeout, "the nodes");
  EXPECT_THAT(joined.message(), ::testing::HasSubstr("the failure detector has ended: "));
  EXPECT_EQ(OriginOf(joined).actor, "failure detector");
  OnLoop([this, &joined] {
    EXPECT_THAT(log_.killed, ElementsAre(0));
    EXPECT_EQ(supervisor_->loss(), joined);
  });
}

}  // namespace
}  // namespace penstock::actors
