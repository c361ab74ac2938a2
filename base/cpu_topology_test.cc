#include "base/cpu_topology.h"

#include <sched.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

CpuTopology Machine(const std::string& description, const std::vector<int>& allowed = {}) {
  const auto topology = CpuTopology::FromDescription(description, allowed);
  EXPECT_TRUE(topology.ok()) << topology.status();
  return *topology;
}

TEST(CpuTopologyTest, ListsProcessorsByCore) {
  EXPECT_THAT(
      Machine("numa:2 core:2 pu:2").cores(),
      ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5), ElementsAre(6, 7)));
  // As Linux numbers them: the second hardware threads of all cores come after the first.
  EXPECT_THAT(Machine("core:2 pu:2(indexes=0,2,1,3)").cores(),
              ElementsAre(ElementsAre(0, 2), ElementsAre(1, 3)));
  EXPECT_THAT(Machine("core:2 pu:2", {1, 2}).cores(), ElementsAre(ElementsAre(1), ElementsAre(2)));
}

TEST(CpuTopologyTest, DistributesWholeCores) {
  EXPECT_THAT(Machine("numa:2 core:2 pu:2", {0, 1, 2, 3, 4, 5, 6}).Distribute(2),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6)));
  EXPECT_THAT(Machine("core:3 pu:2").Distribute(2),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3, 4, 5)));
}

TEST(CpuTopologyTest, SharesRoundRobinWhereNeighboursComputeAtTheSameTime) {
  constexpr auto kRoundRobin = CpuTopology::Sharing::kRoundRobin;
  EXPECT_THAT(
      Machine("core:2 pu:1").Distribute(5, kRoundRobin),
      ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(0), ElementsAre(1), ElementsAre(0)));
  // With enough processors nobody shares.
  EXPECT_EQ(Machine("core:3 pu:2").Distribute(2, kRoundRobin),
            Machine("core:3 pu:2").Distribute(2));
  EXPECT_EQ(Machine("core:4 pu:1").Distribute(4, kRoundRobin),
            Machine("core:4 pu:1").Distribute(4));
}

TEST(CpuTopologyTest, DistributesHardwareThreadsWhereCoresAreFew) {
  EXPECT_THAT(Machine("core:2 pu:2").Distribute(4),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3)));
  EXPECT_THAT(Machine("core:2 pu:1").Distribute(4),
              ElementsAre(ElementsAre(0), ElementsAre(0), ElementsAre(1), ElementsAre(1)));
}

TEST(CpuTopologyTest, LimitKeepsCoresBeforeHardwareThreads) {
  const auto limited = [](int count) {
    CpuTopology topology = Machine("core:3 pu:2");
    topology.Limit(count);
    return topology.cores();
  };
  EXPECT_THAT(limited(0), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
  EXPECT_THAT(limited(9), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5)));
  EXPECT_THAT(limited(5), ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4)));
  EXPECT_THAT(limited(3), ElementsAre(ElementsAre(0), ElementsAre(2), ElementsAre(4)));
  EXPECT_THAT(limited(2), ElementsAre(ElementsAre(0), ElementsAre(2)));
}

TEST(CpuTopologyTest, RefusesWhatIsNoMachine) {
  EXPECT_THAT(CpuTopology::FromDescription("cores:").status().ToString(),
              HasSubstr("'cores:' is not a machine in hwloc's notation"));
}

std::set<int> Affinity() {
  std::set<int> processors;
  cpu_set_t set;
  CPU_ZERO(&set);
  EXPECT_EQ(sched_getaffinity(0, sizeof(set), &set), 0);
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) processors.insert(i);
  }
  return processors;
}

TEST(CpuTopologyTest, ThisMachineHasTheProcessorsOfTheAffinityMask) {
  const auto processors_of = [](const CpuTopology& topology) {
    std::set<int> processors;
    for (const std::vector<int>& core : topology.cores()) {
      processors.insert(core.begin(), core.end());
    }
    return processors;
  };
  const CpuTopology all = CpuTopology::Load();
  EXPECT_EQ(processors_of(all), Affinity());
  EXPECT_EQ(all.num_processors(), static_cast<int>(Affinity().size()));
  // Of a thread that is confined, and of those that it starts.
  std::thread([&] {
    const int last = all.cores().back().back();
    ASSERT_TRUE(PinThisThread({last}).ok());
    std::thread([&] {
      EXPECT_THAT(Affinity(), ElementsAre(last));
      EXPECT_THAT(processors_of(CpuTopology::Load()), ElementsAre(last));
    }).join();
  }).join();
}

TEST(CpuTopologyTest, AThreadIsNotPinnedToWhatIsNotThere) {
  EXPECT_EQ(PinThisThread({-1}).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_FALSE(PinThisThread({CPU_SETSIZE - 1}).ok());
}

}  // namespace
}  // namespace penstock
