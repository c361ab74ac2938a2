#include "base/blocks.h"

#include "gtest/gtest.h"

namespace penstock {
namespace {

TEST(Blocks, BlockOfIsTheOneThatBeginsBefore) {
  for (int64_t count = 1; count < 40; ++count) {
    for (int64_t num_blocks = 1; num_blocks < 50; ++num_blocks) {
      EXPECT_EQ(BlockBegin(0, num_blocks, count), 0);
      EXPECT_EQ(BlockBegin(num_blocks, num_blocks, count), count);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t block = BlockOf(i, num_blocks, count);
        EXPECT_GE(i, BlockBegin(block, num_blocks, count));
        EXPECT_LT(i, BlockBegin(block + 1, num_blocks, count));
      }
    }
  }
}

TEST(Blocks, SizesDifferByOneAtMost) {
  EXPECT_EQ(BlockBegin(1, 2, 5), 2);
  EXPECT_EQ(BlockBegin(1, 3, 8), 2);
  EXPECT_EQ(BlockBegin(2, 3, 8), 5);
}

}  // namespace
}  // namespace penstock
