#include "kernels/cpu/routing.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// A place that another tile holds gives 0, so that the parts add up.
template <typename T>
class CombineWeightGrad : public CpuKernel {
 public:
  CombineWeightGrad(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), routing_(spec.inputs[2], spec.inputs[1]) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t width = routing_.width();
    const int64_t choices = routing_.choices();
    const Routing::Rows row_of(routing_, args.microbatch);
    const IndexReader slots(args.inputs[2], spec_.inputs[2].dtype);
    pool_.ParallelFor(
        routing_.num_tokens() * choices, GrainRows(width), [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) {
            const int64_t row = row_of(i / routing_.choices_a_group(), slots[i]);
            double sum = 0;
            if (row >= 0) {
              sum = SumOf<T>(
                  width, [](auto x, auto y) { return x * y; },
                  Input<T>(args, 0) + i / choices * width, Input<T>(args, 1) + row * width);
            }
            Output<T>(args, 0)[i] = static_cast<T>(sum);
          }
        });
    return absl::OkStatus();
  }

 private:
  Routing routing_;
};

KernelOr CreateCombineWeightGrad(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[2].dtype));
  return CreateKernel<CombineWeightGrad, Floats>(spec, device, stream);
}

}  // namespace

KernelDef CombineWeightGradKernel() { return {.create = CreateCombineWeightGrad}; }

}  // namespace penstock::kernels
