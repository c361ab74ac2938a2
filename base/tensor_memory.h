// Checks that a tensor whose size comes from an untrusted source, such as a file, fits into memory.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_TENSOR_MEMORY_H_
#define PENSTOCK_BASE_TENSOR_MEMORY_H_

#include "absl/status/status.h"

#include "base/tensor.h"

namespace penstock {

// kResourceExhausted: a tensor of this type is larger than the memory of this machine. Does not say
// that there is as much memory now. REQUIRES: CheckShape(type.shape) is OK.
absl::Status CheckFitsMemory(const TensorType& type);

}  // namespace penstock

#endif  // PENSTOCK_BASE_TENSOR_MEMORY_H_
