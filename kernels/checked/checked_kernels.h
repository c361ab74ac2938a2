// Kernels that look at what they have computed: each runs the kernel it wraps and fails where a
// float result has a NaN or an infinity that its operands have not. For finding where a NaN arises;
// a step takes a few per cent longer.
//
// An infinity may be intended: results that may hold one by definition (a constant, the log-sum-exp
// of no keys) are exempt, and one that comes from an infinite operand, such as a mask, is not held
// against the operator that passes it on.
//
// Thread rule: as kernel.h.

#ifndef PENSTOCK_KERNELS_CHECKED_CHECKED_KERNELS_H_
#define PENSTOCK_KERNELS_CHECKED_CHECKED_KERNELS_H_

#include <cstdint>

#include "base/dtype.h"
#include "kernels/kernel.h"

namespace penstock::kernels {

// Which steps are looked at, and for what.
enum class ResultCheck : uint8_t {
  kNone,
  kEveryStep,  // for NaN and infinity
  // Infinities that a kernel makes in the first step that it runs are taken for intended: for
  // programs whose first step is known to be good.
  kAfterFirstStep,
};
// The last enumerator.
inline constexpr ResultCheck kLastResultCheck = ResultCheck::kAfterFirstStep;

// `registry` with every kernel wrapped; it outlives the result. The error is kOutOfRange: "result 0
// of matmul (a tile f32[4, 8]) holds nan at element 17; its operands are finite".
KernelRegistry CheckedKernels(const KernelRegistry& registry, ResultCheck check);

// The first elements of a float tensor that are NaN and infinite; -1 where there is none, or where
// the type is no float.
struct NotFinite {
  int64_t nan = -1;       // element
  int64_t infinity = -1;  // element
};
// Looks for them in the tensor at `data`.
NotFinite FindNotFinite(DType dtype, const void* data, int64_t num_elements);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CHECKED_CHECKED_KERNELS_H_
