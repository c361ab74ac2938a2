#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

// Of the operands' tiles, what lies in the result's is copied; all say where they lie.
template <typename T>
class Concat : public CpuKernel {
 public:
  Concat(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const TileDesc& y = spec.outputs[0];
    const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(y));
    const Shape strides = RowMajorStrides(y.shape);
    const int64_t y_begin = TileBegin(y, axis, 0);
    int64_t start = 0;  // of the operand in the whole result
    for (const TileDesc& x : spec.inputs) {
      const Shape x_strides = RowMajorStrides(x.shape);
      const int64_t x_begin = start + TileBegin(x, axis, 0);
      const int64_t begin = std::max(x_begin, y_begin);
      const int64_t end = std::min(x_begin + x.shape[axis], y_begin + y.shape[axis]);
      start += GlobalExtent(x, axis);
      if (begin >= end) continue;
      Shape shape = x.shape;
      shape[axis] = end - begin;
      pieces_.push_back({StridedCopy(shape, x_strides, strides),
                         static_cast<int>(&x - spec.inputs.data()),
                         (begin - x_begin) * x_strides[axis], (begin - y_begin) * strides[axis]});
    }
  }

  absl::Status Run(const KernelArgs& args) override {
    for (const Piece& piece : pieces_) {
      piece.copy.Run(pool_, Input<T>(args, piece.input) + piece.source_offset,
                     Output<T>(args, 0) + piece.offset);
    }
    return absl::OkStatus();
  }

 private:
  struct Piece {
    StridedCopy copy;
    int input;
    int64_t source_offset;
    int64_t offset;  // in the result
  };
  std::vector<Piece> pieces_;
};

}  // namespace

KernelDef ConcatKernel() { return {.create = CreateBySize<Concat>}; }

}  // namespace penstock::kernels
