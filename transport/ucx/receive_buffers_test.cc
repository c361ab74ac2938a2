#include "transport/ucx/receive_buffers.h"

#include <cstring>

#include <gtest/gtest.h>

namespace penstock::transport::ucx {
namespace {

TEST(EagerBuffersTest, ReusesReleasedBuffers) {
  EagerBuffers buffers;
  std::byte* first = buffers.Acquire();
  std::byte* second = buffers.Acquire();
  EXPECT_NE(first, second);
  std::memset(first, 1, kMaxEagerBytes);
  std::memset(second, 2, kMaxEagerBytes);
  EXPECT_EQ(first[kMaxEagerBytes - 1], std::byte{1});
  buffers.Release(first);
  EXPECT_EQ(buffers.Acquire(), first);
  EXPECT_NE(buffers.Acquire(), second) << "still in use";
}

TEST(StagingBuffersTest, ReusesABufferThatIsLongEnough) {
  StagingBuffers buffers;
  StagingBuffer small = buffers.Acquire(10);
  StagingBuffer large = buffers.Acquire(1000);
  const std::byte* small_bytes = small.bytes.get();
  const std::byte* large_bytes = large.bytes.get();
  buffers.Release(std::move(small));
  buffers.Release(std::move(large));
  StagingBuffer buffer = buffers.Acquire(500);
  EXPECT_EQ(buffer.bytes.get(), large_bytes);
  EXPECT_EQ(buffer.num_bytes, 1000u);
  StagingBuffer another = buffers.Acquire(500);
  EXPECT_EQ(another.num_bytes, 500u) << "the free one is too short";
  EXPECT_EQ(buffers.Acquire(10).bytes.get(), small_bytes);
}

}  // namespace
}  // namespace penstock::transport::ucx
