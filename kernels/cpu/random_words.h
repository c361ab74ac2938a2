// Philox words for many consecutive blocks at a time: the same draws as base/random.h, computed
// side by side so that the compiler uses vectors.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_RANDOM_WORDS_H_
#define PENSTOCK_KERNELS_CPU_RANDOM_WORDS_H_

#include <algorithm>
#include <cstdint>

#include "base/random.h"
#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {

// Blocks computed side by side (fewer, and compilers unroll the lanes instead of using vectors),
// and the elements served by one call of FillWords at most.
inline constexpr int kWordLanes = 32;
inline constexpr int64_t kWordElements = 256;

// words[4 * i + j] = PhiloxBlock(key, first_block + i)[j] for i < num_blocks, which is rounded up
// to a multiple of kWordLanes. REQUIRES: num_blocks <= kWordElements / 4.
void FillWords(const RandomKey& key, uint64_t first_block, int64_t num_blocks, uint32_t* words);

// body(position, count, words, skip) for pieces of the positions [begin, end) of a tile: the words
// words[skip] .. words[skip + count - 1] belong to the elements position .. position + count - 1,
// and words[0] is the first of a block. Whole blocks are always filled.
template <typename F>
void ForEachWords(const TileIndex& tile, const RandomKey& key, int64_t begin, int64_t end,
                  int64_t microbatch, F&& body) {
  alignas(64) uint32_t words[kWordElements];
  tile.ForEachRun(begin, end, microbatch, [&](int64_t position, int64_t global, int64_t length) {
    while (length > 0) {
      const int64_t skip = global % 4;
      const int64_t count = std::min(length, kWordElements - skip);
      FillWords(key, static_cast<uint64_t>(global) / 4, (skip + count + 3) / 4, words);
      body(position, count, words, skip);
      position += count;
      global += count;
      length -= count;
    }
  });
}

// The key of a random operator's draws in this run.
inline RandomKey KeyOf(const KernelSpec& spec, const KernelArgs& args) {
  return {args.seed, static_cast<uint32_t>(spec.attributes.GetInt("stream", 0)),
          static_cast<uint32_t>(args.step)};
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_RANDOM_WORDS_H_
