#include "bench/pin_process.h"

#include <sched.h>

#include <set>
#include <thread>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/cpu_topology.h"

namespace penstock::bench {
namespace {

using ::testing::IsSupersetOf;
using ::testing::SizeIs;

std::set<int> ProcessorsOfThisThread() {
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  std::set<int> processors;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.insert(i);
  }
  return processors;
}

// On threads, whose masks end with them. `allowed`: those that the thread may use.
std::set<int> PinnedTo(const std::set<int>& allowed, int index, int count) {
  std::set<int> processors;
  std::thread([&] {
    EXPECT_TRUE(PinThisThread({allowed.begin(), allowed.end()}).ok());
    PinProcess(index, count);
    processors = ProcessorsOfThisThread();
  }).join();
  return processors;
}

TEST(PinProcessTest, ProcessesLieOnProcessorsThatTheyMayUse) {
  const std::set<int> all = ProcessorsOfThisThread();
  if (all.size() < 2) GTEST_SKIP() << "this test needs two processors";
  // Also where the first processor is not among them.
  for (const bool has_first : {true, false}) {
    std::set<int> allowed = all;
    if (!has_first) allowed.erase(allowed.begin());
    for (int index = 0; index < 5; ++index) {
      const std::set<int> pinned = PinnedTo(allowed, index, 5);
      EXPECT_THAT(pinned, SizeIs(1));
      EXPECT_THAT(allowed, IsSupersetOf(pinned));
    }
  }
  EXPECT_NE(PinnedTo(all, 0, 2), PinnedTo(all, 1, 2));
}

}  // namespace
}  // namespace penstock::bench
