#include "actors/cluster/feed_tiles.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "actors/cluster/plan_slice.h"

namespace penstock::actors {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

// Two feeds [4, 2]: x in micro-batches of two rows, of which each device reads a tile, and y.
class FeedTilesTest : public ::testing::Test {
 protected:
  FeedTilesTest() {
    plan_.num_microbatches = 2;
    plan_.feeds = {{"x", {DType::kF32, {4, 2}}}, {"y", {DType::kF32, {4, 2}}}};
  }

  // A device that reads the tile of `feed` in every micro-batch, or once a step.
  void AddDevice(uint32_t feed, Shape shape, Shape offset, bool per_microbatch = true) {
    planner::DevicePlan& device = plan_.devices.emplace_back();
    planner::ActorPlan& actor = device.actors.emplace_back();
    actor.kind = planner::ActorKind::kFeed;
    actor.target = feed;
    actor.kernel = static_cast<uint32_t>(plan_.kernels.size());
    planner::KernelPlan& kernel = plan_.kernels.emplace_back();
    kernel.outputs.push_back({DType::kF32, shape, {4, 2}, offset, {per_microbatch ? 2 : 0, 0}});
    planner::PhasePlan& phase = device.phases.emplace_back();
    phase.num_actors = 1;
    phase.per_microbatch = per_microbatch;
  }

  // What arrives in x and y of a process with the devices, where nothing was: -1.
  std::vector<float> Send(uint32_t feed, uint32_t first_device, uint32_t num_devices,
                          uint64_t num_bytes) {
    auto here = std::make_shared<StepBuffers>();
    auto there = std::make_shared<StepBuffers>();
    for (const planner::FeedPlan& plan : plan_.feeds) {
      here->feeds.emplace_back(plan.type);
      there->feeds.emplace_back(plan.type);
      for (int i = 0; i < 8; ++i) {
        here->feeds.back().As<float>()[i] = static_cast<float>(i);
        there->feeds.back().As<float>()[i] = -1;
      }
    }
    const ByteSource source = FeedTiles(plan_, first_device, num_devices).From(here);
    EXPECT_EQ(source.num_bytes(), num_bytes);
    std::vector<std::byte> bytes(source.num_bytes());
    source.Copy(0, bytes.size(), bytes.data());
    // The node has its slice alone.
    const planner::Plan slice = SlicePlan(plan_, first_device, num_devices);
    const ByteTarget target = FeedTiles(slice, first_device, num_devices).To(there);
    EXPECT_EQ(target.num_bytes(), num_bytes);
    target.Copy(0, bytes.size(), bytes.data());
    const float* values = there->feeds[feed].As<float>();
    return {values, values + 8};
  }

  planner::Plan plan_;
};

TEST_F(FeedTilesTest, AProcessGetsTheTilesOfItsDevices) {
  AddDevice(0, {1, 2}, {0, 0});  // the first row of each micro-batch
  AddDevice(0, {1, 2}, {1, 0});  // the second
  EXPECT_THAT(Send(0, 0, 1, 4 * 4), ElementsAre(0, 1, -1, -1, 4, 5, -1, -1));
  EXPECT_THAT(Send(0, 1, 1, 4 * 4), ElementsAre(-1, -1, 2, 3, -1, -1, 6, 7));
  EXPECT_THAT(Send(0, 0, 2, 8 * 4), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(FeedTilesTest, WhatSeveralDevicesReadIsSentOnce) {
  for (int i = 0; i < 3; ++i) AddDevice(0, {1, 2}, {0, 0});
  EXPECT_THAT(Send(0, 0, 3, 4 * 4), ElementsAre(0, 1, -1, -1, 4, 5, -1, -1));
}

TEST_F(FeedTilesTest, WhatNoDeviceReadsIsNotSent) {
  AddDevice(1, {2, 2}, {0, 0});
  EXPECT_THAT(Send(0, 0, 1, 8 * 4), Each(-1));
  EXPECT_THAT(Send(1, 0, 1, 8 * 4), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_FALSE(FeedTiles(plan_, 0, 1).Reads(0));
  EXPECT_TRUE(FeedTiles(plan_, 0, 1).Reads(1));
}

TEST_F(FeedTilesTest, AFeedIsSentOnceAtMost) {
  AddDevice(0, {2, 2}, {0, 0});                            // all of each micro-batch
  AddDevice(0, {4, 1}, {0, 0}, /*per_microbatch=*/false);  // a column of all
  EXPECT_THAT(Send(0, 0, 2, 8 * 4), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(Send(0, 1, 1, 4 * 4), ElementsAre(0, -1, 2, -1, 4, -1, 6, -1));
}

TEST_F(FeedTilesTest, AFeedOnceAStepIsOnePart) {
  AddDevice(0, {2, 2}, {1, 0}, /*per_microbatch=*/false);
  EXPECT_THAT(Send(0, 0, 1, 4 * 4), ElementsAre(-1, -1, 2, 3, 4, 5, -1, -1));
}

}  // namespace
}  // namespace penstock::actors
