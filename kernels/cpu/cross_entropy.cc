#include <cmath>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// loss = log_sum - (logits[label] - max) with log_sum = log(sum(exp(logits - max))): no digit is
// lost to what all logits of a row have in common. If the label has the largest logit, the loss may
// be far smaller than its term of the sum, 1, which is therefore left to log1p. Any other label has
// a loss of at least log(2).
template <typename T>
class CrossEntropy : public CpuKernel {
  using A = Arith<T>;

 public:
  CrossEntropy(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), rows_(RowsOf(spec.inputs[0])) {}

  absl::Status Run(const KernelArgs& args) override {
    const IndexReader labels(args.inputs[1], spec_.inputs[1].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, labels, rows_.count, rows_.size));
    A* loss = Output<A>(args, 0);
    A* maxima = args.outputs.size() > 1 ? Output<A>(args, 1) : nullptr;
    A* log_sums = args.outputs.size() > 2 ? Output<A>(args, 2) : nullptr;
    pool_.ParallelFor(rows_.count, GrainRows(rows_.size), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const T* x = Input<T>(args, 0) + row * rows_.size;
        const A max = MaxOf(rows_.size, x);
        const auto m = Splat(max);
        const int64_t label = labels[row];
        const A of_label = Widened(x[label]);
        // Of the terms from `first` on.
        const auto sum_of = [&](int64_t first, int64_t count) {
          return SumOf<T>(
              count, [&](auto v) { return ExpOfSmall(v - m); }, x + first);
        };
        const double log_sum =
            of_label == max
                ? std::log1p(sum_of(0, label) + sum_of(label + 1, rows_.size - label - 1) +
                             NanUnlessFinite(max))
                : std::log(sum_of(0, rows_.size) + NanUnlessFinite(max));
        loss[row] = static_cast<A>(log_sum - (static_cast<double>(of_label) - max));
        if (maxima != nullptr) maxima[row] = max;
        if (log_sums != nullptr) log_sums[row] = static_cast<A>(log_sum);
      }
    });
    return absl::OkStatus();
  }

 private:
  Rows rows_;
};

KernelOr CreateCrossEntropy(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateKernel<CrossEntropy, AllFloats>(spec, device, stream);
}

}  // namespace

KernelDef CrossEntropyKernel() { return {.create = CreateCrossEntropy}; }

}  // namespace penstock::kernels
