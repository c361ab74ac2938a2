// Kernels of the shape "x[..., b...] with b for every leading index".
//
// Thread rule: as kernel.h. Invariant: x (and dy) may be the same memory as the result.

#ifndef PENSTOCK_KERNELS_CPU_BIAS_H_
#define PENSTOCK_KERNELS_CPU_BIAS_H_

#include <cstdint>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {

// f(x, b) or, with a third operand, f(x, b, dy); on elements as in elementwise.h.
template <typename T, typename F>
class BiasKernel : public CpuKernel {
 public:
  BiasKernel(const KernelSpec& spec, Device& device, F f)
      : CpuKernel(spec, device), f_(f), rows_(RowsLike(spec)) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    const T* b = Input<T>(args, 1);
    T* y = Output<T>(args, 0);
    pool_.ParallelFor(rows_.count, GrainRows(rows_.size), [&](int64_t begin, int64_t end, int) {
      for (int64_t row = begin; row < end; ++row) {
        const int64_t at = row * rows_.size;
        if constexpr (std::is_invocable_v<F, Vec<float>, Vec<float>, Vec<float>>) {
          Map(rows_.size, f_, y + at, x + at, b, Input<T>(args, 2) + at);
        } else {
          Map(rows_.size, f_, y + at, x + at, b);
        }
      }
    });
    return absl::OkStatus();
  }

 private:
  static Rows RowsLike(const KernelSpec& spec) {
    const int64_t size = spec.inputs[1].num_elements();
    return {size > 0 ? spec.outputs[0].num_elements() / size : 0, size};
  }

  F f_;
  Rows rows_;
};

template <typename Types, typename F>
KernelDef BiasDef(F f) {
  return ElementwiseDef<BiasKernel, Types>(f);
}

// The bias is read for every row: never the result's memory.
inline bool CanAliasBias(const KernelSpec& spec, int input) {
  return input != 1 && CanAliasElementwise(spec, input);
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_BIAS_H_
