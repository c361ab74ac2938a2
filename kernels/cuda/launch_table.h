// Launches that work on several tensors: a table of them among the kernel's parameters. Each entry
// is as many chunks as its tensor needs, and blocks loop over the chunks of all entries.
//
// Example: entries of 5, 1 and 2 chunks begin at the chunks {0, 5, 6}, and 8 chunks are all. The
// chunk 6 is the first one of entry 2.
//
// Thread rule: values and pure functions.

#ifndef PENSTOCK_KERNELS_CUDA_LAUNCH_TABLE_H_
#define PENSTOCK_KERNELS_CUDA_LAUNCH_TABLE_H_

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// Of a kernel: what every driver takes.
inline constexpr size_t kMaxParameterBytes = 4096;

template <typename Entry, int kMaxEntries>
struct LaunchTable {
  static constexpr int kMax = kMaxEntries;

  int32_t num_entries = 0;
  int32_t begins[kMaxEntries + 1] = {};  // of each entry, in chunks; then the end
  Entry entries[kMaxEntries] = {};

  int32_t num_chunks() const { return begins[num_entries]; }
  bool is_full() const { return num_entries == kMaxEntries; }

  // REQUIRES: it is not full, and there are chunks.
  void Add(const Entry& entry, int64_t chunks) {
    entries[num_entries] = entry;
    begins[num_entries + 1] = begins[num_entries] + static_cast<int32_t>(chunks);
    ++num_entries;
  }
  void Clear() { num_entries = 0; }
};

// A block a chunk, up to `max_blocks`.
template <typename Table>
LaunchShape ShapeForChunks(const Table& table, int64_t max_blocks) {
  return ShapeForLoop(table.num_chunks() * kLoopThreads, max_blocks);
}

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_LAUNCH_TABLE_H_
