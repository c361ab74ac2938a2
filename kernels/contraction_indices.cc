#include "kernels/contraction_indices.h"

#include <string>
#include <string_view>

#include "base/shape.h"
#include "base/strings.h"

namespace penstock::kernels {

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

absl::StatusOr<std::vector<ContractionIndex>> EinsumIndices(const KernelSpec& spec) {
  std::string equation = spec.attributes.GetString("equation", "");
  std::erase(equation, ' ');
  const absl::Status malformed = absl::InvalidArgumentError(
      StrCat("einsum: the equation \"", equation, "\" does not fit the operands"));

  const size_t arrow = equation.find("->");
  if (arrow == std::string::npos) return malformed;
  const std::string_view left = std::string_view(equation).substr(0, arrow);
  const size_t comma = left.find(',');
  const std::string_view labels[3] = {
      left.substr(0, comma),
      comma == std::string_view::npos ? std::string_view() : left.substr(comma + 1),
      std::string_view(equation).substr(arrow + 2)};
  const TileDesc* tiles[3] = {&spec.inputs[0], spec.inputs.size() > 1 ? &spec.inputs[1] : nullptr,
                              &spec.outputs[0]};

  std::vector<ContractionIndex> indices;
  std::string known;
  for (int t = 0; t < 3; ++t) {
    const Shape shape = tiles[t] != nullptr ? tiles[t]->shape : Shape();
    if (labels[t].size() != shape.size()) return malformed;
    const Shape strides = RowMajorStrides(shape);
    for (size_t i = 0; i < shape.size(); ++i) {
      size_t at = known.find(labels[t][i]);
      if (at == std::string::npos) {
        if (t == 2) return malformed;
        at = known.size();
        known.push_back(labels[t][i]);
        indices.push_back({.size = shape[i]});
      }
      if (indices[at].size != shape[i]) return malformed;
      int64_t& stride = t == 0   ? indices[at].a_stride
                        : t == 1 ? indices[at].b_stride
                                 : indices[at].c_stride;
      stride += strides[i];
    }
  }
  return indices;
}

}  // namespace penstock::kernels
