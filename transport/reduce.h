// Elementwise folding of the terms of a reduction.
//
// Integers wrap around. The max or min of floats is NaN if a term is. Terms of f16 and bf16 are
// combined in f32, and what is folded of them is rounded once, however many they are. Of bool, max
// is "or" and min is "and"; its sum and product are refused.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TRANSPORT_REDUCE_H_
#define PENSTOCK_TRANSPORT_REDUCE_H_

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

#include "base/collective.h"
#include "base/dtype.h"

namespace penstock::transport {

// out[i] = a[i] op b[i]. `out` may be `a` or `b`, but not overlap them otherwise; all are aligned
// to their elements.
using FoldFunction = void (*)(const void* a, const void* b, void* out, int64_t count);

// Null if there is no such reduction.
FoldFunction FindFold(ReduceOp op, DType dtype);

// What a fold of any number of terms is made of. Partial results are f32 for terms of 16 bits, and
// have the type of the terms otherwise.
struct FoldSteps {
  FoldFunction pair = nullptr;    // term op term -> result: FindFold
  FoldFunction first = nullptr;   // term op term -> partial result
  FoldFunction middle = nullptr;  // partial result op term -> partial result
  FoldFunction last = nullptr;    // partial result op term -> result
  int64_t partial_bytes = 0;      // of an element of a partial result
};

// All null if there is no such reduction.
FoldSteps FindFoldSteps(ReduceOp op, DType dtype);

// out[i] = (terms[0][i] op terms[1][i]) op terms[2][i] ..., rounded once. `out` may be one of the
// terms; `partial` has room for `count` partial results, and overlaps nothing.
// REQUIRES: two terms or more.
void FoldTerms(const FoldSteps& steps, absl::Span<const std::byte* const> terms, void* partial,
               void* out, int64_t count);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_REDUCE_H_
