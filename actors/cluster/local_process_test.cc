#include <signal.h>

#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/local_process_internal.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

using ::testing::ElementsAre;

class LocalProcessTest : public ::testing::Test {
 protected:
  LocalProcessTest() {
    auto loop = control::ControlLoop::Start();
    EXPECT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  ~LocalProcessTest() override { Destroy(); }

  // Runs a command of the shell.
  void Start(const std::string& command) {
    Await([this, command]() -> kj::Promise<void> {
      ChildCommand shell;
      shell.arguments = {"sh", "-c", command};  // found in PATH
      auto child = ChildProcess::Start(shell);
      EXPECT_TRUE(child.ok()) << child.status();
      process_ = std::make_unique<LocalProcess>(
          loop_->io(), *std::move(child),
          [this](std::string_view line) { lines_.emplace_back(line); },
          [this](int wait_status) { exits_.push_back(DescribeWaitStatus(wait_status)); });
      return kj::READY_NOW;
    });
  }

  void Destroy() {
    Await([this]() -> kj::Promise<void> {
      process_ = nullptr;
      return kj::READY_NOW;
    });
  }

  kj::Promise<void> Until(const std::function<bool()>& is_reached) {
    if (is_reached()) return kj::READY_NOW;
    return loop_->timer().afterDelay(kj::MILLISECONDS).then([this, is_reached] {
      return Until(is_reached);
    });
  }

  // Until the end of the process and all its output have been reported.
  kj::Promise<void> Finished() {
    return Until([this] { return process_->is_finished() && !exits_.empty(); });
  }

  void Await(std::function<kj::Promise<void>()> begin) {
    EXPECT_EQ(loop_->Await(std::move(begin), absl::Seconds(20), "the test"), absl::OkStatus());
  }

  std::unique_ptr<control::ControlLoop> loop_;
  // On the loop's thread.
  std::vector<std::string> lines_;
  std::vector<std::string> exits_;
  std::unique_ptr<LocalProcess> process_;
};

TEST_F(LocalProcessTest, ReportsLinesAndTheExit) {
  Start("echo one; echo two >&2; printf three; exit 3");
  Await([this] { return Finished(); });
  EXPECT_THAT(lines_, ElementsAre("one", "two", "three"));
  EXPECT_THAT(exits_, ElementsAre("exited with status 3"));
}

TEST_F(LocalProcessTest, ReportsTheEndBehindAllOutput) {
  Start("seq 20000; kill -9 $$");
  size_t num_lines = 0;
  Await([this, &num_lines] {
    return Until([this] { return !exits_.empty(); }).then([this, &num_lines] {
      num_lines = lines_.size();
    });
  });
  EXPECT_EQ(num_lines, 20000u);
}

TEST_F(LocalProcessTest, ReportsAProcessThatIsKilled) {
  Start("exec sleep 100");
  Await([this] {
    EXPECT_FALSE(process_->is_finished());
    process_->Kill();
    return Finished();
  });
  EXPECT_THAT(exits_, ElementsAre("was killed by signal 9 (Killed)"));
}

TEST_F(LocalProcessTest, IsNotFinishedWhileItsOutputIsOpen) {
  Start("sleep 100 & echo $!");
  Await([this] {
    return Until([this] { return !exits_.empty() && !lines_.empty(); }).then([this] {
      EXPECT_FALSE(process_->is_finished());
    });
  });
  kill(std::stoi(lines_[0]), SIGKILL);
  Await([this] { return Finished(); });
}

// As of a daemon, which is a child of another process.
TEST_F(LocalProcessTest, IsFinishedOnceItIsKilledThoughItsOutputIsOpen) {
  Start("(sleep 100 & echo $!); sleep 100");
  Await([this] { return Until([this] { return !lines_.empty(); }); });
  Await([this] {
    process_->Kill();
    return Finished();
  });
  EXPECT_THAT(exits_, ElementsAre("was killed by signal 9 (Killed)"));
  EXPECT_EQ(kill(std::stoi(lines_[0]), SIGKILL), 0);
}

// As an mpirun with its ssh to a host that is gone.
TEST_F(LocalProcessTest, IsKilledWithWhatItHasStarted) {
  if (!std::ifstream("/proc/thread-self/children")) {
    GTEST_SKIP() << "this kernel does not tell the children of a process";
  }
  // In a process group of its own.
  Start("sh -c 'exec setsid sleep 100 & echo $!; wait'; :");
  Await([this] { return Until([this] { return !lines_.empty(); }); });
  Await([this] {
    process_->Kill();
    return Finished();
  });
  // Nobody may reap it, but its command is gone.
  const std::string command = StrCat("/proc/", lines_[0], "/cmdline");
  Await([this, command] {
    return Until(
        [command] { return std::ifstream(command).peek() == std::ifstream::traits_type::eof(); });
  });
}

TEST_F(LocalProcessTest, KillsAndReportsNothingWhenItIsDestroyed) {
  Start("exec sleep 100");
  Destroy();
  EXPECT_TRUE(exits_.empty());
}

}  // namespace
}  // namespace penstock::actors
