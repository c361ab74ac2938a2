#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

// The operand's tile holds at least what the result's reads; both say where they lie.
template <typename T>
class Slice : public CpuKernel {
 public:
  Slice(const KernelSpec& spec, Device& device) : CpuKernel(spec, device), copy_(Plan(spec)) {
    const TileDesc& x = spec.inputs[0];
    const TileDesc& y = spec.outputs[0];
    if (y.num_elements() == 0) return;
    const Shape start = spec.attributes.GetInts("start");
    const Shape step = spec.attributes.GetInts("stride");
    const Shape strides = RowMajorStrides(x.shape);
    for (int i = 0; i < Rank(y); ++i) {
      const int64_t stride = step.empty() ? 1 : step[i];
      const int64_t first = TileBegin(y, i, 0) * stride + start[i] - TileBegin(x, i, 0);
      is_inside_ &= first >= 0 && first + (y.shape[i] - 1) * stride < x.shape[i];
      offset_ += first * strides[i];
    }
  }

  absl::Status Run(const KernelArgs& args) override {
    if (!is_inside_) {
      return absl::InternalError("slice: the operand's tile does not hold what the result reads");
    }
    copy_.Run(pool_, Input<T>(args, 0) + offset_, Output<T>(args, 0));
    return absl::OkStatus();
  }

 private:
  static StridedCopy Plan(const KernelSpec& spec) {
    const Shape step = spec.attributes.GetInts("stride");
    Shape strides = RowMajorStrides(spec.inputs[0].shape);
    for (size_t i = 0; i < step.size(); ++i) strides[i] *= step[i];
    return StridedCopy(spec.outputs[0].shape, strides, RowMajorStrides(spec.outputs[0].shape));
  }

  StridedCopy copy_;
  int64_t offset_ = 0;
  bool is_inside_ = true;
};

}  // namespace

KernelDef SliceKernel() { return {.create = CreateBySize<Slice>}; }

}  // namespace penstock::kernels
