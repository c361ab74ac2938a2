#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

// Parts of a split last dimension add up: an index of another tile gives 0 here. An index outside
// the whole dimension is an error, as it is in cross_entropy.
template <typename T>
class Pick : public CpuKernel {
 public:
  Pick(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const TileDesc& tile = spec_.inputs[0];
    const int last = Rank(tile) - 1;
    const IndexReader indices(args.inputs[1], spec_.inputs[1].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, indices, rows_.count, GlobalExtent(tile, last)));
    const int64_t first = TileBegin(tile, last, args.microbatch);
    const T* x = Input<T>(args, 0);
    T* y = Output<T>(args, 0);
    for (int64_t row = 0; row < rows_.count; ++row) {
      const int64_t at = indices[row] - first;
      y[row] = at >= 0 && at < rows_.size ? x[row * rows_.size + at] : T{};
    }
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

KernelOr CreatePick(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateBySize<Pick>(spec, device, stream);
}

}  // namespace

KernelDef PickKernel() { return {.create = CreatePick}; }

}  // namespace penstock::kernels
