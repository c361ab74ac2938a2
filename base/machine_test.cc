#include "base/machine.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>

#include "gtest/gtest.h"

#include "tests/support/temp_folder.h"

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

TEST(MachineTest, TheSmallestLimitOfAGroupAndItsParentsCounts) {
  const testing::TempFolder folder;
  std::filesystem::create_directories(folder.Path("a/b"));
  const auto limit = [&folder](const std::string& group, const std::string& text) {
    std::ofstream(folder.Path(group + "cpu.max")) << text;
    return CgroupCoreLimit(folder.path().string(), "/a/b");
  };
  EXPECT_EQ(CgroupCoreLimit(folder.path().string(), "/a/b"), 0);
  EXPECT_EQ(limit("a/b/", "max 100000\n"), 0);
  EXPECT_EQ(limit("a/", "150000 100000\n"), 1.5);
  EXPECT_EQ(limit("a/b/", "400000 100000\n"), 1.5);
  EXPECT_EQ(limit("a/b/", "50000 100000\n"), 0.5);
  EXPECT_EQ(limit("", "25000 100000\n"), 0.25);
  EXPECT_EQ(CgroupCoreLimit(folder.path().string(), "/"), 0.25);
}

TEST(MachineTest, MemoryAndNameAreKnown) {
  EXPECT_GT(MachineMemoryBytes(), uint64_t{1} << 20);
  EXPECT_FALSE(HostName().empty());
}

}  // namespace
}  // namespace penstock
