#include "kernels/cpu/contraction_kernel.h"

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/gemm.h"

namespace penstock::kernels {
namespace {

template <typename T>
constexpr T One() {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return {0x3f80};
  } else if constexpr (std::is_same_v<T, Float16>) {
    return {0x3c00};
  } else {
    return 1;
  }
}

template <typename T, typename C>
class ContractionKernel : public CpuKernel {
 public:
  ContractionKernel(const KernelSpec& spec, Device& device, const Contraction& contraction)
      : CpuKernel(spec, device), contraction_(contraction) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* b = args.inputs.size() > 1 ? Input<T>(args, 1) : &kOne;
    contraction_.Run<T, C>(pool_, Input<T>(args, 0), b, Output<C>(args, 0), AddsToOutputs(args),
                           args.workspace);
    return absl::OkStatus();
  }

 private:
  static constexpr T kOne = One<T>();
  Contraction contraction_;
};

// f(std::type_identity<T>(), std::type_identity<C>()) with the types of operands and results.
template <typename F>
absl::Status DispatchTypes(const KernelSpec& spec, const Contraction& contraction, F f) {
  using Types = TypeList<float, double, int8_t, uint8_t, int32_t, int64_t, BFloat16, Float16>;
  const DType result = spec.outputs[0].dtype;
  return DispatchDType(Types(), spec.op, MainDType(spec),
                       [&]<typename T>(std::type_identity<T> operand) {
                         if constexpr (kIsHalf<T>) {
                           if (result == DType::kF32)
                             return f(operand, std::type_identity<float>());
                           // Sums in several parts would be rounded after each: by conversion, they
                           // are not.
                           if (contraction.num_sums() > 1) return UnsupportedDType(spec.op, result);
                         }
                         return f(operand, operand);
                       });
}

}  // namespace

KernelDef ContractionDef(IndicesOf indices_of) {
  return {.workspace_bytes =
              [indices_of](const KernelSpec& spec, int num_threads) {
                size_t num_bytes = 0;
                const auto indices = indices_of(spec);
                if (!indices.ok()) return num_bytes;  // create reports it
                const Contraction contraction(*indices);
                // A dtype that is not there needs none: create reports that, too.
                DispatchTypes(
                    spec, contraction,
                    [&]<typename T, typename C>(std::type_identity<T>, std::type_identity<C>) {
                      num_bytes = contraction.WorkspaceBytes<T, C>(num_threads);
                      return absl::OkStatus();
                    })
                    .IgnoreError();
                return num_bytes;
              },
          .create = [indices_of](const KernelSpec& spec, Device& device, Stream&) -> KernelOr {
            RETURN_IF_ERROR(CheckDevice(spec, device));
            ASSIGN_OR_RETURN(const auto indices, indices_of(spec));
            const Contraction contraction(indices);
            std::unique_ptr<Kernel> kernel;
            RETURN_IF_ERROR(DispatchTypes(
                spec, contraction,
                [&]<typename T, typename C>(std::type_identity<T>, std::type_identity<C>) {
                  kernel = std::make_unique<ContractionKernel<T, C>>(spec, device, contraction);
                  return absl::OkStatus();
                }));
            return kernel;
          },
          .prepare = [](const KernelSpec& spec) { PrepareGemm(MainDType(spec)); },
          .supports_accumulate = true};
}

}  // namespace penstock::kernels
