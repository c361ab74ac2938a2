#include "base/machine.h"

#include <sched.h>

#include <thread>

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(MachineTest, CoresAreThoseOfTheAffinityMask) {
  EXPECT_GE(UsableCores(), 1);
  EXPECT_LE(UsableCores(), MachineCores());
  int pinned = 0;
  std::thread([&pinned] {
    cpu_set_t all;
    CPU_ZERO(&all);
    ASSERT_EQ(sched_getaffinity(0, sizeof(all), &all), 0);
    cpu_set_t one;
    CPU_ZERO(&one);
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&one) == 0; ++core) {
      if (CPU_ISSET(core, &all)) CPU_SET(core, &one);
    }
    ASSERT_EQ(sched_setaffinity(0, sizeof(one), &one), 0);
    pinned = UsableCores();
  }).join();
  EXPECT_EQ(pinned, 1);
}

TEST(MachineTest, MemoryAndNameAreKnown) {
  EXPECT_GT(MachineMemoryBytes(), uint64_t{1} << 20);
  EXPECT_FALSE(HostName().empty());
}

}  // namespace
}  // namespace penstock
