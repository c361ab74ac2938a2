#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {
namespace {

// dlogits = dloss (exp(logits - max - log_sum) - onehot(label)); a split vocabulary needs the
// tile's offset.
template <typename T>
class CrossEntropyGrad : public CpuKernel {
  using A = Arith<T>;

 public:
  CrossEntropyGrad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const TileDesc& tile = spec_.inputs[0];
    const int last = Rank(tile) - 1;
    const IndexReader labels(args.inputs[1], spec_.inputs[1].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, labels, rows_.count, GlobalExtent(tile, last)));
    const int64_t first = TileBegin(tile, last, args.microbatch);
    const A* max = Input<A>(args, 2);
    const A* log_sum = Input<A>(args, 3);
    const A* dloss = Input<A>(args, 4);
    pool_.ParallelFor(rows_.count, GrainRows(rows_.size), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        T* dx = Output<T>(args, 0) + row * rows_.size;
        const auto m = Splat(max[row]);
        const auto l = Splat(log_sum[row]);
        const auto d = Splat(dloss[row]);
        const T* x = Input<T>(args, 0) + row * rows_.size;
        const auto gradient = [&](auto v) { return d * Exp(v - m - l); };
        const int64_t at = labels[row] - first;
        const bool is_here = at >= 0 && at < rows_.size;
        const Vec<T> of_label = gradient(Splat(is_here ? Widened(x[at]) : A{}));  // x may be dx
        Map(rows_.size, gradient, dx, x);
        if (is_here) StorePart(dx + at, of_label - d, 1);
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

KernelOr CreateCrossEntropyGrad(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateKernel<CrossEntropyGrad, AllFloats>(spec, device, stream);
}

}  // namespace

KernelDef CrossEntropyGradKernel() {
  return {.create = CreateCrossEntropyGrad, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
