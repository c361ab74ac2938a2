#include "planner/cluster/cluster_file.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "planner/cluster/presets.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr std::string_view kText = R"(name = "mixed"

[[kind]]
name = "A"
memory_bytes = 85_899_345_920
memory_bytes_per_s = 2.039e12
peak_flops_per_s = {f32 = 19.5e12, bf16 = 312e12}
efficiency = [[1e6, 0.1], [1e12, 0.7]]
host_link_bytes_per_s = 32e9
host_memory_bytes = 274_877_906_944
[[kind]]
name = "B"
memory_bytes = 1000
memory_bytes_per_s = 1_000_000_000
peak_flops_per_s = {f16 = 1e12}

[[devices]]
kind = "B"
count = 4

[[devices]]
kind = "A"
count = 8

[[level]]
name = "node"
fan_out = [8, 4]
bytes_per_s = 300e9
latency_s = 2e-6

[[level]]
name = "pod"
fan_out = 2
bytes_per_s = 25e9
latency_s = 0
uplinks = "device"
)";

std::string ClusterFileError(std::string_view text) {
  return std::string(ToStd(ParseCluster(text, "c.toml").status().message()));
}

// kText with its first occurrence of `from` replaced.
std::string Edited(std::string_view from, std::string_view to) {
  std::string text(kText);
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ClusterFileTest, ReadsAllThatADescriptionHas) {
  const absl::StatusOr<Cluster> cluster = ParseCluster(kText, "c.toml");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  const ClusterSpec& spec = cluster->spec();
  EXPECT_EQ(spec.name, "mixed");
  EXPECT_EQ(cluster->num_devices(), 12);
  EXPECT_EQ(cluster->KindOf(3).name, "B");
  EXPECT_EQ(cluster->KindOf(4).name, "A");
  EXPECT_EQ(spec.kinds[0].memory_bytes, int64_t{80} << 30);
  EXPECT_EQ(spec.kinds[0].memory_bytes_per_s, 2.039e12);
  EXPECT_EQ(spec.kinds[0].peak_flops_per_s[static_cast<size_t>(DType::kBF16)], 312e12);
  EXPECT_EQ(spec.kinds[0].peak_flops_per_s[static_cast<size_t>(DType::kF64)], 0);
  EXPECT_EQ(spec.kinds[0].efficiency[1], (EfficiencyPoint{1e12, 0.7}));
  EXPECT_EQ(spec.kinds[0].host_link_bytes_per_s, 32e9);
  EXPECT_EQ(spec.kinds[0].host_memory_bytes, int64_t{256} << 30);
  EXPECT_EQ(HostCopySeconds(spec.kinds[0], 64e9), 2);
  EXPECT_EQ(spec.kinds[1].memory_bytes_per_s, 1e9);
  EXPECT_EQ(spec.kinds[1].host_link_bytes_per_s, 0);
  EXPECT_EQ(HostCopySeconds(spec.kinds[1], 1e9), 2);
  EXPECT_EQ(spec.levels[0].fan_out, (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(spec.levels[0].uplinks, 1);
  EXPECT_EQ(spec.levels[1].bytes_per_s, 25e9);
  EXPECT_EQ(spec.levels[1].latency_s, 0);
  EXPECT_EQ(spec.levels[1].uplinks, kUplinkPerDevice);
}

TEST(ClusterFileTest, MemoryOfTheHostNeedsALinkToIt) {
  EXPECT_THAT(ClusterFileError(Edited("host_link_bytes_per_s = 32e9\n", "")),
              HasSubstr("host_memory_bytes is given without host_link_bytes_per_s"));
  EXPECT_THAT(ClusterFileError(Edited("274_877_906_944", "0")),
              HasSubstr("host_memory_bytes: 0 is out"));
}

TEST(ClusterFileTest, MeasuredKernelsBelongToAKindOfDevice) {
  const std::string kernel =
      "[[kernel]]\ndevice = \"B\"\nop = \"gelu\"\ndtype = \"f16\"\nbound = \"compute\"\n"
      "slowdown = [[10, 3], [1e3, 0.5]]\n";
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string edited = kernel;
    const size_t at = edited.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return ClusterFileError(StrCat(kText, edited.replace(at, from.size(), to)));
  };
  const absl::StatusOr<Cluster> cluster = ParseCluster(StrCat(kText, kernel), "c.toml");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_TRUE(cluster->spec().kinds[0].kernels.empty());
  const MeasuredKernel expected = {
      "gelu", DType::kF16, RooflineBound::kCompute, {{10, 3}, {1000, 0.5}}};
  EXPECT_EQ(cluster->spec().kinds[1].kernels, std::vector<MeasuredKernel>{expected});
  EXPECT_EQ(ParseCluster(FormatCluster(*cluster), "c.toml")->spec(), cluster->spec());

  EXPECT_THAT(with("\"B\"", "\"C\""), StartsWith("c.toml:38:10: kernel.device: no [[kind]] is"));
  EXPECT_THAT(with("\"gelu\"", "\"\""), StartsWith("c.toml:37:1: [[kernel]]: op is empty"));
  EXPECT_THAT(with("f16", "f17"), StartsWith("c.toml:40:9: kernel.dtype: not a dtype"));
  EXPECT_THAT(
      with("compute", "both"),
      StartsWith("c.toml:41:9: kernel.bound: unknown value \"both\"; expected \"compute\""));
  EXPECT_THAT(with("[10, 3]", "[10]"),
              StartsWith("c.toml:42:13: kernel.slowdown: expected a pair"));
  EXPECT_THAT(with("[10, 3]", "[10, -3]"), HasSubstr("kernel.slowdown: -3 is out of range"));
  EXPECT_THAT(with("1e3", "10"), HasSubstr("[[kernel]]: slowdown is not in order: 10 us after 10"));
  EXPECT_THAT(with("[[10, 3], [1e3, 0.5]]", "[]"), HasSubstr("slowdown is empty"));
  EXPECT_THAT(
      ClusterFileError(StrCat(kText, kernel, kernel)),
      StartsWith(
          "c.toml:11:1: device kind 1 (B): gelu in f16, bound by compute was measured twice"));
}

TEST(ClusterFileTest, DevicesMayShareCores) {
  const absl::StatusOr<Cluster> cluster =
      ParseCluster(Edited("\n\n[[kind]]", "\ndevices_at_once = 6\n[[kind]]"), "c.toml");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->spec().devices_at_once, 6);
  EXPECT_EQ(ParseCluster(FormatCluster(*cluster), "c.toml")->spec(), cluster->spec());
  EXPECT_THAT(ClusterFileError(Edited("\n\n[[kind]]", "\ndevices_at_once = 0\n[[kind]]")),
              StartsWith("c.toml:2:19: devices_at_once: 0 is out of range"));
}

TEST(ClusterFileTest, ATorusNeedsNoFanOut) {
  const std::string text =
      R"(name = "torus"
[[kind]]
name = "A"
memory_bytes = 1
memory_bytes_per_s = 1e9
peak_flops_per_s = {f32 = 1e12}
[[level]]
name = "slice"
torus = [4, 2]
bytes_per_s = 50e9
latency_s = 1e-6
)";
  const absl::StatusOr<Cluster> cluster = ParseCluster(text, "c.toml");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->num_devices(), 8);
  EXPECT_EQ(cluster->spec().levels[0].torus, (std::vector<int64_t>{4, 2}));
}

TEST(ClusterFileTest, WhatIsWrittenReadsBackAsTheSame) {
  const absl::StatusOr<Cluster> mixed = ParseCluster(kText, "c.toml");
  ASSERT_TRUE(mixed.ok()) << mixed.status();
  std::vector<Cluster> clusters = {*mixed};
  for (const ClusterPreset& preset : ClusterPresets()) {
    clusters.push_back(*FindClusterPreset(preset.name));
  }
  ClusterSpec odd = mixed->spec();
  odd.name = "a \"quoted\" \\ name";
  odd.levels[0].bytes_per_s = 1e11 / 3;
  odd.levels[0].latency_s = 1.234567890123e-7;
  clusters.push_back(*Cluster::Create(odd));
  for (const Cluster& cluster : clusters) {
    const std::string text = FormatCluster(cluster);
    const absl::StatusOr<Cluster> read = ParseCluster(text, "c.toml");
    ASSERT_TRUE(read.ok()) << read.status() << "\n" << text;
    EXPECT_EQ(read->spec(), cluster.spec()) << text;
  }
}

TEST(ClusterFileTest, ErrorsHaveAPlaceAndSayWhatWasExpected) {
  const struct {
    std::string_view from, to, error;
  } cases[] = {
      {"count = 4", "count = 0", "c.toml:19:9: devices.count: 0 is out of range: expected 1 to"},
      {"kind = \"B\"", "kind = \"C\"", "c.toml:18:8: devices.kind: no [[kind]] is named \"C\""},
      {"memory_bytes = 1000", "memory_bytes = 1e3",
       "c.toml:13:16: kind.memory_bytes: expected an integer, not a float"},
      {"memory_bytes = 1000", "memory_bytes = -1", "c.toml:13:16: kind.memory_bytes: -1 is out of"},
      {"memory_bytes = 1000", "memory = 1000",
       "c.toml:13:10: unknown key 'kind.memory'; expected name, memory_bytes,"},
      {"memory_bytes = 1000\n", "", "c.toml:11:1: [[kind]] has no 'memory_bytes'"},
      {"{f16 = 1e12}", "{f17 = 1e12}", "c.toml:15:27: kind.peak_flops_per_s.f17: not a dtype"},
      {"{f16 = 1e12}", "{f16 = 0}",
       "c.toml:15:27: kind.peak_flops_per_s.f16: 0 is out of range: expected a number from 1000"},
      {"{f16 = 1e12}", "{}", "c.toml:11:1: device kind 1 (B): peak_flops_per_s has no rate"},
      {"{f16 = 1e12}", "1e12", "c.toml:15:20: kind.peak_flops_per_s: expected a table"},
      {"[1e6, 0.1]", "[1e6]", "c.toml:8:15: kind.efficiency: expected a pair"},
      {"[1e6, 0.1]", "[1e6, 1.5]", "c.toml:8:21: kind.efficiency: 1.5 is out of range"},
      {"[8, 4]", "[8, \"4\"]", "c.toml:27:15: level.fan_out: expected an integer, not a string"},
      {"[8, 4]", "[]", "c.toml:27:11: level.fan_out: the list is empty"},
      {"[8, 4]", "[4, 4, 4]", "c.toml:25:1: level 0 (node): fan_out has 3 numbers for 2 groups"},
      {"[8, 4]", "[8, 8]", "c.toml:21:1: the counts add up to 12, but the levels have 16 devices"},
      {"300e9", "nan", "c.toml:28:15: level.bytes_per_s: nan is out of range"},
      {"300e9", "inf", "c.toml:28:15: level.bytes_per_s: inf is out of range"},
      {"300e9", "true", "c.toml:28:15: level.bytes_per_s: expected a number, not a boolean"},
      {"2e-6", "-2e-6", "c.toml:29:13: level.latency_s: -2e-06 is out of range"},
      {"\"device\"", "\"all\"", "c.toml:36:11: level.uplinks: unknown value \"all\"; expected an"},
      {"\"device\"", "0", "c.toml:36:11: level.uplinks: 0 is out of range: expected 1 to"},
      {"\"mixed\"", "7", "c.toml:1:8: name: expected a string, not an integer"},
      {"name = \"mixed\"", "", "c.toml:1:1: has no 'name'"},
      {"name = \"mixed\"", "name = \"mixed\"\nhosts = 2", "c.toml:2:9: unknown key 'hosts'"},
      {"name = \"mixed\"", "name = ", "c.toml:1:"},
  };
  for (const auto& [from, to, error] : cases) {
    EXPECT_THAT(ClusterFileError(Edited(from, to)), StartsWith(std::string(error)))
        << from << " -> " << to;
  }
}

TEST(ClusterFileTest, SeveralKindsNeedDevices) {
  std::string text(kText);
  const size_t begin = text.find("[[devices]]");
  text.erase(begin, text.find("[[level]]") - begin);
  EXPECT_THAT(ClusterFileError(text),
              StartsWith("c.toml:11:1: there are 2 kinds, but no [[devices]]"));
}

TEST(ClusterFileTest, HostileSizesAreRefused) {
  EXPECT_THAT(ClusterFileError(std::string(kMaxClusterFileBytes + 1, '#')),
              HasSubstr("expected at most"));
  EXPECT_THAT(ClusterFileError("name = " + std::string(100000, '[')),
              HasSubstr("nested more than"));
  EXPECT_THAT(ClusterFileError(Edited("[8, 4]", "9223372036854775807")), HasSubstr("out of range"));
  EXPECT_THAT(ClusterFileError(Edited("fan_out = 2", "fan_out = 131072")),
              HasSubstr("level 0 (node)"));
  EXPECT_THAT(ClusterFileError(Edited("[8, 4]", "[8, 4]\ntorus = [256, 256, 256, 256]")),
              HasSubstr("has more than"));
  std::string levels;
  for (int l = 0; l < 9; ++l) levels += "[[level]]\nname = \"l\"\n";
  EXPECT_THAT(ClusterFileError(StrCat(kText, levels)), HasSubstr("expected at most 8 of"));
}

TEST(ClusterFileTest, OddTextsAreErrors) {
  for (const std::string_view text :
       {"", "kind = 1\nname = \"x\"", "name = \"x\"\nlevel = [1]", "name = \"x\"\nkind = {}",
        "name = \"\\u0000\"", "\xff\xfe", "[[kind", "name = \"x\"\n[kind]\nname = \"y\""}) {
    EXPECT_THAT(ClusterFileError(text), StartsWith("c.toml:")) << text;
  }
}

TEST(ClusterFileTest, AKindSaysWhatItsHostTakes) {
  const std::string text =
      Edited("memory_bytes = 1000\n", "memory_bytes = 1000\nlaunch_s = 5e-6\nstep_s = 2e-3\n");
  const absl::StatusOr<Cluster> cluster = ParseCluster(text, "c.toml");
  ASSERT_TRUE(cluster.ok()) << cluster.status();
  EXPECT_EQ(cluster->spec().kinds[0].launch_s, 0);
  EXPECT_EQ(cluster->spec().kinds[1].launch_s, 5e-6);
  EXPECT_EQ(cluster->spec().kinds[1].step_s, 2e-3);
  EXPECT_EQ(ParseCluster(FormatCluster(*cluster), "c.toml")->spec(), cluster->spec());
  EXPECT_THAT(
      ClusterFileError(Edited("memory_bytes = 1000\n", "memory_bytes = 1000\nlaunch_s = -1\n")),
      HasSubstr("launch_s"));
}

}  // namespace
}  // namespace penstock::planner
