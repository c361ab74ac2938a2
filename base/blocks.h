// Divides n items into contiguous blocks of nearly equal size, as devices are divided among
// processes and hosts: block b of B has the items from b*n/B on.
//
// Example: of 5 items in 2 blocks the first has 0 and 1, the second 2, 3 and 4.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_BLOCKS_H_
#define PENSTOCK_BASE_BLOCKS_H_

#include <cstdint>

namespace penstock {

// The first thing of a block; of the block behind the last, `count`. No block is empty if there are
// as many things. REQUIRES: num_blocks >= 1, count * num_blocks below 2^63.
inline int64_t BlockBegin(int64_t block, int64_t num_blocks, int64_t count) {
  return block * count / num_blocks;
}

// The block of a thing. REQUIRES: 0 <= index < count.
inline int64_t BlockOf(int64_t index, int64_t num_blocks, int64_t count) {
  return ((index + 1) * num_blocks - 1) / count;
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_BLOCKS_H_
