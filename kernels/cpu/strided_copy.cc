#include "kernels/cpu/strided_copy.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

// Side of the square blocks in which a plane is transposed: both sides' lines stay in cache.
constexpr int64_t kBlock = 32;

absl::InlinedVector<CopyDim, 6> Zip(absl::Span<const int64_t> shape,
                                    absl::Span<const int64_t> source_strides,
                                    absl::Span<const int64_t> target_strides) {
  absl::InlinedVector<CopyDim, 6> dims;
  for (size_t i = 0; i < shape.size(); ++i) {
    dims.push_back({shape[i], source_strides[i], target_strides[i]});
  }
  return dims;
}

template <typename T>
void CopyRow(const CopyDim& row, int64_t begin, int64_t end, const T* source, T* target) {
  if (row.source_stride == 1 && row.target_stride == 1) {
    std::memcpy(target + begin, source + begin, (end - begin) * sizeof(T));
  } else if (row.source_stride == 0 && row.target_stride == 1) {
    std::fill(target + begin, target + end, *source);
  } else {
    for (int64_t i = begin; i < end; ++i) {
      target[i * row.target_stride] = source[i * row.source_stride];
    }
  }
}

}  // namespace

StridedCopy::StridedCopy(absl::Span<const int64_t> shape, absl::Span<const int64_t> source_strides,
                         absl::Span<const int64_t> target_strides)
    : StridedCopy(Zip(shape, source_strides, target_strides)) {}

StridedCopy::StridedCopy(absl::Span<const CopyDim> dims) {
  for (const CopyDim& dim : dims) {
    if (dim.size == 0) is_empty_ = true;
    if (dim.size != 1) outer_.push_back(dim);
  }
  std::stable_sort(outer_.begin(), outer_.end(), [](const CopyDim& a, const CopyDim& b) {
    return a.target_stride > b.target_stride;
  });
  size_t kept = 0;
  for (size_t i = 1; i < outer_.size(); ++i) {
    CopyDim& last = outer_[kept];
    const CopyDim& dim = outer_[i];
    if (last.source_stride == dim.source_stride * dim.size &&
        last.target_stride == dim.target_stride * dim.size) {
      last = {last.size * dim.size, dim.source_stride, dim.target_stride};
    } else {
      outer_[++kept] = dim;
    }
  }
  if (!outer_.empty()) {
    outer_.resize(kept + 1);
    row_ = outer_.back();
    outer_.pop_back();
  }
  if (!outer_.empty()) {
    auto column = std::find_if(outer_.begin(), outer_.end(),
                               [](const CopyDim& dim) { return dim.source_stride == 1; });
    if (column == outer_.end()) --column;
    column_ = *column;
    outer_.erase(column);
  }
  for (const CopyDim& dim : outer_) outer_count_ *= dim.size;
}

StridedCopy::Offsets StridedCopy::OuterOffsets(int64_t index) const {
  Offsets offsets;
  for (size_t i = outer_.size(); i-- > 0;) {
    const int64_t coordinate = index % outer_[i].size;
    index /= outer_[i].size;
    offsets.source += coordinate * outer_[i].source_stride;
    offsets.target += coordinate * outer_[i].target_stride;
  }
  return offsets;
}

template <typename T>
void StridedCopy::Run(ThreadPool& pool, const T* source, T* target) const {
  if (is_empty_) return;
  if (outer_.empty() && column_.size == 1) {
    pool.ParallelFor(row_.size, kGrain, [&](int64_t begin, int64_t end, int) {
      CopyRow(row_, begin, end, source, target);
    });
    return;
  }
  const bool is_transposed = column_.source_stride == 1 && row_.source_stride != 1;
  const int64_t block = is_transposed ? kBlock : 1;
  const int64_t blocks = (column_.size + block - 1) / block;
  pool.ParallelFor(outer_count_ * blocks, GrainRows(block * row_.size),
                   [&](int64_t begin, int64_t end, int) {
                     for (int64_t task = begin; task < end; ++task) {
                       const Offsets offsets = OuterOffsets(task / blocks);
                       const T* from = source + offsets.source;
                       T* to = target + offsets.target;
                       const int64_t first = task % blocks * block;
                       if (!is_transposed) {
                         CopyRow(row_, 0, row_.size, from + first * column_.source_stride,
                                 to + first * column_.target_stride);
                         continue;
                       }
                       const int64_t last = std::min(first + block, column_.size);
                       for (int64_t i0 = 0; i0 < row_.size; i0 += kBlock) {
                         const int64_t i1 = std::min(i0 + kBlock, row_.size);
                         for (int64_t j = first; j < last; ++j) {
                           CopyRow(row_, i0, i1, from + j, to + j * column_.target_stride);
                         }
                       }
                     }
                   });
}

template void StridedCopy::Run(ThreadPool&, const uint8_t*, uint8_t*) const;
template void StridedCopy::Run(ThreadPool&, const uint16_t*, uint16_t*) const;
template void StridedCopy::Run(ThreadPool&, const uint32_t*, uint32_t*) const;
template void StridedCopy::Run(ThreadPool&, const uint64_t*, uint64_t*) const;

}  // namespace penstock::kernels
