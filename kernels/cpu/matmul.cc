#include <vector>

#include "kernels/cpu/contraction_kernel.h"
#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

absl::StatusOr<std::vector<ContractionIndex>> MatmulIndices(const KernelSpec& spec) {
  const Shape& a = spec.inputs[0].shape;
  const Shape& b = spec.inputs[1].shape;
  const Shape& c = spec.outputs[0].shape;
  const Shape a_strides = RowMajorStrides(a);
  const Shape b_strides = RowMajorStrides(b);
  const Shape c_strides = RowMajorStrides(c);
  const size_t rank = a.size();
  const size_t b_rank = b.size();
  const bool transpose_a = spec.attributes.GetBool("transpose_a", false);
  const bool transpose_b = spec.attributes.GetBool("transpose_b", false);
  const size_t m = transpose_a ? rank - 1 : rank - 2;
  const size_t k = transpose_a ? rank - 2 : rank - 1;
  const size_t b_k = transpose_b ? b_rank - 1 : b_rank - 2;
  const size_t b_n = transpose_b ? b_rank - 2 : b_rank - 1;

  std::vector<ContractionIndex> indices;
  for (size_t i = 0; i + 2 < rank; ++i) {
    indices.push_back({a[i], a_strides[i], b_rank > 2 ? b_strides[i] : 0, c_strides[i]});
  }
  indices.push_back({a[m], a_strides[m], 0, c_strides[rank - 2]});
  indices.push_back({b[b_n], 0, b_strides[b_n], c_strides[rank - 1]});
  indices.push_back({a[k], a_strides[k], b_strides[b_k], 0});
  return indices;
}

}  // namespace

KernelDef MatmulKernel() { return ContractionDef(MatmulIndices); }

}  // namespace penstock::kernels
