// Launches of the kernels that only move elements. They know the size of an element, not its type.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_COPIES_H_
#define PENSTOCK_KERNELS_CUDA_COPIES_H_

#include <cstdint>

#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

inline constexpr int kMaxBoxDims = 8;

// A box of elements in two strided layouts, outermost dimension first; strides in elements. A
// source stride of 0 repeats.
//
// Example: the transpose of [2, 3] is the box sizes {3, 2}, source {1, 3}, target {2, 1}.
struct Box {
  int32_t rank = 0;
  int64_t sizes[kMaxBoxDims] = {};
  int64_t source_strides[kMaxBoxDims] = {};
  int64_t target_strides[kMaxBoxDims] = {};

  int64_t count() const {
    int64_t product = 1;
    for (int i = 0; i < rank; ++i) product *= sizes[i];
    return product;
  }
};

// Where a window of `window` elements a dimension begins in a tensor, with starts that lie on the
// device and are clamped so that it fits.
struct Window {
  int32_t rank = 0;  // 0: none
  int64_t whole[kMaxBoxDims] = {};
  int64_t window[kMaxBoxDims] = {};
  const int64_t* start = nullptr;
  bool is_in_source = false;  // the source is the whole tensor, otherwise the target is
};

// Bytes of the words in which a copy moves: the largest power of two, at most 16, that divides
// elements that are contiguous in both layouts, their distances and both addresses.
int WordBytes(const Box& box, int element_bytes, const void* source, const void* target);

// target[...] = source[...] for all elements of the box. REQUIRES: no two elements have the same
// target. element_bytes: 1, 2, 4 or 8.
LaunchResult LaunchCopy(StreamHandle stream, const Box& box, int element_bytes, const void* source,
                        void* target);
// The same of a window: it is added to the address of the side that it lies in.
LaunchResult LaunchWindowCopy(StreamHandle stream, const Box& box, const Window& window,
                              int element_bytes, const void* source, void* target);

// y[i] = table[ids[i] - first], or zeros where another tile of the table has the row. An id outside
// [0, limit) is reported and gives zeros.
struct EmbeddingParams {
  int64_t count = 0;  // of ids
  int64_t row_bytes = 0;
  int64_t first = 0;
  int64_t rows = 0;
  int64_t limit = 0;
  Indices ids;
  FaultSite site;
};
LaunchResult LaunchEmbedding(StreamHandle stream, const EmbeddingParams& params, const void* table,
                             void* y);

// y[row] = x[row, index[row] - first], or 0 where another tile has it; as above.
struct PickParams {
  int64_t rows = 0;
  int64_t row_size = 0;
  int64_t first = 0;
  int64_t limit = 0;
  Indices index;
  FaultSite site;
};
LaunchResult LaunchPick(StreamHandle stream, const PickParams& params, int element_bytes,
                        const void* x, void* y);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_COPIES_H_
