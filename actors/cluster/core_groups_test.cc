#include "actors/cluster/core_groups.h"

#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

namespace penstock::actors {
namespace {

using Groups = std::vector<std::pair<std::vector<size_t>, int64_t>>;

NodeDescription NodeOn(const std::string& host, ProcessCores cores) {
  NodeDescription node;
  node.host = host;
  node.cores = std::move(cores);
  node.num_devices = 2;
  return node;
}

// Nodes and cores of each group.
Groups Find(const std::vector<NodeDescription>& nodes) {
  Groups groups;
  for (const CoreGroup& group : FindCoreGroups(nodes)) {
    EXPECT_EQ(group.num_devices, static_cast<int64_t>(2 * group.nodes.size()));
    groups.emplace_back(group.nodes, group.num_cores);
  }
  return groups;
}

TEST(CoreGroupsTest, NodesWithCoresOfTheirOwnAreAlone) {
  EXPECT_EQ(Find({}), Groups());
  EXPECT_EQ(Find({NodeOn("a", {{0, 1}, {}}), NodeOn("a", {{2}, {}})}),
            Groups({{{0}, 2}, {{1}, 1}}));
}

// Masks and quotas of different hosts have nothing to do with each other.
TEST(CoreGroupsTest, HostsAreApart) {
  EXPECT_EQ(Find({NodeOn("b", {{0}, {{"1:1", 1}}}), NodeOn("a", {{0}, {{"1:1", 1}}}),
                  NodeOn("b", {{0}, {{"1:1", 1}}})}),
            Groups({{{0, 2}, 1}, {{1}, 1}}));
}

TEST(CoreGroupsTest, OverlappingMasksAndACommonQuotaCountOnce) {
  EXPECT_EQ(Find({NodeOn("a", {{0}, {}}), NodeOn("a", {{0}, {}})}), Groups({{{0, 1}, 1}}));
  EXPECT_EQ(Find({NodeOn("a", {{0, 1}, {}}), NodeOn("a", {{1, 2}, {}}), NodeOn("a", {{3}, {}})}),
            Groups({{{0, 1}, 3}, {{2}, 1}}));
  const CoreQuota quota{"28:17", 1};
  EXPECT_EQ(Find({NodeOn("a", {{0, 1}, {quota}}), NodeOn("a", {{2, 3}, {quota}})}),
            Groups({{{0, 1}, 1}}));
}

}  // namespace
}  // namespace penstock::actors
