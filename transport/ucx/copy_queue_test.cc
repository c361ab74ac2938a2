#include "transport/ucx/copy_queue.h"

#include <vector>

#include <gtest/gtest.h>

namespace penstock::transport::ucx {
namespace {

struct Copy {
  uint32_t channel = 0;
  uint64_t num_bytes = 0;
  void* data = nullptr;
  const std::byte* source = nullptr;
  uint64_t num_copied = 0;
  Copy* next = nullptr;
};

class CopyQueueTest : public ::testing::Test {
 protected:
  struct Memory {
    std::vector<std::byte> from, to;
    Copy copy;
  };

  Memory MakeCopy(uint32_t channel, uint64_t num_bytes) {
    Memory memory;
    memory.from.resize(num_bytes);
    for (uint64_t i = 0; i < num_bytes; ++i) memory.from[i] = std::byte(i * 7 + channel);
    memory.to.resize(num_bytes);
    memory.copy.channel = channel;
    memory.copy.num_bytes = num_bytes;
    memory.copy.data = memory.to.data();
    return memory;
  }

  CopyQueue<Copy> queue_;
};

TEST_F(CopyQueueTest, CopiesAChunkAtATime) {
  Memory memory = MakeCopy(0, 2 * kCopyChunkBytes + 5);
  queue_.Add(&memory.copy, memory.from.data());
  EXPECT_EQ(queue_.CopyChunk(), nullptr);
  EXPECT_EQ(memory.to[kCopyChunkBytes - 1], memory.from[kCopyChunkBytes - 1]);
  EXPECT_EQ(memory.to[kCopyChunkBytes + 1], std::byte{0});
  EXPECT_EQ(queue_.CopyChunk(), nullptr);
  EXPECT_FALSE(queue_.empty());
  EXPECT_EQ(queue_.CopyChunk(), &memory.copy);
  EXPECT_TRUE(queue_.empty());
  EXPECT_EQ(memory.to, memory.from);
}

TEST_F(CopyQueueTest, AnUrgentCopyOvertakesOneThatHasBegun) {
  Memory late = MakeCopy(7, 3 * kCopyChunkBytes);
  Memory urgent = MakeCopy(3, 2 * kCopyChunkBytes);
  queue_.Add(&late.copy, late.from.data());
  EXPECT_EQ(queue_.CopyChunk(), nullptr);
  queue_.Add(&urgent.copy, urgent.from.data());
  EXPECT_EQ(queue_.CopyChunk(), nullptr);
  EXPECT_EQ(queue_.CopyChunk(), &urgent.copy);
  EXPECT_EQ(queue_.CopyChunk(), nullptr);
  EXPECT_EQ(queue_.CopyChunk(), &late.copy);
  EXPECT_EQ(urgent.to, urgent.from);
  EXPECT_EQ(late.to, late.from);
}

TEST_F(CopyQueueTest, AStreamedCopyHasTheSameBytes) {
  Memory memory = MakeCopy(0, kStreamBytes + 3);
  queue_.Add(&memory.copy, memory.from.data());
  while (queue_.CopyChunk() == nullptr) {
  }
  EXPECT_EQ(memory.to, memory.from);
}

}  // namespace
}  // namespace penstock::transport::ucx
