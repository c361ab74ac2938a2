// Operators that GPUs compute in f64 as well (docs/GPU.md), and their specs in it.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_TESTS_SUPPORT_DOUBLE_TYPES_H_
#define PENSTOCK_TESTS_SUPPORT_DOUBLE_TYPES_H_

#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"

#include "base/dtype.h"
#include "kernels/kernel.h"

namespace penstock::testing {

// Those that only move elements are not among them: they have every type.
inline bool HasDoubles(const std::string& op) {
  static const std::set<std::string> ops = absl::StrSplit(
      "abs accumulate add bias_add bias_gelu bias_gelu_grad cast constant cos div einsum "
      "einsum_bias einsum_bias_gelu einsum_gelu_grad embedding_grad equal exp gelu gelu_grad "
      "greater iota less log matmul max min mul neg reduce_max reduce_mean reduce_sum relu "
      "rotary rsqrt sigmoid silu sin sqrt square sub tanh where",
      ' ');
  return ops.contains(op);
}

// With f64 for every f32, also in the attribute `dtype`; none where there is no f32.
inline std::optional<kernels::KernelSpec> InDoubles(kernels::KernelSpec spec) {
  bool has_doubles = false;
  for (std::vector<kernels::TileDesc>* tiles : {&spec.inputs, &spec.outputs}) {
    for (kernels::TileDesc& tile : *tiles) {
      if (tile.dtype != DType::kF32) continue;
      tile.dtype = DType::kF64;
      has_doubles = true;
    }
  }
  if (spec.attributes.GetDType("dtype", DType::kI64) == DType::kF32) {
    spec.attributes.Set("dtype", DType::kF64);
  }
  return has_doubles ? std::optional(std::move(spec)) : std::nullopt;
}

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_DOUBLE_TYPES_H_
