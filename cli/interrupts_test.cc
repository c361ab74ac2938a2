#include "cli/interrupts.h"

#include <signal.h>
#include <unistd.h>

#include <optional>
#include <sstream>
#include <string>

#include "absl/status/status.h"
#include "absl/synchronization/notification.h"
#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

// A start of processes that `signal` cancels. Returns the cause of its end.
absl::Status CancelStart(int signal) {
  std::ostringstream err;
  absl::Notification cancelled;
  absl::Status cause;
  Interrupts interrupts(err);
  interrupts.SetStart(
      Interrupts::Start{.where = "while the test waited",
                        .describe_missing = [] { return std::string("; missing: n2 (rank 1)"); },
                        .cancel =
                            [&](const absl::Status& status) {
                              cause = status;
                              cancelled.Notify();
                            },
                        .kill = [] {}});
  (void)kill(getpid(), signal);
  cancelled.WaitForNotification();
  interrupts.SetStart(std::nullopt);  // waits for the call
  EXPECT_EQ(interrupts.count(), 1);
  return cause;
}

TEST(InterruptsTest, TheFirstSignalCancelsAStartAndSaysWhoIsMissing) {
  EXPECT_EQ(CancelStart(SIGINT).message(),
            "interrupted (Interrupt) while the test waited; missing: n2 (rank 1)");
}

// Exits with kSurvived if no signal ends it.
void InterruptTwice(int first, int second) {
  constexpr int kSurvived = 3;
  (void)CancelStart(first);
  (void)kill(getpid(), second);
  _exit(kSurvived);
}

class InterruptsDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(InterruptsDeathTest, ASecondSignalAfterTheEndExitsAsTheFirstOne) {
  EXPECT_EXIT(InterruptTwice(SIGINT, SIGINT), ::testing::ExitedWithCode(128 + SIGINT), "");
  EXPECT_EXIT(InterruptTwice(SIGINT, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
}

}  // namespace
}  // namespace penstock::cli
