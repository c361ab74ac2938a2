#include "kernels/cuda/box_plan.h"

#include <algorithm>
#include <vector>

#include "base/strings.h"

namespace penstock::kernels::cuda {
namespace {

struct Dim {
  int64_t size;
  int64_t source;
  int64_t target;
};

}  // namespace

absl::StatusOr<Box> PlanBox(absl::Span<const int64_t> shape,
                            absl::Span<const int64_t> source_strides,
                            absl::Span<const int64_t> target_strides) {
  std::vector<Dim> dims;
  for (size_t i = 0; i < shape.size(); ++i) {
    if (shape[i] == 1) continue;
    const Dim dim = {shape[i], source_strides[i], target_strides[i]};
    if (!dims.empty() && dims.back().source == dim.source * dim.size &&
        dims.back().target == dim.target * dim.size) {
      dims.back() = {dims.back().size * dim.size, dim.source, dim.target};
    } else {
      dims.push_back(dim);
    }
  }
  if (dims.size() > kMaxBoxDims) {
    return absl::UnimplementedError(
        StrCat("cuda kernels copy at most ", kMaxBoxDims, " dimensions, not ", dims.size()));
  }
  // For a transpose by tiles; the order of the dimensions does not matter to the result.
  if (dims.size() > 2 && dims.back().source != 1) {
    const auto contiguous =
        std::find_if(dims.begin(), dims.end() - 1, [](const Dim& dim) { return dim.source == 1; });
    if (contiguous != dims.end() - 1) std::rotate(contiguous, contiguous + 1, dims.end() - 1);
  }
  Box box;
  for (const Dim& dim : dims) {
    box.sizes[box.rank] = dim.size;
    box.source_strides[box.rank] = dim.source;
    box.target_strides[box.rank] = dim.target;
    ++box.rank;
  }
  if (box.rank == 0) {  // one element
    box.rank = 1;
    box.sizes[0] = box.source_strides[0] = box.target_strides[0] = 1;
  }
  return box;
}

}  // namespace penstock::kernels::cuda
