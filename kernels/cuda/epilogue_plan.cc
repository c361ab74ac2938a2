#include "kernels/cuda/epilogue_plan.h"

#include <cstdint>

#include "kernels/contraction_indices.h"
#include "kernels/cuda/contraction_plan.h"
#include "kernels/kernel_sequence.h"

namespace penstock::kernels::cuda {
namespace {

// What the library wants of the matrix Z: addresses, and elements between columns.
constexpr int kZAlignment = 16;
constexpr int64_t kZDistance = 8;
// The library's kernels for the gradient of gelu are older ones, 18 % slower than those of plain
// products on an H200. From this many terms a sum on, in 16 bits, that is more than the pass over Z
// and C that the epilogue saves (32768 x 4096 x 16384: 7.8 ms, and 6.6 + 0.9 apart).
constexpr int64_t kMostGeluGradTerms = 3072;

bool HasSecondResult(const KernelSpec& spec) {
  return spec.outputs.size() > 1 && spec.outputs[1].is_bound;
}

// kNone where the vector is no column of C as the library sees it.
BlasEpilogue EpilogueOf(const KernelSpec& spec, const BlasLayout& layout) {
  if (spec.op == "einsum_gelu_grad") {
    const bool is_slower = spec.outputs[0].dtype != DType::kF32 && layout.k > kMostGeluGradTerms;
    return is_slower ? BlasEpilogue::kNone : BlasEpilogue::kGeluGrad;
  }
  const bool has_r = spec.inputs.size() > 3;
  if (spec.op == "einsum_bias" && !has_r && HasWholeBias(spec)) return BlasEpilogue::kAdd;
  if (!layout.is_swapped || layout.rows != spec.inputs[2].num_elements()) {
    return BlasEpilogue::kNone;
  }
  if (spec.op == "einsum_bias") return has_r ? BlasEpilogue::kBiasAdd : BlasEpilogue::kBias;
  return HasSecondResult(spec) ? BlasEpilogue::kBiasGeluAux : BlasEpilogue::kBiasGelu;
}

}  // namespace

std::optional<EpiloguePlan> PlanEpilogue(const KernelSpec& spec) {
  const DType dtype = spec.inputs[0].dtype;
  // In f64 the steps have to do: no model's step waits for them.
  if (!IsProductType(dtype) || dtype == DType::kF64) return std::nullopt;
  const auto indices = EinsumIndices(spec);
  if (!indices.ok()) return std::nullopt;  // the kernels of the steps report it
  const auto contraction = PlanContraction(*indices);
  if (!contraction.ok() || !contraction->product.has_value()) return std::nullopt;
  const ProductPlan& product = *contraction->product;
  if (product.launches.size() != 1 || product.layout.batch != 1) return std::nullopt;
  EpiloguePlan plan = {product.layout, {dtype, spec.outputs[0].dtype}};
  plan.epilogue = EpilogueOf(spec, plan.layout);
  if (plan.epilogue == BlasEpilogue::kNone) return std::nullopt;
  plan.alignment = AlignmentOf(product, plan.types);
  const bool has_z =
      plan.epilogue == BlasEpilogue::kBiasGeluAux || plan.epilogue == BlasEpilogue::kGeluGrad;
  if (has_z && (plan.alignment < kZAlignment || plan.layout.ldc % kZDistance != 0)) {
    return std::nullopt;
  }
  return plan;
}

}  // namespace penstock::kernels::cuda
