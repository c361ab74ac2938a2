#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/cgroup_internal.h"
#include "tests/support/temp_folder.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;

class QuotasTest : public ::testing::Test {
 protected:
  QuotasTest() {
    std::filesystem::create_directories(folder_.Path("a/b"));
    std::filesystem::create_directories(folder_.Path("a/c"));
  }

  std::vector<CoreQuota> Quotas(const std::string& group) const {
    return QuotasOf({folder_.path().string(), group});
  }
  std::vector<double> Limits(const std::string& group) const {
    std::vector<double> limits;
    for (const CoreQuota& quota : Quotas(group)) limits.push_back(quota.num_cores);
    return limits;
  }

  const testing::TempFolder folder_;
};

TEST_F(QuotasTest, AreThoseOfAGroupAndItsParents) {
  const auto limit = [this](const std::string& group, const std::string& text) {
    std::ofstream(folder_.Path(group + "cpu.max")) << text;
    return Limits("/a/b");
  };
  EXPECT_THAT(Limits("/a/b"), ElementsAre());
  EXPECT_THAT(limit("a/b/", "max 100000\n"), ElementsAre());
  EXPECT_THAT(limit("a/", "150000 100000\n"), ElementsAre(1.5));
  EXPECT_THAT(limit("a/b/", "400000 100000\n"), ElementsAre(4, 1.5));
  EXPECT_THAT(limit("", "25000 100000\n"), ElementsAre(4, 1.5, 0.25));
  EXPECT_THAT(Limits("/"), ElementsAre(0.25));
}

TEST_F(QuotasTest, OfControlGroupsV1CountToo) {
  const auto limit = [this](const std::string& group, int quota_us, int period_us) {
    std::ofstream(folder_.Path(group + "cpu.cfs_quota_us")) << quota_us << "\n";
    std::ofstream(folder_.Path(group + "cpu.cfs_period_us")) << period_us << "\n";
    return Limits("/a/b");
  };
  EXPECT_THAT(limit("a/b/", -1, 100000), ElementsAre());
  EXPECT_THAT(limit("a/", 150000, 100000), ElementsAre(1.5));
  EXPECT_THAT(limit("a/b/", 25000, 50000), ElementsAre(0.5, 1.5));
}

// The quota of "/a" is one and the same for its two groups, also where the tree is mounted
// elsewhere.
TEST_F(QuotasTest, HaveTheIdentityOfTheirGroup) {
  for (const char* group : {"a/", "a/b/", "a/c/"}) {
    std::ofstream(folder_.Path(std::string(group) + "cpu.max")) << "100000 100000\n";
  }
  const std::vector<CoreQuota> b = Quotas("/a/b");
  const std::vector<CoreQuota> c = Quotas("/a/c");
  ASSERT_EQ(b.size(), 2u);
  ASSERT_EQ(c.size(), 2u);
  EXPECT_NE(b[0].group, c[0].group);
  EXPECT_EQ(b[1].group, c[1].group);
  EXPECT_EQ(QuotasOf({folder_.Path("a"), "/b"}), b);
}

// Each place as "root path".
std::vector<std::string> Find(const std::string& cgroup, const std::string& mountinfo) {
  std::vector<std::string> places;
  for (const CgroupPlace& place : FindCpuCgroups(cgroup, mountinfo)) {
    places.push_back(place.root + " " + place.path);
  }
  return places;
}

TEST(CgroupTest, GroupsAreFoundWhereTheyAreMounted) {
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

}  // namespace
}  // namespace penstock
