#include "planner/cluster/probed_hosts.h"

#include <random>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

constexpr double kLatency = 50e-6;

// Every pair has this rate until it gets another.
HostLinks Flat(int64_t num_hosts, double bytes_per_s) {
  HostLinks links(num_hosts);
  for (int64_t a = 0; a < num_hosts; ++a) {
    for (int64_t b = a + 1; b < num_hosts; ++b) links.Set(a, b, {bytes_per_s, kLatency});
  }
  return links;
}

TEST(GroupHostsTest, OneNetworkIsOneLevel) {
  HostLinks links = Flat(3, 1e9);
  links.Set(0, 2, {0.8e9, 60e-6});  // within what measurements differ by
  const HostTopology topology = GroupHosts(links);
  EXPECT_THAT(topology.order, ElementsAre(0, 1, 2));
  ASSERT_EQ(topology.levels.size(), 1u);
  EXPECT_EQ(topology.levels[0].name, "network");
  EXPECT_THAT(topology.levels[0].fan_out, ElementsAre(3));
  EXPECT_EQ(topology.levels[0].bytes_per_s, 1e9);
  EXPECT_EQ(topology.levels[0].latency_s, kLatency);
  EXPECT_EQ(topology.levels[0].uplinks, 1);
}

// The example of the header.
TEST(GroupHostsTest, HostsOfOneSwitchAreNeighbours) {
  HostLinks links = Flat(4, 60e6);
  links.Set(0, 2, {1.25e9, 20e-6});
  links.Set(1, 3, {1.2e9, 20e-6});
  const HostTopology topology = GroupHosts(links);
  EXPECT_THAT(topology.order, ElementsAre(0, 2, 1, 3));
  ASSERT_EQ(topology.levels.size(), 2u);
  EXPECT_EQ(topology.levels[0].name, "rack");
  EXPECT_THAT(topology.levels[0].fan_out, ElementsAre(2, 2));
  EXPECT_EQ(topology.levels[0].latency_s, 20e-6);
  EXPECT_EQ(topology.levels[1].name, "network");
  EXPECT_THAT(topology.levels[1].fan_out, ElementsAre(2));
  EXPECT_EQ(topology.levels[1].bytes_per_s, 60e6);
  EXPECT_EQ(topology.levels[1].uplinks, 2);
}

TEST(GroupHostsTest, GroupsMayDifferInSize) {
  HostLinks links = Flat(4, 1e7);
  links.Set(1, 2, {1e9, 20e-6});
  links.Set(1, 3, {1e9, 20e-6});
  links.Set(2, 3, {1e9, 20e-6});
  const HostTopology topology = GroupHosts(links);
  EXPECT_THAT(topology.order, ElementsAre(0, 1, 2, 3));
  ASSERT_EQ(topology.levels.size(), 2u);
  EXPECT_THAT(topology.levels[0].fan_out, ElementsAre(1, 3));
  EXPECT_EQ(topology.levels[1].uplinks, 1);
}

TEST(GroupHostsTest, ManyStepsMakeThreeLevels) {
  HostLinks links = Flat(6, 1e6);
  for (int64_t host = 0; host + 1 < 6; ++host) {
    double rate = 1e11;
    for (int64_t i = 0; i < host; ++i) rate /= host % 2 == 0 ? 8 : 4;
    links.Set(host, host + 1, {rate, kLatency});
  }
  EXPECT_EQ(GroupHosts(links).levels.size(), kMaxProbedLevels);
}

// Whatever was measured is a cluster, whose groups are contiguous.
TEST(GroupHostsTest, AnyRatesMakeACluster) {
  std::mt19937 random(1);
  for (int repetition = 0; repetition < 300; ++repetition) {
    const auto num_hosts = static_cast<int64_t>(2 + random() % 9);
    HostLinks links(num_hosts);
    for (int64_t a = 0; a < num_hosts; ++a) {
      for (int64_t b = a + 1; b < num_hosts; ++b) {
        links.Set(a, b,
                  {1e6 * static_cast<double>(1 << random() % 12),
                   1e-6 * static_cast<double>(1 + random() % 500)});
      }
    }
    const HostTopology topology = GroupHosts(links);
    std::vector<int64_t> sorted = topology.order;
    std::sort(sorted.begin(), sorted.end());
    for (int64_t host = 0; host < num_hosts; ++host) ASSERT_EQ(sorted[host], host);
    ClusterSpec spec;
    spec.name = "probed";
    DeviceKind kind;
    kind.name = "cpu";
    kind.memory_bytes = 1 << 30;
    kind.memory_bytes_per_s = 1e10;
    kind.peak_flops_per_s[0] = 1e11;
    spec.kinds.push_back(kind);
    NetworkLevel host;
    host.name = "host";
    host.fan_out = {2};
    host.bytes_per_s = 1e12;
    spec.levels.push_back(host);
    spec.levels.insert(spec.levels.end(), topology.levels.begin(), topology.levels.end());
    const absl::StatusOr<Cluster> cluster = Cluster::Create(spec);
    ASSERT_TRUE(cluster.ok()) << cluster.status();
    EXPECT_EQ(cluster->num_devices(), 2 * num_hosts);
  }
}

TEST(FindSlowHostsTest, NamesThoseBelowNineTenthsOfTheMedian) {
  EXPECT_THAT(FindSlowHosts({100, 101, 89, 99}), ElementsAre(SlowHost{2, 0.89}));
  EXPECT_THAT(FindSlowHosts({100, 101, 91, 99}), IsEmpty());
  EXPECT_THAT(FindSlowHosts({50, 100}), ElementsAre(SlowHost{0, 0.5}));
  EXPECT_THAT(FindSlowHosts({1}), IsEmpty());
}

// Hosts of 2 devices each, of a CPU kind and one with memory of its own.
ClusterSpec TwoKinds() {
  ClusterSpec spec;
  spec.name = "test";
  spec.kinds.resize(2);
  for (DeviceKind& kind : spec.kinds) {
    kind.memory_bytes = 1 << 30;
    kind.memory_bytes_per_s = 1e10;
    kind.peak_flops_per_s[static_cast<size_t>(DType::kF32)] = 1e12;
    kind.launch_s = 1e-6;
  }
  spec.kinds[0].name = "cpu";
  spec.kinds[1].name = "gpu";
  spec.kinds[1].host_link_bytes_per_s = 1e9;
  NetworkLevel level;
  level.name = "network";
  level.fan_out = {6};
  level.bytes_per_s = 1e9;
  spec.levels = {level};
  return spec;
}

TEST(SlowDownTest, DevicesOfASlowHostHaveASlowerKind) {
  ClusterSpec spec = TwoKinds();
  SlowDown({2, 2, 2}, {1, 0.301, 1}, &spec);
  EXPECT_THAT(spec.devices, ElementsAre(DeviceRun{2, 0}, DeviceRun{2, 2}, DeviceRun{2, 0}));
  ASSERT_EQ(spec.kinds.size(), 3u);
  const DeviceKind& slow = spec.kinds[2];
  EXPECT_EQ(slow.name, "cpu at 30 %");
  EXPECT_DOUBLE_EQ(slow.memory_bytes_per_s, 3e9);
  EXPECT_DOUBLE_EQ(slow.peak_flops_per_s[static_cast<size_t>(DType::kF32)], 3e11);
  EXPECT_EQ(slow.peak_flops_per_s[static_cast<size_t>(DType::kBF16)], 0);
  EXPECT_EQ(slow.memory_bytes, spec.kinds[0].memory_bytes);
  EXPECT_GT(slow.launch_s, 3e-6);
  const absl::StatusOr<Cluster> cluster = Cluster::Create(spec);
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->KindOf(3).name, "cpu at 30 %");
}

TEST(SlowDownTest, HostsThatAreAsSlowShareAKind) {
  ClusterSpec spec = TwoKinds();
  SlowDown({1, 2, 2, 1}, {0.5, 0.501, 1, 0.8}, &spec);
  EXPECT_THAT(spec.devices, ElementsAre(DeviceRun{3, 2}, DeviceRun{2, 0}, DeviceRun{1, 3}));
}

TEST(SlowDownTest, DevicesWithMemoryOfTheirOwnStayAsTheyAre) {
  ClusterSpec spec = TwoKinds();
  spec.devices = {{1, 0}, {3, 1}, {2, 0}};
  SlowDown({2, 2, 2}, {0.5, 0.5, 1}, &spec);
  EXPECT_THAT(spec.devices, ElementsAre(DeviceRun{1, 2}, DeviceRun{3, 1}, DeviceRun{2, 0}));
}

TEST(SlowDownTest, NothingChangesWithoutASlowHost) {
  ClusterSpec spec = TwoKinds();
  const ClusterSpec before = spec;
  SlowDown({2, 4}, {1, 1}, &spec);
  EXPECT_EQ(spec, before);
}

TEST(SlowDownTest, AHostThatHardlyComputesStaysInTheLimits) {
  ClusterSpec spec = TwoKinds();
  SlowDown({6}, {1e-9}, &spec);
  EXPECT_TRUE(Cluster::Create(spec).ok());
}

}  // namespace
}  // namespace penstock::planner
