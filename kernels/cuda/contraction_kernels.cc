// matmul and einsum: f32 through the device's library of matrix products, where it has an algorithm
// for them; otherwise by the general kernel.

#include <memory>
#include <optional>
#include <utility>

#include "kernels/cuda/contraction_plan.h"
#include "kernels/cuda/cuda_kernel.h"

namespace penstock::kernels::cuda {
namespace {

using IndicesOf = absl::StatusOr<std::vector<ContractionIndex>> (*)(const KernelSpec&);

KernelOr MakeProducts(const KernelSpec& spec, Stream& stream, ProductPlan plan,
                      std::shared_ptr<BlasProduct> product) {
  return MakeKernel(spec, stream,
                    [spec, plan = std::move(plan), product = std::move(product)](
                        const KernelArgs& args, CudaStream& to) -> absl::Status {
                      const bool adds = AddsToResults(spec, args);
                      for (const ProductOffsets& at : plan.launches) {
                        RETURN_IF_ERROR(product->Run(
                            to.handle(), Input<float>(args, 0) + at.a, Input<float>(args, 1) + at.b,
                            Output<float>(args, 0) + at.c, adds, args.workspace));
                      }
                      return absl::OkStatus();
                    });
}

KernelOr Create(IndicesOf indices_of, const KernelSpec& spec, Device& device, Stream& stream) {
  ASSIGN_OR_RETURN(const std::vector<ContractionIndex> indices, indices_of(spec));
  ASSIGN_OR_RETURN(ContractionPlan plan, PlanContraction(indices));
  auto* cuda_device = dynamic_cast<CudaDevice*>(&device);
  if (cuda_device != nullptr && plan.product.has_value() && spec.inputs.size() == 2 &&
      spec.inputs[0].dtype == DType::kF32) {
    ASSIGN_OR_RETURN(std::unique_ptr<BlasProduct> product,
                     cuda_device->blas().Create(plan.product->layout, plan.product->alignment));
    if (product != nullptr) {
      return MakeProducts(spec, stream, *std::move(plan.product), std::move(product));
    }
  }
  return WithType(
      DeviceNumbers(), spec, spec.inputs[0].dtype, [&]<typename T>(std::type_identity<T>) {
        return MakeKernel(
            spec, stream, [spec, loops = plan.loops](const KernelArgs& args, CudaStream& to) {
              const T* b = args.inputs.size() > 1 ? Input<T>(args, 1) : nullptr;
              return Launched(spec,
                              LaunchContraction<T>(to.handle(), loops, Input<T>(args, 0), b,
                                                   Output<T>(args, 0), AddsToResults(spec, args)));
            });
      });
}

template <IndicesOf kIndicesOf>
KernelDef ContractionDef() {
  return {.workspace_bytes =
              [](const KernelSpec& spec, int) {
                const auto indices = kIndicesOf(spec);
                if (!indices.ok() || spec.inputs[0].dtype != DType::kF32) return size_t{0};
                const auto plan = PlanContraction(*indices);
                return plan.ok() && plan->product.has_value() ? kBlasWorkspaceBytes : size_t{0};
              },
          .create = [](const KernelSpec& spec, Device& device,
                       Stream& stream) { return Create(kIndicesOf, spec, device, stream); },
          .supports_accumulate = true};
}

}  // namespace

void AddContractionKernels(KernelRegistry* registry) {
  AddKernel(registry, "matmul", ContractionDef<MatmulIndices>());
  AddKernel(registry, "einsum", ContractionDef<EinsumIndices>());
}

}  // namespace penstock::kernels::cuda
