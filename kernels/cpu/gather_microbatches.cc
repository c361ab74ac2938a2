#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/cpu/tile_window.h"

namespace penstock::kernels {
namespace {

// One run a micro-batch, all into the same result; the parts that others hold stay as they are.
template <typename T>
class GatherMicrobatches : public CpuKernel {
 public:
  GatherMicrobatches(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        copy_(spec.inputs[0].shape, RowMajorStrides(spec.inputs[0].shape),
              RowMajorStrides(spec.outputs[0].shape)) {}

  absl::Status Run(const KernelArgs& args) override {
    ASSIGN_OR_RETURN(const int64_t offset,
                     OffsetInTile(spec_.op, spec_.outputs[0], spec_.inputs[0], args.microbatch));
    copy_.Run(pool_, Input<T>(args, 0), Output<T>(args, 0) + offset);
    return absl::OkStatus();
  }

 private:
  StridedCopy copy_;
};

}  // namespace

KernelDef GatherMicrobatchesKernel() { return {.create = CreateBySize<GatherMicrobatches>}; }

}  // namespace penstock::kernels
