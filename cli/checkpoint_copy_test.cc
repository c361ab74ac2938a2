#include "cli/checkpoint_copy.h"

#include <cstdint>
#include <numeric>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "actors/cluster/device_range.h"
#include "actors/session/kept_tiles.h"
#include "tests/support/folded_plans.h"

namespace penstock::cli {
namespace {

using testing::FoldedExample;
using testing::FoldedTrainingPlan;

Job JobOf(int64_t processes) {
  Job job;
  job.checkpoint.path = "checkpoints";
  job.cluster.processes = processes;
  return job;
}

// What the processes whose devices begin in [first, end) would copy.
uint64_t CopiedBytes(const planner::Plan& plan, int64_t processes, uint32_t first, uint32_t end) {
  const auto num_devices = static_cast<int64_t>(plan.devices.size());
  uint64_t num_bytes = 0;
  for (int64_t rank = 0; rank < processes; ++rank) {
    const actors::DeviceRange range = actors::DevicesOfRank(rank, processes, num_devices);
    if (range.first < first || range.first >= end) continue;
    num_bytes += actors::KeptTiles::BytesOfAll(plan, range.first, range.count);
  }
  return num_bytes;
}

TEST(CheckpointCopyTest, IsWhatProcessesCopy) {
  for (const FoldedExample& example :
       {FoldedExample{}, FoldedExample{.dp = 3, .tp = 4, .hidden = 10},
        FoldedExample{.fold = false}, FoldedExample{.dp = 4, .tp = 1, .hidden = 4096, .zero = 3},
        FoldedExample{.dp = 1, .tp = 1, .num_stages = 1}}) {
    const planner::FoldedPlan folded = FoldedTrainingPlan(example);
    const planner::Plan plan = planner::ExpandPlan(folded).value();
    const auto num_devices = static_cast<uint32_t>(plan.devices.size());
    for (const int64_t processes : {1, 2, 3, 4}) {
      if (processes > num_devices) continue;
      const Job job = JobOf(processes);
      const uint64_t expected = CopiedBytes(plan, processes, 0, num_devices);
      EXPECT_GT(expected, 0u);
      EXPECT_EQ(CheckpointCopyBytes(job, plan), expected);
      EXPECT_EQ(CheckpointCopiesOf(job, folded).value().total(), expected);
      const uint32_t half = num_devices / 2;
      EXPECT_EQ(CheckpointCopyBytes(job, plan, 0, half), CopiedBytes(plan, processes, 0, half));
      EXPECT_EQ(CheckpointCopyBytes(job, plan, half, num_devices - half),
                CopiedBytes(plan, processes, half, num_devices));
    }
  }
}

TEST(CheckpointCopyTest, IsAPartOfTheMemoryOfDevicesOrHosts) {
  const planner::FoldedPlan folded = FoldedTrainingPlan();
  const planner::Plan plan = planner::ExpandPlan(folded).value();
  for (const char* const kind : {"cpu", "emulated"}) {
    Job job = JobOf(2);
    job.cluster.device_kinds = {kind};
    const CheckpointCopies copies = CheckpointCopiesOf(job, plan);
    const CheckpointCopies of_folded = CheckpointCopiesOf(job, folded).value();
    EXPECT_EQ(copies.device_bytes, of_folded.device_bytes);
    EXPECT_EQ(copies.host_bytes, of_folded.host_bytes);
    const bool is_cpu = std::string(kind) == "cpu";
    const std::vector<uint64_t>& used = is_cpu ? copies.device_bytes : copies.host_bytes;
    const std::vector<uint64_t>& unused = is_cpu ? copies.host_bytes : copies.device_bytes;
    ASSERT_EQ(used.size(), plan.devices.size());
    EXPECT_EQ(std::accumulate(used.begin(), used.end(), uint64_t{0}),
              CheckpointCopyBytes(job, plan));
    EXPECT_EQ(unused, std::vector<uint64_t>(plan.devices.size(), 0));
  }
}

TEST(CheckpointCopyTest, IsAddedToWhatTheFullestDeviceOfAGroupNeeds) {
  planner::StepEstimate estimate;
  estimate.groups.resize(2);
  const CheckpointCopies copies = {.device_bytes = {3, 5, 0, 2}, .host_bytes = {0, 0, 7, 0}};
  AddCheckpointCopies(copies, {}, &estimate);
  EXPECT_EQ(estimate.groups[0].memory.host, 5);
  EXPECT_EQ(estimate.groups[1].memory.host, 7);
  AddCheckpointCopies(copies, {1, 0}, &estimate);
  EXPECT_EQ(estimate.groups[0].memory.host, 12);
  EXPECT_EQ(estimate.groups[1].memory.host, 12);
  AddCheckpointCopies({}, {}, &estimate);
  EXPECT_EQ(estimate.groups[0].memory.host, 12);
}

TEST(CheckpointCopyTest, IsNothingWithoutCheckpoints) {
  const planner::FoldedPlan folded = FoldedTrainingPlan();
  EXPECT_EQ(CheckpointCopiesOf(Job(), folded).value().total(), 0u);
  EXPECT_EQ(CheckpointCopyBytes(Job(), planner::ExpandPlan(folded).value()), 0u);
  EXPECT_EQ(CheckpointCopyNote(Job(), 0), "");
}

// 4,096 devices in as many processes: no plan of all devices is made.
TEST(CheckpointCopyTest, IsCountedOfManyDevices) {
  const planner::FoldedPlan many = FoldedTrainingPlan({.dp = 1024});
  const uint64_t of_two =
      CheckpointCopiesOf(JobOf(8), FoldedTrainingPlan({.dp = 2})).value().total();
  EXPECT_EQ(CheckpointCopiesOf(JobOf(4096), many).value().total(), 512 * of_two);
}

}  // namespace
}  // namespace penstock::cli
