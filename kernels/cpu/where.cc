#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

// By element size only: T is the unsigned integer of that size.
template <typename T>
class Where : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const bool* condition = Input<bool>(args, 0);
    const T* x = Input<T>(args, 1);
    const T* y = Input<T>(args, 2);
    T* z = Output<T>(args, 0);
    const int64_t condition_step = Step(0);
    const int64_t x_step = Step(1);
    const int64_t y_step = Step(2);
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t i = begin; i < end; ++i) {
                          z[i] = condition[i * condition_step] ? x[i * x_step] : y[i * y_step];
                        }
                      });
    return absl::OkStatus();
  }

 private:
  // 0 for a scalar that goes with every element.
  int64_t Step(int input) const {
    return spec_.inputs[input].shape == spec_.outputs[0].shape ? 1 : 0;
  }
};

}  // namespace

KernelDef WhereKernel() {
  return {.create = CreateBySize<Where>, .can_alias = CanAliasElementwise};
}

}  // namespace penstock::kernels
