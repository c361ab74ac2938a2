#include "actors/engine/device_memory.h"

#include "gtest/gtest.h"

#include "tests/support/engine_plan.h"

namespace penstock::actors {
namespace {

using testing::EnginePlanBuilder;
using testing::kWidth;

constexpr uint64_t kLine = 64;

// Two devices that add up a value each, in two registers or in place.
planner::Plan SumPlan(bool is_in_place) {
  EnginePlanBuilder b;
  for (uint32_t d = 0; d < 2; ++d) b.AddDevice();
  const uint32_t sum = b.AddCollectiveSpec(CollectiveKind::kAllReduce, {0, 1},
                                           {kWidth / 2, kWidth - kWidth / 2}, true);
  for (uint32_t d = 0; d < 2; ++d) {
    const uint32_t in = b.AddRegister(d);
    const uint32_t out = is_in_place ? in : b.AddRegister(d);
    b.BeginPhase(d, "F", planner::PhaseKind::kForward);
    const uint32_t made = b.AddKernel(d, "made", "t.iota", {}, {in});
    b.AddChannel(d, made, b.AddCollective(d, "sum", sum, in, out));
  }
  return b.Build();
}

TEST(DeviceMemory, CountsBuffersWhereMemoryCannotBeRead) {
  const planner::Plan plan = SumPlan(false);
  const DeviceMemory near = MemoryOf(plan, 0, nullptr, true);
  EXPECT_EQ(near.arena_bytes, plan.devices[0].arena_bytes);
  const DeviceMemory far = MemoryOf(
      plan, 0, [](uint32_t reader, uint32_t) { return reader != 0; }, true);
  EXPECT_GT(far.collective_bytes, near.collective_bytes);
  EXPECT_EQ(MemoryOf(
                plan, 1, [](uint32_t reader, uint32_t) { return reader != 0; }, true)
                .collective_bytes,
            near.collective_bytes);
  EXPECT_EQ(far.staging_bytes, 0);
  EXPECT_EQ(far.total(), far.arena_bytes + far.collective_bytes);
}

TEST(DeviceMemory, CountsTheStagingOfAsynchronousDevices) {
  const uint64_t bytes = (kWidth * sizeof(double) + kLine - 1) / kLine * kLine;
  EXPECT_EQ(MemoryOf(SumPlan(false), 0, nullptr, false).staging_bytes, 2 * bytes);
  EXPECT_EQ(MemoryOf(SumPlan(true), 0, nullptr, false).staging_bytes, bytes);
}

TEST(DeviceMemory, NamesWhatThereIs) {
  EXPECT_EQ(ToString({.arena_bytes = 2048}), "2.0 KiB");
  EXPECT_EQ(ToString({.arena_bytes = 2048, .host_bytes = 1024}),
            "3.0 KiB (arena 2.0 KiB, on host 1.0 KiB)");
  EXPECT_EQ(ToString({.arena_bytes = 1024, .collective_bytes = 512, .staging_bytes = 2048}),
            "3.5 KiB (arena 1.0 KiB, collective buffers 512 B, host staging 2.0 KiB)");
}

}  // namespace
}  // namespace penstock::actors
