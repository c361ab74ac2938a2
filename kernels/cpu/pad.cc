#include <algorithm>
#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

// The element 0 is all zero bits in every dtype. Of the operand's tile, what lies in the result's
// is copied; both say where they lie.
template <typename T>
class Pad : public CpuKernel {
 public:
  Pad(const KernelSpec& spec, Device& device) : CpuKernel(spec, device), copy_(Plan(spec)) {}

  absl::Status Run(const KernelArgs& args) override {
    T* y = Output<T>(args, 0);
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        std::memset(y + begin, 0, (end - begin) * sizeof(T));
                      });
    copy_.copy.Run(pool_, Input<T>(args, 0) + copy_.source_offset, y + copy_.target_offset);
    return absl::OkStatus();
  }

 private:
  struct Copy {
    StridedCopy copy;
    int64_t source_offset = 0;
    int64_t target_offset = 0;
  };

  static Copy Plan(const KernelSpec& spec) {
    const TileDesc& x = spec.inputs[0];
    const TileDesc& y = spec.outputs[0];
    const Shape low = spec.attributes.GetInts("low");
    const Shape x_strides = RowMajorStrides(x.shape);
    const Shape y_strides = RowMajorStrides(y.shape);
    Shape shape;
    int64_t source = 0;
    int64_t target = 0;
    for (int i = 0; i < Rank(x); ++i) {
      // Where the result's tile begins in the operand.
      const int64_t y_begin = TileBegin(y, i, 0) - low[i];
      const int64_t x_begin = TileBegin(x, i, 0);
      const int64_t begin = std::max(x_begin, y_begin);
      shape.push_back(
          std::max<int64_t>(std::min(x_begin + x.shape[i], y_begin + y.shape[i]) - begin, 0));
      source += (begin - x_begin) * x_strides[i];
      target += (begin - y_begin) * y_strides[i];
    }
    if (NumElements(shape) == 0) source = target = 0;
    return {StridedCopy(shape, x_strides, y_strides), source, target};
  }

  const Copy copy_;
};

}  // namespace

KernelDef PadKernel() { return {.create = CreateBySize<Pad>}; }

}  // namespace penstock::kernels
