#include <limits>

#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {
namespace {

// Float to integer truncates; what the integer cannot hold gives its nearest bound, NaN gives 0.
template <typename To, typename From>
inline To Convert(From x) {
  if constexpr (std::is_same_v<To, bool>) {
    return x != From{};
  } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
    constexpr From kLowest = static_cast<From>(std::numeric_limits<To>::lowest());
    constexpr From kHighest = static_cast<From>(std::numeric_limits<To>::max());
    if (!(x > kLowest)) return x == x ? std::numeric_limits<To>::lowest() : To{0};
    return x >= kHighest ? std::numeric_limits<To>::max() : static_cast<To>(x);
  } else {
    return static_cast<To>(x);
  }
}

// Between f32 and the floats of 16 bits.
template <typename From, typename To>
class CastFloats : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        Map(
                            end - begin, [](auto v) { return v; }, Output<To>(args, 0) + begin,
                            Input<From>(args, 0) + begin);
                      });
    return absl::OkStatus();
  }
};

template <typename From, typename To>
class Cast : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const From* x = Input<From>(args, 0);
    To* y = Output<To>(args, 0);
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t i = begin; i < end; ++i) y[i] = Convert<To>(x[i]);
                      });
    return absl::OkStatus();
  }
};

KernelOr CreateCast(const KernelSpec& spec, Device& device, Stream&) {
  RETURN_IF_ERROR(CheckDevice(spec, device));
  const DType from = spec.inputs[0].dtype;
  const DType to = spec.outputs[0].dtype;
  if (from == DType::kF32 && to == DType::kBF16) {
    return std::make_unique<CastFloats<float, BFloat16>>(spec, device);
  }
  if (from == DType::kBF16 && to == DType::kF32) {
    return std::make_unique<CastFloats<BFloat16, float>>(spec, device);
  }
  if (from == DType::kF32 && to == DType::kF16) {
    return std::make_unique<CastFloats<float, Float16>>(spec, device);
  }
  if (from == DType::kF16 && to == DType::kF32) {
    return std::make_unique<CastFloats<Float16, float>>(spec, device);
  }
  std::unique_ptr<Kernel> kernel;
  RETURN_IF_ERROR(DispatchDType(
      Natives(), spec.op, spec.inputs[0].dtype, [&]<typename From>(std::type_identity<From>) {
        return DispatchDType(Natives(), spec.op, spec.outputs[0].dtype,
                             [&]<typename To>(std::type_identity<To>) {
                               kernel = std::make_unique<Cast<From, To>>(spec, device);
                               return absl::OkStatus();
                             });
      }));
  return kernel;
}

}  // namespace

KernelDef CastKernel() { return {.create = CreateCast, .can_alias = CanAliasElementwise}; }

}  // namespace penstock::kernels
