#include "kernels/cpu/contraction_kernel.h"

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/gemm.h"

namespace penstock::kernels {
namespace {

template <typename T>
class ContractionKernel : public CpuKernel {
 public:
  ContractionKernel(const KernelSpec& spec, Device& device, const Contraction* contraction)
      : CpuKernel(spec, device), contraction_(*contraction) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* b = args.inputs.size() > 1 ? Input<T>(args, 1) : &kOne;
    contraction_.Run<T>(pool_, Input<T>(args, 0), b, Output<T>(args, 0), AddsToOutputs(args),
                        args.workspace);
    return absl::OkStatus();
  }

 private:
  static constexpr T kOne = 1;
  Contraction contraction_;
};

}  // namespace

KernelDef ContractionDef(IndicesOf indices_of) {
  return {
      .workspace_bytes =
          [indices_of](const KernelSpec& spec, int num_threads) {
            size_t num_bytes = 0;
            const auto indices = indices_of(spec);
            if (!indices.ok()) return num_bytes;  // create reports it
            // A dtype that is not there needs none: create reports that, too.
            DispatchDType(Numbers(), spec.op, MainDType(spec),
                          [&]<typename T>(std::type_identity<T>) {
                            num_bytes = Contraction(*indices).WorkspaceBytes<T>(num_threads);
                            return absl::OkStatus();
                          })
                .IgnoreError();
            return num_bytes;
          },
      .create = [indices_of](const KernelSpec& spec, Device& device, Stream& stream) -> KernelOr {
        ASSIGN_OR_RETURN(const auto indices, indices_of(spec));
        const Contraction contraction(indices);
        return CreateKernel<ContractionKernel, Numbers>(spec, device, stream, &contraction);
      },
      .prepare = [](const KernelSpec& spec) { PrepareGemm(MainDType(spec)); },
      .supports_accumulate = true};
}

}  // namespace penstock::kernels
