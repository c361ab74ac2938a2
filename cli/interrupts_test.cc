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

Interrupts::Start StartOf(absl::Notification& cancelled, absl::Status* cause) {
  return {.where = "while the test waited",
          .describe_missing = [] { return std::string("; missing: n2 (rank 1)"); },
          .cancel =
              [&cancelled, cause](const absl::Status& status) {
                *cause = status;
                cancelled.Notify();
              },
          .kill = [] {}};
}

// Exits with 3 if no signal ends it.
void InterruptTwice(int first, int second) {
  std::ostringstream err;
  absl::Notification cancelled;
  absl::Status cause;
  {
    Interrupts interrupts(err);
    interrupts.SetStart(StartOf(cancelled, &cause));
    (void)kill(getpid(), first);
    cancelled.WaitForNotification();
    interrupts.SetStart(std::nullopt);
  }
  (void)kill(getpid(), second);
  _exit(3);
}

class InterruptsDeathTest : public ::testing::Test {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST(InterruptsTest, TheFirstSignalCancelsAStartAndSaysWhoIsMissing) {
  std::ostringstream err;
  absl::Notification cancelled;
  absl::Status cause;
  Interrupts interrupts(err);
  interrupts.SetStart(StartOf(cancelled, &cause));
  (void)kill(getpid(), SIGINT);
  cancelled.WaitForNotification();
  interrupts.SetStart(std::nullopt);  // waits for the call
  EXPECT_EQ(cause.message(), "interrupted (Interrupt) while the test waited; missing: n2 (rank 1)");
  EXPECT_EQ(interrupts.count(), 1);
}

TEST_F(InterruptsDeathTest, ASecondSignalAfterTheEndExitsAsTheFirstOne) {
  EXPECT_EXIT(InterruptTwice(SIGINT, SIGINT), ::testing::ExitedWithCode(128 + SIGINT), "");
  EXPECT_EXIT(InterruptTwice(SIGINT, SIGTERM), ::testing::ExitedWithCode(128 + SIGTERM), "");
}

}  // namespace
}  // namespace penstock::cli
