#include "cli/other_load.h"

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>

#include "gtest/gtest.h"

#include "base/device.h"
#include "base/process_cores.h"

namespace penstock::cli {
namespace {

TEST(BusyTicksTest, AreOfTheCoresThatAreAsked) {
  constexpr char kStat[] =
      "cpu  900 900 900 900 900 900 900 900 900 900\n"
      "cpu0 100 20 3 5000 600 7 8 9 50 0\n"
      "cpu1 1000 200 30 50000 6000 70 80 90 0 0\n"
      "cpu11 1 1 1 1 1 1 1 1 0 0\n"
      "intr 5\n";
  EXPECT_EQ(BusyTicks(kStat, {0}), 100 + 20 + 3 + 7 + 8 + 9);  // without idle, iowait and guests
  EXPECT_EQ(BusyTicks(kStat, {0, 11}), 147 + 6);
  EXPECT_EQ(BusyTicks(kStat, {2}), -1);
  EXPECT_EQ(BusyTicks("", {0}), -1);
  EXPECT_EQ(BusyTicks(kStat, {}), -1);
}

TEST(ProcessTicksTest, AreBehindANameThatMayHoldAnything) {
  EXPECT_EQ(ProcessTicks("7 (a) b (c)) R 1 2 3 4 5 6 7 8 9 10 120 30 0 0 20 0 9"), 150);
  EXPECT_EQ(ProcessTicks("7 (a) R 1 2"), -1);
  EXPECT_EQ(ProcessTicks(""), -1);
}

TEST(OtherLoadTest, ProcessesOfTheJobDoNotCount) {
  const pid_t parent = getpid();
  const pid_t child = fork();
  if (child == 0) {
    while (getppid() == parent) {
    }
    _exit(0);
  }
  ASSERT_GT(child, 0);
  const OtherLoad with_child({child});
  const OtherLoad without_child({});
  EXPECT_EQ(with_child.num_cores(), static_cast<int64_t>(CoresOfThisProcess().processors.size()));
  EXPECT_TRUE(std::isnan(without_child.Cores()));  // too soon
  // Only clocks of the system can tell how it shared its cores, so this takes a second.
  const SteadyClock clock;
  const int64_t end_ns = clock.NowNs() + 1'200'000'000;
  while (clock.NowNs() < end_ns) usleep(10'000);
  const double others = with_child.Cores();
  const double all = without_child.Cores();
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_GE(others, 0);
  EXPECT_GT(all, others + 0.05);
  EXPECT_TRUE(std::isnan(with_child.Cores()));  // it is gone
}

}  // namespace
}  // namespace penstock::cli
