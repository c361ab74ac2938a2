#include <string>
#include <string_view>
#include <vector>

#include "fmt/format.h"

#include "kernels/cpu/contraction_kernel.h"
#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

absl::StatusOr<std::vector<ContractionIndex>> EinsumIndices(const KernelSpec& spec) {
  std::string equation = spec.attributes.GetString("equation", "");
  std::erase(equation, ' ');
  const absl::Status malformed = absl::InvalidArgumentError(
      fmt::format("einsum: the equation \"{}\" does not fit the operands", equation));

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

}  // namespace

KernelDef EinsumKernel() { return ContractionDef(EinsumIndices); }

}  // namespace penstock::kernels
