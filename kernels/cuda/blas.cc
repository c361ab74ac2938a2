#include "kernels/cuda/blas.h"

#include <algorithm>
#include <utility>

namespace penstock::kernels::cuda {
namespace {

// A stored matrix [rows, columns] as a column-major one.
struct Stored {
  bool is_transposed = false;  // it is its transpose that is column-major
  int64_t distance = 1;        // between columns of what is column-major
};

std::optional<Stored> StoredAs(int64_t rows, int64_t columns, int64_t row_stride,
                               int64_t column_stride) {
  // The stride of a single row or column is never used.
  if (row_stride == 1 || rows == 1) {
    const int64_t distance = columns == 1 ? std::max(rows, int64_t{1}) : column_stride;
    if (distance >= std::max(rows, int64_t{1})) return Stored{false, distance};
  }
  if (column_stride == 1 || columns == 1) {
    const int64_t distance = rows == 1 ? std::max(columns, int64_t{1}) : row_stride;
    if (distance >= std::max(columns, int64_t{1})) return Stored{true, distance};
  }
  return std::nullopt;
}

}  // namespace

std::optional<BlasLayout> BlasLayoutOf(const ProductShape& shape) {
  std::optional<Stored> c = StoredAs(shape.m, shape.n, shape.c_row, shape.c_column);
  if (!c.has_value()) return std::nullopt;
  BlasLayout layout;
  layout.batch = shape.batch;
  layout.k = shape.k;
  layout.c_batch = shape.c_batch;
  layout.ldc = c->distance;
  // c' = b' a' where it is the transpose of c that is column-major.
  layout.is_swapped = c->is_transposed;
  std::optional<Stored> left;
  std::optional<Stored> right;
  if (c->is_transposed) {
    left = StoredAs(shape.n, shape.k, shape.b_column, shape.b_row);
    right = StoredAs(shape.k, shape.m, shape.a_column, shape.a_row);
    layout.rows = shape.n;
    layout.columns = shape.m;
    layout.a_batch = shape.b_batch;
    layout.b_batch = shape.a_batch;
  } else {
    left = StoredAs(shape.m, shape.k, shape.a_row, shape.a_column);
    right = StoredAs(shape.k, shape.n, shape.b_row, shape.b_column);
    layout.rows = shape.m;
    layout.columns = shape.n;
    layout.a_batch = shape.a_batch;
    layout.b_batch = shape.b_batch;
  }
  if (!left.has_value() || !right.has_value()) return std::nullopt;
  layout.transpose_a = left->is_transposed;
  layout.lda = left->distance;
  layout.transpose_b = right->is_transposed;
  layout.ldb = right->distance;
  return layout;
}

}  // namespace penstock::kernels::cuda
