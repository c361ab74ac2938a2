#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Split : public CpuKernel {
 public:
  Split(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const int axis = NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(spec.inputs[0]));
    const Shape strides = RowMajorStrides(spec.inputs[0].shape);
    int64_t offset = 0;
    for (const TileDesc& output : spec.outputs) {
      pieces_.push_back(
          {StridedCopy(output.shape, strides, RowMajorStrides(output.shape)), offset});
      offset += output.shape[axis] * strides[axis];
    }
  }

  absl::Status Run(const KernelArgs& args) override {
    for (size_t i = 0; i < pieces_.size(); ++i) {
      if (args.outputs[i] == nullptr) continue;
      pieces_[i].copy.Run(pool_, Input<T>(args, 0) + pieces_[i].offset, Output<T>(args, i));
    }
    return absl::OkStatus();
  }

 private:
  struct Piece {
    StridedCopy copy;
    int64_t offset;  // in the operand
  };
  std::vector<Piece> pieces_;
};

}  // namespace

KernelDef SplitKernel() { return {.create = CreateBySize<Split>}; }

}  // namespace penstock::kernels
