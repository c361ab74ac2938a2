// A kernel that is several others, one after the other on its stream: for an operator that a device
// has no kernel of one pass for.
//
// Thread rule: as kernel.h. Steps share the workspace.

#ifndef PENSTOCK_KERNELS_KERNEL_SEQUENCE_H_
#define PENSTOCK_KERNELS_KERNEL_SEQUENCE_H_

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"

#include "kernels/kernel.h"

namespace penstock::kernels {

// A tensor of the whole operator that a step reads or writes.
struct StepTensor {
  bool is_output = false;
  int index = 0;
};

struct KernelStep {
  KernelSpec spec;
  std::vector<StepTensor> inputs;
  std::vector<StepTensor> outputs;
};

// The steps of einsum_bias, einsum_bias_gelu and einsum_gelu_grad (docs/OPERATORS.md). An error for
// another operator.
//
// Example: einsum_bias_gelu(x, w, b) -> y, z with z bound is einsum(x, w) -> z, bias_add(z, b) ->
// z, gelu(z) -> y; without z it is einsum(x, w) -> y, bias_gelu(y, b) -> y. einsum_bias(x, w, b, r)
// -> y is einsum_bias(x, w, b) -> y, add(y, r) -> y.
absl::StatusOr<std::vector<KernelStep>> EpilogueSteps(const KernelSpec& spec);

// Whether operand 2 of einsum_bias has an element for each of the result: it is added like operand
// 3, not repeated.
bool HasWholeBias(const KernelSpec& spec);

// The definition of a kernel by name; null: there is none.
using FindKernel = std::function<const KernelDef*(const std::string& op)>;

// Of an operator that EpilogueSteps knows. `find` lives as long as the definition and its kernels
// are made from it.
KernelDef SequenceDef(FindKernel find);

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_KERNEL_SEQUENCE_H_
