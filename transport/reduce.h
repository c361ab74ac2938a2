// Elementwise folding of two terms of a reduction.
//
// Integers wrap around. The max or min of floats is NaN if a term is. Terms of f16 and bf16 are
// combined in f32, and each result is rounded. Of bool, max is "or" and min is "and"; its sum and
// product are refused.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TRANSPORT_REDUCE_H_
#define PENSTOCK_TRANSPORT_REDUCE_H_

#include <cstdint>

#include "base/collective.h"
#include "base/dtype.h"

namespace penstock::transport {

// out[i] = a[i] op b[i]. `out` may be `a` or `b`, but not overlap them otherwise; all are aligned
// to their elements.
using FoldFunction = void (*)(const void* a, const void* b, void* out, int64_t count);

// Null if there is no such reduction.
FoldFunction FindFold(ReduceOp op, DType dtype);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_REDUCE_H_
