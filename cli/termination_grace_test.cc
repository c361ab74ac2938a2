#include "cli/termination_grace.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "gtest/gtest.h"

namespace penstock::cli {
namespace {

// The process ends itself once it has been told of the signal, long before it would be ended.
TEST(TerminationGraceDeathTest, LetsAProcessEndByItself) {
  EXPECT_EXIT(
      {
        int told[2];
        if (pipe(told) != 0) std::abort();
        const TerminationGrace grace(absl::Minutes(10), [&] { (void)!write(told[1], "x", 1); });
        kill(getpid(), SIGTERM);
        char byte = 0;
        (void)!read(told[0], &byte, 1);
        _exit(byte == 'x' ? 3 : 4);
      },
      ::testing::ExitedWithCode(3), "");
}

TEST(TerminationGraceDeathTest, EndsAProcessThatGoesOn) {
  EXPECT_EXIT(
      {
        const TerminationGrace grace(absl::Milliseconds(1), [] { std::cerr << "told"; });
        kill(getpid(), SIGTERM);
        poll(nullptr, 0, -1);
      },
      ::testing::KilledBySignal(SIGTERM), "told");
}

TEST(TerminationGraceDeathTest, IsOverWithTheObject) {
  EXPECT_EXIT(
      {
        {
          const TerminationGrace grace(absl::Minutes(10), [] {});
        }
        kill(getpid(), SIGTERM);
        _exit(0);
      },
      ::testing::KilledBySignal(SIGTERM), "");
}

}  // namespace
}  // namespace penstock::cli
