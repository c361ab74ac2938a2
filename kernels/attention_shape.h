// Sizes and strides of attention on a tile, for the kernels of every device.
//
// Thread rule: values.

#ifndef PENSTOCK_KERNELS_ATTENTION_SHAPE_H_
#define PENSTOCK_KERNELS_ATTENTION_SHAPE_H_

#include <cstdint>

namespace penstock::kernels {

// Strides in elements; the width is contiguous.
struct HeadStrides {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t row = 0;
};

template <typename T>
struct HeadTensor {
  T* data = nullptr;
  HeadStrides strides;

  T* At(int64_t batch, int64_t head, int64_t row) const {
    return data + batch * strides.batch + head * strides.head + row * strides.row;
  }
};

struct AttentionShape {
  int64_t batch = 0;
  int64_t heads = 0;      // of queries
  int64_t key_heads = 0;  // divides heads
  int64_t queries = 0;    // of this tile, as keys
  int64_t keys = 0;
  int64_t width = 0;
  bool is_causal = false;
  // With is_causal, query i of the tile sees the tile's keys j <= i + causal_offset.
  int64_t causal_offset = 0;
  // Rows of a head in lse: at least `queries`. Set wherever lse is read or written.
  int64_t lse_rows = 0;
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_ATTENTION_SHAPE_H_
