#include "planner/cluster/collective_cost.h"

#include <algorithm>
#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

using enum CollectiveKind;

constexpr CollectiveKind kKinds[] = {kAllReduce, kReduceScatter, kAllGather,
                                     kAllToAll,  kBroadcast,     kPermute};

constexpr CollectiveMethods kNone = {false, false, false, false, false};
constexpr CollectiveMethods kOnlyDirect = {true, false, false, false, false};
constexpr CollectiveMethods kOnlyRing = {false, true, false, false, false};
constexpr CollectiveMethods kOnlyHierarchical = {false, false, true, false, false};
constexpr CollectiveMethods kOnlyParallelRings = {false, false, false, true, false};
constexpr CollectiveMethods kOnlyTorus = {false, false, false, false, true};

NetworkLevel Level(int64_t fan_out, double bytes_per_s, double latency_s, int64_t uplinks) {
  NetworkLevel level;
  level.name = "level";
  level.fan_out = {fan_out};
  level.bytes_per_s = bytes_per_s;
  level.latency_s = latency_s;
  level.uplinks = uplinks;
  return level;
}

Cluster Make(std::vector<NetworkLevel> levels) {
  ClusterSpec spec;
  spec.name = "test";
  DeviceKind& kind = spec.kinds.emplace_back();
  kind.name = "device";
  kind.memory_bytes = 1;
  kind.memory_bytes_per_s = 1e9;
  kind.peak_flops_per_s[0] = 1e9;
  spec.levels = std::move(levels);
  absl::StatusOr<Cluster> cluster = Cluster::Create(std::move(spec));
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return *std::move(cluster);
}

// Nodes of 8 devices: 1 MB/s and 1 s inside; 100 kB/s for each uplink and 4 s between nodes.
Cluster Nodes(int64_t nodes, int64_t uplinks) {
  return Make({Level(8, 1e6, 1, 1), Level(nodes, 1e5, 4, uplinks)});
}

Cluster Torus(std::vector<int64_t> extents) {
  NetworkLevel level = Level(1, 1e6, 1, 1);
  for (const int64_t extent : extents) level.fan_out[0] *= extent;
  level.torus = std::move(extents);
  return Make({level});
}

std::vector<int64_t> Strided(int64_t begin, int64_t count, int64_t stride) {
  std::vector<int64_t> devices;
  for (int64_t i = 0; i < count; ++i) devices.push_back(begin + i * stride);
  return devices;
}

double Seconds(const Cluster& cluster, const std::vector<int64_t>& devices, CollectiveKind kind,
               double num_bytes, CollectiveMethods methods, const GroupsAtOnce& groups = {}) {
  return PredictCollective(cluster, ShapeOf(cluster, devices), kind, num_bytes, groups, methods)
      .seconds;
}

TEST(CollectiveCostTest, OneMemberTakesNoTime) {
  for (const CollectiveKind kind : kKinds) {
    EXPECT_EQ(Seconds(Nodes(2, 1), {3}, kind, 1e9, {}), 0) << Name(kind);
  }
}

TEST(CollectiveCostTest, InsideANode) {
  const Cluster cluster = Nodes(2, 1);
  const std::vector<int64_t> group = Strided(0, 4, 1);
  // 3 edges of 1 s, and 3/4 of 8 MB at 1 MB/s; twice for an all_reduce.
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kReduceScatter, 8e6, kOnlyRing), 3 + 6);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kAllGather, 8e6, kOnlyRing), 3 + 6);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kAllReduce, 8e6, kOnlyRing), 2 * (3 + 6));
  // A latency, and two more messages at a quarter of it.
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kReduceScatter, 8e6, kOnlyDirect), 1.5 + 6);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kAllReduce, 8e6, kOnlyDirect), 2 * (1.5 + 6));
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kAllToAll, 8e6, {}), 1.5 + 6);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kBroadcast, 8e6, kOnlyDirect), 1.5 + 24);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kPermute, 8e6, {}), 1 + 8);
  // Two stages of pairs: 8 MB, then 4 MB, of which each member exchanges half.
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kReduceScatter, 8e6, kOnlyHierarchical), 2 + 4 + 2);
  // A chain of 3 edges in k chunks: 3 + (k - 1) + 8 (2 + k)/k, least at k = 4.
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kBroadcast, 8e6, kOnlyRing), 3 + 3 + 12);
  // 9 MB would be fastest in 4.2 chunks; 4 are faster than 5.
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kBroadcast, 9e6, kOnlyRing), 3 + 3 + 13.5);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kBroadcast, 0, kOnlyRing), 3);
}

TEST(CollectiveCostTest, BetweenNodes) {
  const Cluster cluster = Nodes(4, 1);
  const std::vector<int64_t> group = Strided(0, 4, 8);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kReduceScatter, 8e5, kOnlyRing), 3 * 4 + 6);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kAllToAll, 8e5, {}), 6 + 6);
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kPermute, 8e5, {}), 4 + 8);
  // 8 such groups share the uplink of a node, or have one each.
  EXPECT_DOUBLE_EQ(Seconds(cluster, group, kReduceScatter, 8e5, kOnlyRing, {1, 8}), 12 + 48);
  EXPECT_DOUBLE_EQ(
      Seconds(Nodes(4, kUplinkPerDevice), group, kReduceScatter, 8e5, kOnlyRing, {1, 8}), 12 + 6);
  EXPECT_DOUBLE_EQ(Seconds(Nodes(4, 4), group, kReduceScatter, 8e5, kOnlyRing, {1, 8}), 12 + 12);
}

// Member i of n sends to member destination(i).
template <typename F>
double PermuteSeconds(const Cluster& cluster, int64_t n, double num_bytes, const F& destination) {
  std::vector<MessageEnds> messages;
  for (int64_t i = 0; i < n; ++i) messages.emplace_back(i, destination(i));
  return PredictPermute(cluster, ShapeOf(cluster, Strided(0, n, 1)),
                        CountCrossing(cluster, messages), num_bytes);
}

TEST(CollectiveCostTest, OfAShiftOneMessageLeavesEachNode) {
  const auto by_one = [](int64_t i) { return (i + 1) % 16; };
  EXPECT_DOUBLE_EQ(PermuteSeconds(Nodes(2, 1), 16, 8e5, by_one), 4 + 8);
  // Inside the nodes nothing crosses.
  const auto in_node = [](int64_t i) { return i / 8 * 8 + (i + 1) % 8; };
  EXPECT_DOUBLE_EQ(PermuteSeconds(Nodes(2, 1), 16, 8e5, in_node), 1 + 0.8);
  EXPECT_EQ(PermuteSeconds(Nodes(2, 1), 16, 8e5, [](int64_t i) { return i; }), 0);
  // If all 8 members leave, it is what any permute may take.
  const auto across = [](int64_t i) { return (i + 8) % 16; };
  EXPECT_DOUBLE_EQ(PermuteSeconds(Nodes(2, 1), 16, 8e5, across), 4 + 8 * 8);
  for (const int64_t uplinks : {int64_t{1}, int64_t{2}, kUplinkPerDevice}) {
    const Cluster cluster = Nodes(2, uplinks);
    EXPECT_DOUBLE_EQ(PermuteSeconds(cluster, 16, 8e5, across),
                     Seconds(cluster, Strided(0, 16, 1), kPermute, 8e5, {}));
  }
}

TEST(CollectiveCostTest, OverWholeNodes) {
  const Cluster shared = Nodes(2, 1);
  const Cluster own = Nodes(2, kUplinkPerDevice);
  const std::vector<int64_t> group = Strided(0, 16, 1);
  // 15 edges, of which the fastest is not passed: 13 inside and 2 between. One flow crosses.
  const double latency = 13 * 1 + 2 * 4;
  EXPECT_DOUBLE_EQ(Seconds(shared, group, kReduceScatter, 16e5, kOnlyRing), latency + 15);
  EXPECT_DOUBLE_EQ(Seconds(own, group, kReduceScatter, 16e5, kOnlyRing), latency + 15);
  // 8 rings cross at 800 kB/s together, if each member has an uplink.
  EXPECT_DOUBLE_EQ(Seconds(shared, group, kReduceScatter, 16e5, kOnlyParallelRings), latency + 15);
  EXPECT_DOUBLE_EQ(Seconds(own, group, kReduceScatter, 16e5, kOnlyParallelRings),
                   latency + 15.0 / 8);
  // All 8 members send 8 pieces of 100 kB across.
  EXPECT_DOUBLE_EQ(Seconds(shared, group, kAllToAll, 16e5, {}), 4 * (1 + 14 / 4.0) + 64);
  EXPECT_DOUBLE_EQ(Seconds(own, group, kAllToAll, 16e5, {}), 4 * (1 + 14 / 4.0) + 8);
  // Inside 7/8 of 1.6 MB directly, across half of 200 kB for each of the 8 members.
  EXPECT_DOUBLE_EQ(Seconds(own, group, kReduceScatter, 16e5, kOnlyHierarchical),
                   (1 + 6 / 4.0) + 1.4 + 4 + 1);
  EXPECT_DOUBLE_EQ(Seconds(shared, group, kReduceScatter, 16e5, kOnlyHierarchical),
                   (1 + 6 / 4.0) + 1.4 + 4 + 8);
}

TEST(CollectiveCostTest, UnevenGroupsAreAsSlowAsTheirBusiestUplink) {
  const Cluster cluster = Nodes(2, 1);
  // Of 4 pieces of 200 kB, 3 members send one each across, and one member sends 3.
  EXPECT_DOUBLE_EQ(Seconds(cluster, {0, 1, 2, 8}, kReduceScatter, 8e5, kOnlyDirect), 6 + 6);
  // Without a method that applies, direct.
  EXPECT_DOUBLE_EQ(Seconds(cluster, {0, 1, 2, 8}, kReduceScatter, 8e5, kOnlyHierarchical), 6 + 6);
  EXPECT_DOUBLE_EQ(Seconds(cluster, {0, 1, 2, 8}, kReduceScatter, 8e5, kNone), 6 + 6);
}

TEST(CollectiveCostTest, AMessage) {
  const Cluster cluster = Nodes(2, 1);
  EXPECT_EQ(PredictSendSeconds(cluster, 3, 3, 1e9), 0);
  EXPECT_DOUBLE_EQ(PredictSendSeconds(cluster, 0, 7, 1e6), 1 + 1);
  EXPECT_DOUBLE_EQ(PredictSendSeconds(cluster, 7, 8, 1e6), 4 + 10);
  EXPECT_DOUBLE_EQ(PredictSendSeconds(cluster, 7, 8, 1e6, {1, 8}), 4 + 80);
}

TEST(CollectiveCostTest, InATorus) {
  // One ring of 4: 3 steps, and 3/4 of 8 MB in both directions.
  EXPECT_DOUBLE_EQ(Seconds(Torus({4}), Strided(0, 4, 1), kReduceScatter, 8e6, kOnlyTorus), 3 + 3);
  // A ring uses one direction.
  EXPECT_DOUBLE_EQ(Seconds(Torus({4}), Strided(0, 4, 1), kReduceScatter, 8e6, kOnlyRing), 3 + 6);
  // Two of its edges share a link; the longest has 3 links.
  EXPECT_DOUBLE_EQ(Seconds(Torus({4, 4}), {0, 1, 3, 6}, kReduceScatter, 8e6, kOnlyRing),
                   3 * 3 + 12);
  // Two dimensions: halves of 8 MB, first along one, then a quarter of that along the other.
  EXPECT_DOUBLE_EQ(Seconds(Torus({4, 4}), Strided(0, 16, 1), kReduceScatter, 8e6, kOnlyTorus),
                   (3 + 4 * 0.75 / 2) + (3 + 1 * 0.75 / 2));
  // A line of 4 in a ring of 8 has one direction.
  EXPECT_DOUBLE_EQ(Seconds(Torus({8}), Strided(0, 4, 1), kReduceScatter, 8e6, kOnlyTorus), 3 + 6);
  // Every other of 8 shares its links with the group between.
  EXPECT_DOUBLE_EQ(Seconds(Torus({8}), Strided(0, 4, 2), kReduceScatter, 8e6, kOnlyTorus), 6 + 6);
  // All to all on a ring of 4: 2 links at most, 2 pairs on each link, pieces of 2 MB.
  EXPECT_DOUBLE_EQ(Seconds(Torus({4}), Strided(0, 4, 1), kAllToAll, 8e6, {}), 2 * 1.5 + 2 * 2);
}

TEST(CollectiveCostTest, ChoosesTheFastest) {
  const Cluster own = Nodes(2, kUplinkPerDevice);
  const std::vector<int64_t> group = Strided(0, 16, 1);
  const GroupShape shape = ShapeOf(own, group);
  EXPECT_EQ(PredictCollective(own, shape, kAllReduce, 1e8).method, CollectiveMethod::kHierarchical);
  EXPECT_EQ(PredictCollective(own, shape, kAllReduce, 1e8, {}, kNcclMethods).method,
            CollectiveMethod::kParallelRings);
  EXPECT_EQ(PredictCollective(own, ShapeOf(own, {0, 1}), kAllReduce, 1e8).method,
            CollectiveMethod::kDirect);
  const Cluster torus = Torus({4, 4});
  EXPECT_EQ(PredictCollective(torus, ShapeOf(torus, group), kAllReduce, 1e8).method,
            CollectiveMethod::kTorus);
}

TEST(CollectiveCostTest, TheExampleOfTheHeader) {
  const Cluster cluster = Make({Level(8, 300e9, 2e-6, 1), Level(2, 25e9, 4e-6, kUplinkPerDevice)});
  const std::vector<int64_t> group = Strided(0, 16, 1);
  EXPECT_NEAR(Seconds(cluster, group, kAllReduce, 1e9, kOnlyRing), 75e-3, 1e-4);
  EXPECT_NEAR(Seconds(cluster, group, kAllReduce, 1e9, kOnlyHierarchical), 10.8e-3, 1e-4);
}

// --- Properties, on random clusters and groups
// ----------------------------------------------------

class RandomCase {
 public:
  explicit RandomCase(uint32_t seed) : random_(seed) {}

  int64_t Between(int64_t least, int64_t most) {
    return std::uniform_int_distribution<int64_t>(least, most)(random_);
  }
  double Scale() { return std::pow(10.0, std::uniform_real_distribution<double>(-3, 3)(random_)); }

  std::vector<NetworkLevel> Levels() {
    std::vector<NetworkLevel> levels;
    const int64_t count = Between(1, 3);
    for (int64_t l = 0; l < count; ++l) {
      levels.push_back(Level(Between(1, 6), 1e9 * Scale(), 1e-6 * Scale(), Between(0, 4)));
    }
    if (Between(0, 3) == 0) {
      const int64_t x = Between(1, 5);
      const int64_t y = Between(1, 5);
      levels[0].torus = {x, y};
      levels[0].fan_out = {x * y};
    }
    return levels;
  }

  std::vector<int64_t> Group(const Cluster& cluster) {
    std::vector<int64_t> devices = Strided(0, cluster.num_devices(), 1);
    if (Between(0, 1) == 0) std::shuffle(devices.begin(), devices.end(), random_);
    devices.resize(Between(1, cluster.num_devices()));
    return devices;
  }

  GroupsAtOnce Groups() { return {Between(1, 3), Between(1, 8), Between(1, 8)}; }

  CollectiveMethods Methods() {
    return {Between(0, 1) == 0, Between(0, 1) == 0, Between(0, 1) == 0, Between(0, 1) == 0,
            Between(0, 1) == 0};
  }

 private:
  std::mt19937 random_;
};

constexpr int kCases = 2000;
constexpr double kRounding = 1 + 1e-9;

TEST(CollectiveCostPropertyTest, MoreBytesOrGroupsAreNeverFaster) {
  for (int seed = 0; seed < kCases; ++seed) {
    RandomCase random(seed);
    const Cluster cluster = Make(random.Levels());
    const std::vector<int64_t> group = random.Group(cluster);
    const CollectiveMethods methods = random.Methods();
    GroupsAtOnce groups = random.Groups();
    const double num_bytes = 1e6 * random.Scale();
    for (const CollectiveKind kind : kKinds) {
      const double before = Seconds(cluster, group, kind, num_bytes, methods, groups);
      EXPECT_GE(before, 0);
      EXPECT_LE(before, kRounding * Seconds(cluster, group, kind, num_bytes * 1.3, methods, groups))
          << Name(kind) << " " << seed;
      GroupsAtOnce more = groups;
      ++more[random.Between(0, 2)];
      EXPECT_LE(before, kRounding * Seconds(cluster, group, kind, num_bytes, methods, more))
          << Name(kind) << " " << seed;
    }
  }
}

TEST(CollectiveCostPropertyTest, BetterLinksAreNeverSlower) {
  for (int seed = 0; seed < kCases; ++seed) {
    RandomCase random(seed);
    std::vector<NetworkLevel> levels = random.Levels();
    const Cluster cluster = Make(levels);
    const std::vector<int64_t> group = random.Group(cluster);
    const CollectiveMethods methods = random.Methods();
    const GroupsAtOnce groups = random.Groups();
    const double num_bytes = 1e6 * random.Scale();
    NetworkLevel& level = levels[random.Between(0, static_cast<int64_t>(levels.size()) - 1)];
    switch (random.Between(0, 2)) {
      case 0:
        level.bytes_per_s *= 1.7;
        break;
      case 1:
        level.latency_s /= 1.7;
        break;
      default:
        level.uplinks = kUplinkPerDevice;
    }
    const Cluster better = Make(levels);
    for (const CollectiveKind kind : kKinds) {
      EXPECT_LE(Seconds(better, group, kind, num_bytes, methods, groups),
                kRounding * Seconds(cluster, group, kind, num_bytes, methods, groups))
          << Name(kind) << " " << seed;
    }
  }
}

TEST(CollectiveCostPropertyTest, InsideANodeIsNeverSlowerThanAcrossNodes) {
  for (int seed = 0; seed < kCases; ++seed) {
    RandomCase random(seed);
    const int64_t inside = random.Between(2, 16);
    const Cluster cluster = Make({Level(inside, 1e9 * random.Scale(), 1e-6 * random.Scale(), 1),
                                  Level(random.Between(2, 4), 1e9 * random.Scale(),
                                        1e-6 * random.Scale(), random.Between(0, 4)),
                                  Level(random.Between(1, 3), 1e9 * random.Scale(),
                                        1e-6 * random.Scale(), random.Between(0, 4))});
    const int64_t n = random.Between(2, inside);
    std::vector<int64_t> across = random.Group(cluster);
    while (static_cast<int64_t>(across.size()) < n) across = random.Group(cluster);
    across.resize(n);
    const CollectiveMethods methods =
        random.Between(0, 1) == 0 ? CollectiveMethods{} : kNcclMethods;
    const double num_bytes = 1e6 * random.Scale();
    for (const CollectiveKind kind : kKinds) {
      EXPECT_LE(Seconds(cluster, Strided(0, n, 1), kind, num_bytes, methods),
                kRounding * Seconds(cluster, across, kind, num_bytes, methods))
          << Name(kind) << " " << seed;
    }
  }
}

TEST(CollectiveCostPropertyTest, TheChoiceIsTheFastestOfItsMethods) {
  for (int seed = 0; seed < kCases; ++seed) {
    RandomCase random(seed);
    const Cluster cluster = Make(random.Levels());
    const std::vector<int64_t> group = random.Group(cluster);
    if (group.size() < 2) continue;
    const GroupsAtOnce groups = random.Groups();
    const double num_bytes = 1e6 * random.Scale();
    const GroupShape shape = ShapeOf(cluster, group);
    for (const CollectiveKind kind : {kAllReduce, kReduceScatter, kAllGather, kBroadcast}) {
      const CollectiveTime best =
          PredictCollective(cluster, shape, kind, num_bytes, groups, kNcclMethods);
      double least = best.seconds * 2 + 1;
      // Where a stage of a hierarchical collective fills a torus, it may use the torus.
      constexpr CollectiveMethods kHierarchicalOrTorus = {false, false, true, false, true};
      for (const CollectiveMethods& only :
           {kOnlyDirect, kOnlyRing, kHierarchicalOrTorus, kOnlyParallelRings}) {
        least = std::min(least, Seconds(cluster, group, kind, num_bytes, only, groups));
      }
      EXPECT_DOUBLE_EQ(best.seconds, least) << Name(kind) << " " << seed;
      if (best.method == CollectiveMethod::kHierarchical) {
        EXPECT_LE(best.seconds, Seconds(cluster, group, kind, num_bytes, kOnlyRing, groups));
      }
    }
  }
}

}  // namespace
}  // namespace penstock::planner
