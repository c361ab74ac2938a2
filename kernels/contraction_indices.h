// The indices of matmul and einsum, which are sums over indices of a product of two tensors, for
// the kernels of every device.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CONTRACTION_INDICES_H_
#define PENSTOCK_KERNELS_CONTRACTION_INDICES_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/kernel.h"

namespace penstock::kernels {

// Strides in elements; 0 where the tensor lacks the index.
struct ContractionIndex {
  int64_t size = 1;
  int64_t a_stride = 0;
  int64_t b_stride = 0;
  int64_t c_stride = 0;
};

// Of tiles of operands 0 and 1 and result 0. An error for attributes that do not fit their shapes.
absl::StatusOr<std::vector<ContractionIndex>> MatmulIndices(const KernelSpec& spec);
absl::StatusOr<std::vector<ContractionIndex>> EinsumIndices(const KernelSpec& spec);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CONTRACTION_INDICES_H_
