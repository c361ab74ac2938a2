// Moves a box of elements between two strided layouts: what transpose, broadcast, slice, concat and
// the planner's local operators have in common.
//
// Example: the transpose of [2, 3] is the box {size 3, from 1, to 2} {size 2, from 3, to 1}.
//
// Thread rule: immutable after construction; Run uses the given pool.
// Invariant: no two elements of the box have the same target.

#ifndef PENSTOCK_KERNELS_CPU_STRIDED_COPY_H_
#define PENSTOCK_KERNELS_CPU_STRIDED_COPY_H_

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "absl/types/span.h"

#include "base/shape.h"
#include "base/thread_pool.h"

namespace penstock::kernels {

// One dimension of the box; strides in elements. A source stride of 0 repeats.
struct CopyDim {
  int64_t size = 1;
  int64_t source_stride = 0;
  int64_t target_stride = 0;
};

class StridedCopy {
 public:
  // Dimensions of size 1 are dropped and those that continue each other in both layouts joined.
  explicit StridedCopy(absl::Span<const CopyDim> dims);
  // A box of `shape` with a stride a dimension on either side.
  StridedCopy(absl::Span<const int64_t> shape, absl::Span<const int64_t> source_strides,
              absl::Span<const int64_t> target_strides);

  // T: the unsigned integer (uint8_t, uint16_t, uint32_t, uint64_t) of the elements' size.
  template <typename T>
  void Run(ThreadPool& pool, const T* source, T* target) const;

 private:
  // Element offsets of the outer loops' iteration `index`.
  struct Offsets {
    int64_t source = 0;
    int64_t target = 0;
  };
  Offsets OuterOffsets(int64_t index) const;

  absl::InlinedVector<CopyDim, 6> outer_;
  // The two innermost loops: `row_` has the smallest target stride, `column_` goes over rows and
  // has, where it exists, the source stride 1.
  CopyDim column_;
  CopyDim row_;
  int64_t outer_count_ = 1;
  bool is_empty_ = false;
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_STRIDED_COPY_H_
