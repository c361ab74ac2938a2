#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Concat : public CpuKernel {
 public:
  Concat(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(spec.outputs[0]));
    const Shape strides = RowMajorStrides(spec.outputs[0].shape);
    int64_t offset = 0;
    for (const TileDesc& input : spec.inputs) {
      pieces_.push_back({StridedCopy(input.shape, RowMajorStrides(input.shape), strides), offset});
      offset += input.shape[axis] * strides[axis];
    }
  }

  absl::Status Run(const KernelArgs& args) override {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      pieces_[i].copy.Run(pool_, Input<T>(args, i), Output<T>(args, 0) + pieces_[i].offset);
    }
    return absl::OkStatus();
  }

 private:
  struct Piece {
    StridedCopy copy;
    int64_t offset;  // in the result
  };
  std::vector<Piece> pieces_;
};

}  // namespace

KernelDef ConcatKernel() { return {.create = CreateBySize<Concat>}; }

}  // namespace penstock::kernels
