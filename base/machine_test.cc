#include "base/machine.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

#include "base/cgroup_internal.h"
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

TEST(MachineTest, LimitsOfControlGroupsV1CountToo) {
  const testing::TempFolder folder;
  std::filesystem::create_directories(folder.Path("a/b"));
  const auto limit = [&folder](const std::string& group, int quota_us, int period_us) {
    std::ofstream(folder.Path(group + "cpu.cfs_quota_us")) << quota_us << "\n";
    std::ofstream(folder.Path(group + "cpu.cfs_period_us")) << period_us << "\n";
    return CgroupCoreLimit(folder.path().string(), "/a/b");
  };
  EXPECT_EQ(limit("a/b/", -1, 100000), 0);
  EXPECT_EQ(limit("a/", 150000, 100000), 1.5);
  EXPECT_EQ(limit("a/b/", 400000, 100000), 1.5);
  EXPECT_EQ(limit("a/b/", 25000, 50000), 0.5);
  EXPECT_EQ(limit("", 25000, 100000), 0.25);
}

// Each place as "root path".
std::vector<std::string> Find(const std::string& cgroup, const std::string& mountinfo) {
  std::vector<std::string> places;
  for (const CgroupPlace& place : FindCpuCgroups(cgroup, mountinfo)) {
    places.push_back(place.root + " " + place.path);
  }
  return places;
}

TEST(MachineTest, GroupsAreFoundWhereTheyAreMounted) {
  using Places = std::vector<std::string>;
  constexpr char kV2[] = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(Find("0::/a/b\n", kV2), Places({"/sys/fs/cgroup /a/b"}));
  // Both versions at once, and controllers whose names contain "cpu".
  constexpr char kBoth[] =
      "30 23 0:27 / / rw - ext4 /dev/root rw,cpu\n"
      "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
      "34 31 0:31 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
  EXPECT_EQ(Find("3:cpuset:/c\n1:cpu:/a\n0::/u\n", kBoth),
            Places({"/sys/fs/cgroup/cpu /a", "/sys/fs/cgroup/unified /u"}));
  EXPECT_EQ(Find("3:cpuset:/c\n2:cpuacct:/d\n", kBoth), Places());
  // In a container, whose mount shows its own part of the tree.
  constexpr char kContainer[] =
      "31 23 0:28 /docker/7f /sys/fs/cgroup/cpu ro master:9 - cgroup cgroup rw,cpu,cpuacct\n";
  EXPECT_EQ(Find("4:cpu,cpuacct:/docker/7f\n", kContainer), Places({"/sys/fs/cgroup/cpu /"}));
  EXPECT_EQ(Find("4:cpu,cpuacct:/docker/7f/a\n", kContainer), Places({"/sys/fs/cgroup/cpu /a"}));
  EXPECT_EQ(Find("4:cpu,cpuacct:/docker/7fe\n", kContainer), Places({"/sys/fs/cgroup/cpu /"}));
  EXPECT_EQ(Find("4:cpu,cpuacct:/other\n", kContainer), Places({"/sys/fs/cgroup/cpu /"}));
  EXPECT_EQ(Find("", ""), Places());
  EXPECT_EQ(Find("cpu\n:\n1:cpu\n", "1 2\n - cgroup\n3 4 5 /a - cgroup2 x y\n"), Places());
}

TEST(MachineTest, MemoryAndNameAreKnown) {
  EXPECT_GT(MachineMemoryBytes(), uint64_t{1} << 20);
  EXPECT_FALSE(HostName().empty());
}

}  // namespace
}  // namespace penstock
