#include "planner/cluster/presets.h"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"

namespace penstock::planner {
namespace {

using ::testing::HasSubstr;

Cluster Find(std::string_view text) {
  absl::StatusOr<Cluster> cluster = FindClusterPreset(text);
  EXPECT_TRUE(cluster.ok()) << cluster.status();
  return *std::move(cluster);
}

std::string PresetError(std::string_view text) {
  return std::string(ToStd(FindClusterPreset(text).status().message()));
}

TEST(PresetsTest, EveryPresetIsAClusterInItsDefaultSize) {
  EXPECT_EQ(ClusterPresets().size(), 8);
  for (const ClusterPreset& preset : ClusterPresets()) {
    const Cluster cluster = Find(preset.name);
    EXPECT_EQ(cluster.spec().name, preset.name);
    EXPECT_GE(cluster.num_devices(), 2);
    EXPECT_FALSE(preset.help.empty());
  }
}

TEST(PresetsTest, TheSizeFollowsAColon) {
  EXPECT_EQ(Find("dgx-a100:16").num_devices(), 128);
  EXPECT_EQ(Find("dgx-a100:16").spec().name, "dgx-a100:16");
  EXPECT_EQ(Find("hgx-h100:128").num_devices(), 1024);
  EXPECT_EQ(Find("hgx-h100:512").num_devices(), 4096);
  EXPECT_EQ(Find("h100-nvlink-switch").num_devices(), 256);
  EXPECT_EQ(Find("v100-ib100:4").num_devices(), 32);
  EXPECT_EQ(Find("tpu-v4:4x4x8").num_devices(), 128);
  EXPECT_EQ(Find("tpu-v4:16x16x16").num_devices(), 4096);
  EXPECT_EQ(Find("ascend-910:2").num_devices(), 16);
  EXPECT_EQ(Find("cpu-ethernet:3").num_devices(), 6);
}

TEST(PresetsTest, FiguresAreThoseOfTheDataSheets) {
  const Cluster a100 = Find("dgx-a100:2");
  EXPECT_EQ(a100.KindOf(0).peak_flops_per_s[static_cast<size_t>(DType::kBF16)], 312e12);
  EXPECT_DOUBLE_EQ(a100.PathBytesPerS(0, 7), 300e9);
  EXPECT_DOUBLE_EQ(a100.BytesPerSOfEach(1, 8), 25e9);  // an adapter for each GPU
  const Cluster selene = Find("selene");
  EXPECT_EQ(selene.num_devices(), 3072);
  EXPECT_DOUBLE_EQ(selene.BytesPerSOfEach(1, 8), 25e9);
  const Cluster h100 = Find("hgx-h100:2");
  EXPECT_DOUBLE_EQ(h100.BytesPerSOfEach(1, 8), 50e9);
  const Cluster nvlink = Find("h100-nvlink-switch");
  EXPECT_DOUBLE_EQ(nvlink.PathBytesPerS(0, 8), 450e9);
  EXPECT_DOUBLE_EQ(nvlink.BytesPerSOfEach(1, 8), 225e9);  // 2:1 tapered
  const Cluster v100 = Find("v100-ib100:2");
  EXPECT_DOUBLE_EQ(v100.BytesPerSOfEach(1, 8), 12.5e9 / 8);  // one adapter
  EXPECT_DOUBLE_EQ(Find("tpu-v4").PathBytesPerS(0, 1), 50e9);
  const Cluster ascend = Find("ascend-910:2");
  EXPECT_DOUBLE_EQ(ascend.PathBytesPerS(0, 3), 90e9);
  EXPECT_DOUBLE_EQ(ascend.PathBytesPerS(0, 4), 31.5e9);
  EXPECT_DOUBLE_EQ(ascend.PathBytesPerS(0, 8), 12.5e9);
  EXPECT_DOUBLE_EQ(ascend.PathLatencyS(0, 8), 60e-6);
  EXPECT_DOUBLE_EQ(Find("cpu-ethernet:2").PathBytesPerS(0, 2), 1.25e9);
}

TEST(PresetsTest, WrongNamesAndSizesAreErrors) {
  EXPECT_THAT(PresetError("dgx-b300"),
              HasSubstr("unknown cluster preset 'dgx-b300'; expected dgx-a100"));
  EXPECT_THAT(PresetError("dgx-a100:0"), HasSubstr("size '0' is wrong: expected 1 to"));
  EXPECT_THAT(PresetError("dgx-a100:"), HasSubstr("size '' is wrong"));
  EXPECT_THAT(PresetError("dgx-a100:99999999999999999999"), HasSubstr("is wrong"));
  EXPECT_THAT(PresetError("h100-nvlink-switch:33"), HasSubstr("expected 1 to 32 nodes"));
  EXPECT_THAT(PresetError("tpu-v4:"), HasSubstr("size '' is wrong"));
  EXPECT_THAT(PresetError("tpu-v4:4x4"), HasSubstr("three extents"));
  EXPECT_THAT(PresetError("tpu-v4:4x4x0"), HasSubstr("three extents"));
  EXPECT_THAT(PresetError("tpu-v4:32x32x32"), HasSubstr("at most 4096 chips"));
}

}  // namespace
}  // namespace penstock::planner
