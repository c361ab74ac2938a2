#include <algorithm>
#include <optional>

#include "graph/sharding.h"
#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {
namespace {

// The running reduction over micro-batches. Without KernelSpec::accumulate it is a copy.
template <typename T>
class Accumulate : public CpuKernel {
 public:
  Accumulate(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        reduction_(*graph::ParseReduction(spec.attributes.GetString("reduction", "sum"))) {}

  absl::Status Run(const KernelArgs& args) override {
    if (!AddsToOutputs(args)) {
      const T* x = Input<T>(args, 0);
      T* y = Output<T>(args, 0);
      pool_.ParallelFor(
          spec_.outputs[0].num_elements(), kGrain,
          [&](int64_t begin, int64_t end, int) { std::copy(x + begin, x + end, y + begin); });
      return absl::OkStatus();
    }
    switch (reduction_) {
      case graph::Reduction::kSum:
        Fold(args, [](auto sum, auto v) { return Wrapping(sum) + Wrapping(v); });
        break;
      case graph::Reduction::kProd:
        Fold(args, [](auto product, auto v) { return Wrapping(product) * Wrapping(v); });
        break;
      case graph::Reduction::kMax:
        Fold(args, [](auto max, auto v) { return Max(max, v); });
        break;
      case graph::Reduction::kMin:
        Fold(args, [](auto min, auto v) { return (min < v) | (min != min) ? min : v; });
        break;
    }
    return absl::OkStatus();
  }

 private:
  template <typename F>
  void Fold(const KernelArgs& args, F f) {
    const T* x = Input<T>(args, 0);
    T* y = Output<T>(args, 0);
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        Map(end - begin, f, y + begin, y + begin, x + begin);
                      });
  }

  const graph::Reduction reduction_;
};

absl::StatusOr<std::unique_ptr<Kernel>> CreateAccumulate(const KernelSpec& spec, Device& device,
                                                         Stream& stream) {
  const std::string reduction = spec.attributes.GetString("reduction", "sum");
  if (!graph::ParseReduction(reduction)) {
    return absl::InvalidArgumentError("accumulate: there is no reduction \"" + reduction + "\"");
  }
  return CreateKernel<Accumulate, Numbers>(spec, device, stream);
}

}  // namespace

KernelDef AccumulateKernel() { return {.create = CreateAccumulate, .supports_accumulate = true}; }

}  // namespace penstock::kernels
