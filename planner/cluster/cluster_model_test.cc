#include "planner/cluster/cluster_model.h"

#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

DeviceKind SmallKind(std::string name = "small") {
  DeviceKind kind;
  kind.name = std::move(name);
  kind.memory_bytes = 1 << 30;
  kind.memory_bytes_per_s = 1e9;
  kind.peak_flops_per_s[static_cast<size_t>(DType::kF32)] = 1e12;
  return kind;
}

NetworkLevel LevelOfModel(std::string name, std::vector<int64_t> fan_out, double bytes_per_s,
                          double latency_s, int64_t uplinks = 1) {
  NetworkLevel level;
  level.name = std::move(name);
  level.fan_out = std::move(fan_out);
  level.bytes_per_s = bytes_per_s;
  level.latency_s = latency_s;
  level.uplinks = uplinks;
  return level;
}

// 2 pods of 2 nodes of 4 devices.
ClusterSpec ThreeLevels() {
  ClusterSpec spec;
  spec.name = "three levels";
  spec.kinds = {SmallKind()};
  spec.levels = {LevelOfModel("node", {4}, 100e9, 1e-6),
                 LevelOfModel("pod", {2}, 10e9, 4e-6, kUplinkPerDevice),
                 LevelOfModel("site", {2}, 40e9, 2e-6, 2)};
  return spec;
}

ClusterSpec TorusOf(std::vector<int64_t> extents) {
  ClusterSpec spec;
  spec.name = "torus";
  spec.kinds = {SmallKind()};
  spec.levels = {LevelOfModel("slice", {1}, 50e9, 1e-6)};
  for (const int64_t extent : extents) spec.levels[0].fan_out[0] *= extent;
  spec.levels[0].torus = std::move(extents);
  return spec;
}

Cluster Create(ClusterSpec spec) {
  absl::StatusOr<Cluster> cluster = Cluster::Create(std::move(spec));
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return *std::move(cluster);
}

std::string ErrorOf(ClusterSpec spec) {
  return std::string(ToStd(Cluster::Create(std::move(spec)).status().message()));
}

TEST(ClusterTest, CountsAndLocatesDevices) {
  const Cluster cluster = Create(ThreeLevels());
  EXPECT_EQ(cluster.num_devices(), 16);
  EXPECT_EQ(cluster.NumGroups(0), 4);
  EXPECT_EQ(cluster.NumGroups(1), 2);
  EXPECT_EQ(cluster.NumGroups(2), 1);
  EXPECT_THAT(cluster.Coordinates(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(cluster.Coordinates(7), ElementsAre(3, 1, 0));
  EXPECT_THAT(cluster.Coordinates(13), ElementsAre(1, 1, 1));
  EXPECT_EQ(cluster.GroupOf(13, -1), 13);
  EXPECT_EQ(cluster.GroupOf(13, 0), 3);
  EXPECT_EQ(cluster.GroupOf(13, 2), 0);
  EXPECT_EQ(cluster.LargestGroup(1), 8);
}

TEST(ClusterTest, DevicesMeetAtTheInnermostCommonLevel) {
  const Cluster cluster = Create(ThreeLevels());
  EXPECT_EQ(cluster.MeetingLevel(5, 5), -1);
  EXPECT_EQ(cluster.MeetingLevel(4, 7), 0);
  EXPECT_EQ(cluster.MeetingLevel(3, 4), 1);
  EXPECT_EQ(cluster.MeetingLevel(7, 8), 2);
}

TEST(ClusterTest, APathIsAsGoodAsItsWorstLevel) {
  const Cluster cluster = Create(ThreeLevels());
  EXPECT_EQ(cluster.PathBytesPerS(0, 0), std::numeric_limits<double>::infinity());
  EXPECT_EQ(cluster.PathLatencyS(0, 0), 0);
  EXPECT_DOUBLE_EQ(cluster.PathBytesPerS(0, 1), 100e9);
  EXPECT_DOUBLE_EQ(cluster.PathLatencyS(0, 1), 1e-6);
  EXPECT_DOUBLE_EQ(cluster.PathBytesPerS(0, 4), 10e9);
  EXPECT_DOUBLE_EQ(cluster.PathLatencyS(0, 4), 4e-6);
  // The outermost level is faster than that below it, which the path passes too.
  EXPECT_DOUBLE_EQ(cluster.PathBytesPerS(0, 8), 10e9);
  EXPECT_DOUBLE_EQ(cluster.PathLatencyS(0, 8), 4e-6);
}

TEST(ClusterTest, DevicesShareUplinks) {
  ClusterSpec spec = ThreeLevels();
  const Cluster per_device = Create(spec);
  EXPECT_DOUBLE_EQ(per_device.BytesPerSOfEach(1, 4), 10e9);
  // 8 devices of a pod over 2 uplinks: 4 on each. Of their own they have 10 GB/s.
  EXPECT_DOUBLE_EQ(per_device.UplinkBytesPerSOfEach(2, 8), 10e9);
  EXPECT_DOUBLE_EQ(per_device.BytesPerSOfEach(2, 8), 10e9);
  spec.levels[1].uplinks = 1;
  const Cluster shared = Create(spec);
  EXPECT_DOUBLE_EQ(shared.BytesPerSOfEach(1, 1), 10e9);
  EXPECT_DOUBLE_EQ(shared.BytesPerSOfEach(1, 4), 2.5e9);
  // The 8 devices come from 2 nodes, whose uplinks carry 4 each.
  EXPECT_DOUBLE_EQ(shared.BytesPerSOfEach(2, 8), 2.5e9);
  spec.levels[1].uplinks = 3;
  EXPECT_DOUBLE_EQ(Create(spec).BytesPerSOfEach(1, 4), 5e9);  // two on the busiest
}

TEST(ClusterTest, GroupsMayDifferInSize) {
  ClusterSpec spec = ThreeLevels();
  spec.levels = {LevelOfModel("host", {3, 1, 4}, 8e9, 1e-6), LevelOfModel("net", {3}, 1e9, 1e-5)};
  const Cluster cluster = Create(spec);
  EXPECT_EQ(cluster.num_devices(), 8);
  EXPECT_THAT(cluster.Coordinates(3), ElementsAre(0, 1));
  EXPECT_THAT(cluster.Coordinates(6), ElementsAre(2, 2));
  EXPECT_EQ(cluster.GroupBegin(0, 2), 4);
  EXPECT_EQ(cluster.LargestGroup(0), 4);
}

TEST(ClusterTest, DevicesMayDifferInKind) {
  ClusterSpec spec = ThreeLevels();
  spec.kinds.push_back(SmallKind("large"));
  spec.devices = {{5, 1}, {11, 0}};
  const Cluster cluster = Create(spec);
  EXPECT_EQ(cluster.KindOf(0).name, "large");
  EXPECT_EQ(cluster.KindOf(4).name, "large");
  EXPECT_EQ(cluster.KindOf(5).name, "small");
  EXPECT_EQ(cluster.KindOf(15).name, "small");
}

TEST(ClusterTest, WithoutLevelsThereIsOneDevice) {
  ClusterSpec spec = ThreeLevels();
  spec.levels.clear();
  const Cluster cluster = Create(spec);
  EXPECT_EQ(cluster.num_devices(), 1);
  EXPECT_EQ(cluster.KindOf(0).name, "small");
  EXPECT_TRUE(cluster.Coordinates(0).empty());
}

TEST(ClusterTest, ATorusIsRowMajorAndWraps) {
  const Cluster cluster = Create(TorusOf({4, 2, 8}));
  EXPECT_EQ(cluster.num_devices(), 64);
  EXPECT_THAT(cluster.TorusCoordinates(0), ElementsAre(0, 0, 0));
  EXPECT_THAT(cluster.TorusCoordinates(61), ElementsAre(3, 1, 5));
  EXPECT_EQ(cluster.TorusLinks(0, 61), 1 + 1 + 3);
  EXPECT_EQ(cluster.TorusLinks(0, 36), 2 + 0 + 4);
  EXPECT_DOUBLE_EQ(cluster.PathLatencyS(0, 61), 5e-6);
  EXPECT_DOUBLE_EQ(cluster.PathBytesPerS(0, 61), 50e9);
  EXPECT_DOUBLE_EQ(cluster.LatencyAcross(0), 7e-6);
}

TEST(ClusterTest, PathsBetweenToriAreNotFasterThanInsideThem) {
  ClusterSpec spec = TorusOf({8, 8});
  spec.levels.push_back(LevelOfModel("network", {2}, 400e9, 1e-6));
  const Cluster cluster = Create(spec);
  EXPECT_DOUBLE_EQ(cluster.PathLatencyS(0, 36), 8e-6);
  EXPECT_DOUBLE_EQ(cluster.PathLatencyS(0, 64), 8e-6);
  EXPECT_DOUBLE_EQ(cluster.PathBytesPerS(0, 64), 50e9);
}

TEST(ClusterTest, EfficiencyIsInterpolatedInTheLogarithm) {
  DeviceKind kind = SmallKind();
  EXPECT_DOUBLE_EQ(EfficiencyAt(kind, 1e9), kDefaultEfficiency);
  kind.efficiency = {{1e6, 0.1}, {1e8, 0.5}, {1e12, 0.7}};
  EXPECT_DOUBLE_EQ(EfficiencyAt(kind, 0), 0.1);
  EXPECT_DOUBLE_EQ(EfficiencyAt(kind, 1e6), 0.1);
  EXPECT_NEAR(EfficiencyAt(kind, 1e7), 0.3, 1e-12);
  EXPECT_NEAR(EfficiencyAt(kind, 1e10), 0.6, 1e-12);
  EXPECT_DOUBLE_EQ(EfficiencyAt(kind, 1e15), 0.7);
}

TEST(ClusterTest, ARooflineIsTheLongerOfFlopsAndBytes) {
  DeviceKind kind = SmallKind();
  kind.peak_flops_per_s = {};
  kind.peak_flops_per_s[static_cast<size_t>(DType::kF32)] = 1e9;
  kind.memory_bytes_per_s = 1e6;
  const Roofline compute = RooflineOf(kind, DType::kF32, 2e9, 1e6);
  EXPECT_EQ(compute.seconds, 2);
  EXPECT_EQ(compute.bound, RooflineBound::kCompute);
  const Roofline memory = RooflineOf(kind, DType::kF32, 2e9, 3e6);
  EXPECT_EQ(memory.seconds, 3);
  EXPECT_EQ(memory.bound, RooflineBound::kMemory);
  // Other types compute at the rate that there is.
  EXPECT_EQ(RooflineOf(kind, DType::kI32, 2e9, 0).seconds, 2);
}

TEST(ClusterTest, RejectsWhatMakesNoCluster) {
  ClusterSpec spec = ThreeLevels();
  spec.kinds.clear();
  EXPECT_THAT(ErrorOf(spec), HasSubstr("has no device kind"));
  spec = ThreeLevels();
  spec.kinds.push_back(SmallKind());
  EXPECT_THAT(ErrorOf(spec), HasSubstr("two device kinds are named small"));
  spec = ThreeLevels();
  spec.name = "";
  EXPECT_THAT(ErrorOf(spec), HasSubstr("name is empty"));
  spec = ThreeLevels();
  spec.kinds[0].peak_flops_per_s = {};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("device kind 0 (small): peak_flops_per_s has no rate"));
  spec = ThreeLevels();
  spec.kinds[0].peak_flops_per_s[0] = -1;
  EXPECT_THAT(ErrorOf(spec), HasSubstr("peak_flops_per_s.f32 = -1 is out of range"));
  spec = ThreeLevels();
  spec.kinds[0].efficiency = {{1e6, 0.5}, {1e6, 0.6}};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("efficiency is not in order"));
  spec = ThreeLevels();
  spec.levels[1].bytes_per_s = std::numeric_limits<double>::quiet_NaN();
  EXPECT_THAT(ErrorOf(spec), HasSubstr("level 1 (pod): bytes_per_s = nan is out of range"));
  spec = ThreeLevels();
  spec.levels[2].latency_s = -1e-6;
  EXPECT_THAT(ErrorOf(spec), HasSubstr("level 2 (site): latency_s"));
  spec = ThreeLevels();
  spec.levels[0].fan_out = {4, 4, 4};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("fan_out has 3 numbers for 4 groups"));
  spec = ThreeLevels();
  spec.levels[0].fan_out = {0};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("fan_out = 0 is out of range"));
  spec = ThreeLevels();
  spec.levels[1].torus = {2};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("only level 0 can be a torus"));
  spec = TorusOf({4, 4});
  spec.levels[0].fan_out = {15};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("torus [4, 4] has 16 devices, but fan_out is 15"));
  spec = ThreeLevels();
  spec.devices = {{15, 0}};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("add up to 15, but the levels have 16 devices"));
  spec.devices = {{17, 0}};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("more than the 16 devices"));
  spec.devices = {{16, 1}};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("kind 1 of 1"));
}

TEST(ClusterTest, SizesAreLimited) {
  ClusterSpec spec = ThreeLevels();
  for (NetworkLevel& level : spec.levels) level.fan_out = {kMaxClusterDevices};
  EXPECT_THAT(ErrorOf(spec), HasSubstr("level 1 (pod): the groups have more than"));
  spec.levels.assign(kMaxNetworkLevels + 1, spec.levels[0]);
  EXPECT_THAT(ErrorOf(spec), HasSubstr("has 9 levels: expected at most 8"));
  spec = ThreeLevels();
  spec.levels = {LevelOfModel("all", {kMaxClusterDevices}, 1e9, 0)};
  EXPECT_EQ(Create(spec).num_devices(), kMaxClusterDevices);
}

TEST(ClusterTest, ErrorsSayWhichPartIsAtFault) {
  ClusterSpec spec = ThreeLevels();
  spec.levels[1].uplinks = -1;
  ClusterPart part;
  EXPECT_FALSE(Cluster::Create(spec, &part).ok());
  EXPECT_EQ(part.kind, ClusterPart::Kind::kLevel);
  EXPECT_EQ(part.index, 1);
}

}  // namespace
}  // namespace penstock::planner
