#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {
namespace {

// dlogits = dloss (exp(logits - max - log_sum) - onehot(label)); a split vocabulary needs the
// tile's offset.
template <typename T>
class CrossEntropyGrad : public CpuKernel {
 public:
  CrossEntropyGrad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const TileDesc& tile = spec_.inputs[0];
    const int last = Rank(tile) - 1;
    const IndexReader labels(args.inputs[1], spec_.inputs[1].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, labels, rows_.count, GlobalExtent(tile, last)));
    const int64_t first = TileBegin(tile, last, args.microbatch);
    const T* max = Input<T>(args, 2);
    const T* log_sum = Input<T>(args, 3);
    const T* dloss = Input<T>(args, 4);
    pool_.ParallelFor(rows_.count, GrainRows(rows_.size), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        T* dx = Output<T>(args, 0) + row * rows_.size;
        const auto m = Splat(max[row]);
        const auto l = Splat(log_sum[row]);
        const auto d = Splat(dloss[row]);
        Map(
            rows_.size, [&](auto v) { return d * Exp(v - m - l); }, dx,
            Input<T>(args, 0) + row * rows_.size);
        const int64_t at = labels[row] - first;
        if (at >= 0 && at < rows_.size) dx[at] -= dloss[row];
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

KernelOr Create(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateKernel<CrossEntropyGrad, Floats>(spec, device, stream);
}

}  // namespace

KernelDef CrossEntropyGradKernel() { return {.create = Create, .can_alias = CanAliasFirst}; }

}  // namespace penstock::kernels
