// matmul and einsum: floats through the device's library of matrix products, where it has an
// algorithm for them; otherwise by the general kernel.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>

#include "kernels/cuda/contraction_plan.h"
#include "kernels/cuda/cuda_kernel.h"

namespace penstock::kernels::cuda {
namespace {

using IndicesOf = absl::StatusOr<std::vector<ContractionIndex>> (*)(const KernelSpec&);

// A plan of one product at both alignments: the tensors of a run may be views that begin anywhere.
struct Products {
  std::shared_ptr<BlasProduct> plain;    // null: the library cannot do it
  std::shared_ptr<BlasProduct> aligned;  // null: `plain` is no slower, or can do it alone
};

absl::StatusOr<Products> CreateProducts(const ProductPlan& plan, const BlasTypes& types,
                                        Blas& blas) {
  const int element_bytes = static_cast<int>(ByteSize(types.operands));
  Products products;
  ASSIGN_OR_RETURN(products.plain,
                   blas.Create(plan.layout, types, element_bytes, BlasEpilogue::kNone));
  if (const int alignment = AlignmentOf(plan, types); alignment > element_bytes) {
    ASSIGN_OR_RETURN(products.aligned,
                     blas.Create(plan.layout, types, alignment, BlasEpilogue::kNone));
  }
  return products;
}

KernelOr MakeProducts(const KernelSpec& spec, Stream& stream, const BlasTypes& types,
                      ProductPlan plan, Products products) {
  const auto alignment = static_cast<uintptr_t>(AlignmentOf(plan, types));
  const auto operand_bytes = static_cast<int64_t>(ByteSize(types.operands));
  const auto result_bytes = static_cast<int64_t>(ByteSize(types.result));
  return MakeKernel(
      spec, stream,
      [spec, plan = std::move(plan), products = std::move(products), alignment, operand_bytes,
       result_bytes](const KernelArgs& args, CudaStream& to) -> absl::Status {
        const auto* a = Input<std::byte>(args, 0);
        const auto* b = Input<std::byte>(args, 1);
        auto* c = Output<std::byte>(args, 0);
        const uintptr_t addresses = reinterpret_cast<uintptr_t>(a) |
                                    reinterpret_cast<uintptr_t>(b) | reinterpret_cast<uintptr_t>(c);
        const bool is_aligned = products.aligned != nullptr && addresses % alignment == 0;
        BlasProduct& product = is_aligned ? *products.aligned : *products.plain;
        const bool adds = AddsToResults(spec, args);
        void* const workspace = AlignedWorkspace(args.workspace);
        for (const ProductOffsets& at : plan.launches) {
          RETURN_IF_ERROR(product.Run(to.handle(), a + at.a * operand_bytes,
                                      b + at.b * operand_bytes, c + at.c * result_bytes, adds,
                                      workspace, {}));
        }
        return absl::OkStatus();
      });
}

KernelOr Create(IndicesOf indices_of, const KernelSpec& spec, Device& device, Stream& stream) {
  ASSIGN_OR_RETURN(const std::vector<ContractionIndex> indices, indices_of(spec));
  absl::StatusOr<ContractionPlan> planned = PlanContraction(indices);
  if (!planned.ok()) {
    return absl::Status(planned.status().code(), StrCat("the cuda kernel for ", spec.op, " takes ",
                                                        planned.status().message()));
  }
  ContractionPlan& plan = *planned;
  auto* cuda_device = dynamic_cast<CudaDevice*>(&device);
  if (cuda_device != nullptr && plan.product.has_value() && spec.inputs.size() == 2 &&
      IsProductType(spec.inputs[0].dtype)) {
    const BlasTypes types = {spec.inputs[0].dtype, spec.outputs[0].dtype};
    ASSIGN_OR_RETURN(Products products, CreateProducts(*plan.product, types, cuda_device->blas()));
    if (products.plain != nullptr) {
      return MakeProducts(spec, stream, types, *std::move(plan.product), std::move(products));
    }
  }
  return WithResultType(
      DeviceNumbers(), spec,
      [&]<typename T, typename R>(std::type_identity<T>, std::type_identity<R>) {
        return MakeKernel(
            spec, stream, [spec, loops = plan.loops](const KernelArgs& args, CudaStream& to) {
              const T* b = args.inputs.size() > 1 ? Input<T>(args, 1) : nullptr;
              return Launched(spec,
                              LaunchContraction(to.handle(), loops, Input<T>(args, 0), b,
                                                Output<R>(args, 0), AddsToResults(spec, args)));
            });
      });
}

template <IndicesOf kIndicesOf>
KernelDef ContractionDef() {
  return {.workspace_bytes =
              [](const KernelSpec& spec, int) {
                const auto indices = kIndicesOf(spec);
                if (!indices.ok() || !IsProductType(spec.inputs[0].dtype)) return size_t{0};
                const auto plan = PlanContraction(*indices);
                if (!plan.ok() || !plan->product.has_value()) return size_t{0};
                return kBlasWorkspaceBytes + kBlasWorkspaceAlignment;
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
