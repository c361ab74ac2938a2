#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/cpu/tile_window.h"

namespace penstock::kernels {
namespace {

template <typename T>
class LocalSlice : public CpuKernel {
 public:
  LocalSlice(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        copy_(spec.outputs[0].shape, RowMajorStrides(spec.inputs[0].shape),
              RowMajorStrides(spec.outputs[0].shape)) {}

  absl::Status Run(const KernelArgs& args) override {
    ASSIGN_OR_RETURN(const int64_t offset,
                     OffsetInTile(spec_.op, spec_.inputs[0], spec_.outputs[0], args.microbatch));
    copy_.Run(pool_, Input<T>(args, 0) + offset, Output<T>(args, 0));
    return absl::OkStatus();
  }

 private:
  StridedCopy copy_;
};

}  // namespace

KernelDef LocalSliceKernel() { return {.create = CreateBySize<LocalSlice>}; }

}  // namespace penstock::kernels
