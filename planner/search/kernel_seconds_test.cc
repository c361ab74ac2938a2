#include "planner/search/kernel_seconds.h"

#include <utility>

#include "gtest/gtest.h"

#include "planner/cluster/presets.h"

namespace penstock::planner {
namespace {

Machine MachineWith(std::vector<DeviceKind> kinds) {
  ClusterSpec spec;
  spec.name = "test";
  for (size_t k = 0; k < kinds.size(); ++k) {
    kinds[k].name = static_cast<char>('a' + k);
    kinds[k].memory_bytes = 1 << 30;
    spec.devices.push_back({1, static_cast<int64_t>(k)});
  }
  NetworkLevel level;
  level.name = "host";
  level.fan_out = {static_cast<int64_t>(kinds.size())};
  level.bytes_per_s = 1e9;
  spec.levels.push_back(std::move(level));
  spec.kinds = std::move(kinds);
  return {*Cluster::Create(std::move(spec))};
}

DeviceKind Kind(double flops_per_s, double bytes_per_s) {
  DeviceKind kind;
  kind.peak_flops_per_s[static_cast<size_t>(DType::kF32)] = flops_per_s;
  kind.memory_bytes_per_s = bytes_per_s;
  kind.efficiency = {{1, 0.5}};
  return kind;
}

TEST(KernelTimesTest, TheLongerOfFlopsAndBytesCounts) {
  const Machine machine = MachineWith({Kind(1e9, 1e6)});
  const KernelTimes times(machine, 0, 1);
  // At half of the peak rate.
  EXPECT_DOUBLE_EQ(times.Seconds("matmul", DType::kF32, {.flops = 1e9, .bytes = 1e6}), 2);
  EXPECT_DOUBLE_EQ(times.Seconds("add", DType::kF32, {.flops = 0, .bytes = 3e6}), 3);
}

TEST(KernelTimesTest, WhatWasMeasuredTakesThePlaceOfTheEfficiency) {
  DeviceKind kind = Kind(1e9, 1e6);
  kind.kernels = {{"gelu", DType::kF32, RooflineBound::kMemory, {{1e6, 7}}}};
  const Machine machine = MachineWith({kind});
  const KernelTimes times(machine, 0, 1);
  EXPECT_DOUBLE_EQ(times.Seconds("gelu", DType::kF32, {.flops = 1e9, .bytes = 1e6}), 7);
  // Other operators and types were not measured.
  EXPECT_DOUBLE_EQ(times.Seconds("relu", DType::kF32, {.flops = 1e9, .bytes = 1e6}), 2);
  EXPECT_DOUBLE_EQ(times.Seconds("gelu", DType::kF64, {.flops = 1e9, .bytes = 1e6}), 2);
}

// At 1e9 flops/s and 1e6 bytes/s.
TEST(KernelTimesTest, ComputeAndMemoryAreBoundsOfTheirOwn) {
  DeviceKind kind = Kind(1e9, 1e6);
  kind.kernels = {{"matmul", DType::kF32, RooflineBound::kCompute, {{1e6, 2}}}};
  {
    const Machine machine = MachineWith({kind});
    const KernelTimes times(machine, 0, 1);
    EXPECT_DOUBLE_EQ(times.Seconds("matmul", DType::kF32, {.flops = 3e9, .bytes = 1e6}), 6);
    // Not measured where memory is the bound: as where compute is.
    EXPECT_DOUBLE_EQ(times.Seconds("matmul", DType::kF32, {.flops = 1e8, .bytes = 1e6}), 2);
  }
  kind.kernels.push_back({"matmul", DType::kF32, RooflineBound::kMemory, {{1e6, 5}}});
  const Machine machine = MachineWith({kind});
  const KernelTimes times(machine, 0, 1);
  EXPECT_DOUBLE_EQ(times.Seconds("matmul", DType::kF32, {.flops = 1e8, .bytes = 1e6}), 5);
  // What memory takes beyond its peak rate comes on top.
  EXPECT_DOUBLE_EQ(times.Seconds("matmul", DType::kF32, {.flops = 3e9, .bytes = 1e6}), 6 + 4);
}

// Memory that a cache serves is faster than its peak rate, which makes no product faster.
TEST(KernelTimesTest, FastMemoryDoesNotSpeedUpWhatComputeBounds) {
  DeviceKind kind = Kind(1e9, 1e6);
  kind.kernels = {{"matmul", DType::kF32, RooflineBound::kCompute, {{1e6, 2}}},
                  {"matmul", DType::kF32, RooflineBound::kMemory, {{1e6, 0.5}}}};
  const Machine machine = MachineWith({kind});
  const KernelTimes times(machine, 0, 1);
  EXPECT_DOUBLE_EQ(times.Seconds("matmul", DType::kF32, {.flops = 3e9, .bytes = 1e6}), 6);
}

// What mixed precision leaves in f32 beside bf16 are statistics; a sum of bf16 may be f32.
TEST(KernelTimesTest, ComputesInTheNarrowestFloat) {
  const TensorType bf16 = {DType::kBF16, {8}};
  const TensorType f32 = {DType::kF32, {8}};
  const TensorType i64 = {DType::kI64, {8}};
  EXPECT_EQ(KernelTimes::ComputeType({{bf16, bf16, f32, f32}}, {{bf16}}), DType::kBF16);
  EXPECT_EQ(KernelTimes::ComputeType({{bf16, bf16}}, {{f32}}), DType::kBF16);
  EXPECT_EQ(KernelTimes::ComputeType({{f32, i64}}, {{bf16}}), DType::kF32);
  EXPECT_EQ(KernelTimes::ComputeType({{i64}}, {{f32}}), DType::kF32);
}

// Each type has its rate and what was measured in it.
TEST(KernelTimesTest, FloatsOf16BitsHaveTimesOfTheirOwn) {
  DeviceKind kind = Kind(1e9, 1e6);
  kind.peak_flops_per_s[static_cast<size_t>(DType::kBF16)] = 4e9;
  kind.kernels = {{"matmul", DType::kF32, RooflineBound::kCompute, {{1e6, 2}}},
                  {"matmul", DType::kBF16, RooflineBound::kCompute, {{1e6, 3}}}};
  const Machine machine = MachineWith({kind});
  const KernelTimes times(machine, 0, 1);
  const graph::OpCost cost = {.flops = 8e9, .bytes = 1e6};
  EXPECT_DOUBLE_EQ(times.Seconds("matmul", DType::kF32, cost), 16);
  EXPECT_DOUBLE_EQ(times.Seconds("matmul", DType::kBF16, cost), 6);
}

TEST(KernelTimesTest, GpusOfPresetsMultiplyFasterIn16Bits) {
  for (const char* preset : {"dgx-a100:1", "hgx-h100:1"}) {
    SCOPED_TRACE(preset);
    const Machine machine = {*FindClusterPreset(preset)};
    const KernelTimes times(machine, 0, 1);
    const auto seconds_of = [&](DType dtype) {
      constexpr double kSize = 8192;
      return times.Seconds("matmul", dtype,
                           {.flops = 2 * kSize * kSize * kSize,
                            .bytes = 3 * kSize * kSize * static_cast<double>(ByteSize(dtype))});
    };
    EXPECT_LT(10 * seconds_of(DType::kBF16), seconds_of(DType::kF32));
    EXPECT_EQ(seconds_of(DType::kF16), seconds_of(DType::kBF16));
  }
}

TEST(KernelTimesTest, OfSeveralKindsTheSlowestCounts) {
  DeviceKind slow_gelu = Kind(1e9, 1e6);
  slow_gelu.kernels = {{"gelu", DType::kF32, RooflineBound::kMemory, {{1e6, 7}}}};
  const Machine machine = MachineWith({Kind(1e8, 1e6), slow_gelu});
  const graph::OpCost cost = {.flops = 1e8, .bytes = 1e6};
  EXPECT_DOUBLE_EQ(KernelTimes(machine, 0, 2).Seconds("gelu", DType::kF32, cost), 7);
  EXPECT_DOUBLE_EQ(KernelTimes(machine, 0, 1).Seconds("gelu", DType::kF32, cost), 2);
}

}  // namespace
}  // namespace penstock::planner
