#include "actors/engine/lane_stream.h"

#include "gtest/gtest.h"

#include "base/emulated_device.h"

namespace penstock::actors {
namespace {

class LaneStreamTest : public ::testing::Test {
 protected:
  // Polls the lanes until the oldest mark of the first is done.
  LaneStream::Mark Await(LaneStream& lane) {
    const StreamError* error = nullptr;
    while (lane.Done(&error) == nullptr) {
      lane_.stream().Poll();
      other_.stream().Poll();
    }
    const LaneStream::Mark mark = *lane.Done(&error);
    EXPECT_EQ(error == nullptr, !has_failed_);
    lane.Pop(0);
    return mark;
  }
  // Has the stream fail at its next work.
  void Break(LaneStream& lane) {
    lane.stream().Copy(this, this, 1, CopyKind::kDeviceToDevice);
    has_failed_ = true;
  }

  const std::unique_ptr<EmulatedDevice> device_ =
      EmulatedDevice::Create({.has_thread = false, .seed = 1});
  LaneStream lane_{*device_};
  LaneStream other_{*device_};
  bool has_failed_ = false;
};

TEST_F(LaneStreamTest, MarksComeBackInOrderWithinTheirRoom) {
  lane_.SetCapacity(*device_, 3, false);
  EXPECT_FALSE(lane_.HasRoom(4));
  for (uint32_t round = 0; round < 10; ++round) {
    ASSERT_TRUE(lane_.HasRoom(3));
    lane_.Promise(2);
    lane_.Record({.phase = 2 * round});
    ASSERT_FALSE(lane_.HasRoom(2));
    lane_.Record({.phase = 2 * round + 1});
    lane_.Promise(1);
    ASSERT_FALSE(lane_.HasRoom(1));
    EXPECT_EQ(lane_.num_pending(), 2u);
    EXPECT_EQ(lane_.Pending()->phase, 2 * round);
    EXPECT_EQ(Await(lane_).phase, 2 * round);
    EXPECT_EQ(Await(lane_).phase, 2 * round + 1);
    ASSERT_FALSE(lane_.HasRoom(3));  // one is promised yet
    lane_.Record({.phase = 77});
    EXPECT_EQ(Await(lane_).phase, 77u);
    EXPECT_EQ(lane_.Pending(), nullptr);
  }
}

TEST_F(LaneStreamTest, OneFollowsWhatAnotherHasBeenGiven) {
  lane_.SetCapacity(*device_, 1, false);
  const std::unique_ptr<Memory> memory = *device_->Allocate(sizeof(int), MemoryKind::kDevice);
  for (int i = 1; i <= 100; ++i) {
    const int value = i;
    int read = 0;
    other_.stream().Copy(memory->data(), &value, sizeof(int), CopyKind::kHostToDevice);
    lane_.Follow(other_);
    lane_.stream().Copy(&read, memory->data(), sizeof(int), CopyKind::kDeviceToHost);
    lane_.Promise(1);
    lane_.Record({});
    Await(lane_);
    ASSERT_EQ(read, i);
  }
}

TEST_F(LaneStreamTest, AnErrorComesWithTheMarksThatFollowIt) {
  lane_.SetCapacity(*device_, 2, false);
  lane_.Promise(2);
  lane_.Record({});
  Await(lane_);
  Break(other_);
  lane_.Follow(other_);
  lane_.Record({.phase = 5});
  EXPECT_EQ(Await(lane_).phase, 5u);
}

TEST_F(LaneStreamTest, TheDeviceTellsTheTimeBetweenMarks) {
  lane_.SetCapacity(*device_, 2, true);
  constexpr int64_t kLater = int64_t{1} << 60;  // the host looks late
  const auto take = [this](int64_t now, int64_t begin_ns = 0) {
    lane_.Promise(1);
    lane_.Record({.begin_ns = begin_ns});
    const StreamError* error = nullptr;
    while (lane_.Done(&error) == nullptr) lane_.stream().Poll();
    return lane_.Pop(now);
  };
  EXPECT_EQ(take(1000), 1000);  // there is none before it
  int64_t last = 1000;
  for (int i = 0; i < 10; ++i) {
    const int64_t at = take(kLater);
    EXPECT_GE(at, last);
    EXPECT_LT(at, kLater);
    last = at;
  }
  EXPECT_EQ(take(last - 100), last - 100);  // it was seen before the time that the device tells
  EXPECT_LT(take(kLater), kLater);
  // The device's clock has fallen behind: nothing ends before it began.
  EXPECT_EQ(take(kLater, kLater - 10), kLater - 10);
}

}  // namespace
}  // namespace penstock::actors
