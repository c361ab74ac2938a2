#include <cstring>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"

namespace penstock::kernels {
namespace {

// The element 0 is all zero bits in every dtype.
template <typename T>
class Pad : public CpuKernel {
 public:
  Pad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        copy_(spec.inputs[0].shape, RowMajorStrides(spec.inputs[0].shape),
              RowMajorStrides(spec.outputs[0].shape)) {
    const Shape low = spec.attributes.GetInts("low");
    const Shape strides = RowMajorStrides(spec.outputs[0].shape);
    for (size_t i = 0; i < low.size(); ++i) offset_ += low[i] * strides[i];
  }

  absl::Status Run(const KernelArgs& args) override {
    T* y = Output<T>(args, 0);
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        std::memset(y + begin, 0, (end - begin) * sizeof(T));
                      });
    copy_.Run(pool_, Input<T>(args, 0), y + offset_);
    return absl::OkStatus();
  }

 private:
  StridedCopy copy_;
  int64_t offset_ = 0;
};

}  // namespace

KernelDef PadKernel() { return {.create = CreateBySize<Pad>}; }

}  // namespace penstock::kernels
