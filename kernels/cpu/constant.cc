#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Constant : public CpuKernel {
 public:
  Constant(const KernelSpec& spec, Device& device) : CpuKernel(spec, device) {
    const graph::AttrValue* value = spec.attributes.Find("value");
    if (value == nullptr) return;
    if (const bool* as_bool = value->AsBool()) value_ = static_cast<T>(*as_bool);
    if (const int64_t* as_int = value->AsInt()) value_ = static_cast<T>(*as_int);
    if (const double* as_double = value->AsDouble()) value_ = static_cast<T>(*as_double);
  }

  absl::Status Run(const KernelArgs& args) override {
    T* y = Output<T>(args, 0);
    pool_.ParallelFor(
        spec_.outputs[0].num_elements(), kGrain,
        [&](int64_t begin, int64_t end, int) { std::fill(y + begin, y + end, value_); });
    return absl::OkStatus();
  }

 private:
  T value_{};
};

}  // namespace

KernelDef ConstantKernel() { return {.create = CreateKernel<Constant, Natives>}; }

}  // namespace penstock::kernels
