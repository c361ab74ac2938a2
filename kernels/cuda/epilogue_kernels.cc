// Products with an epilogue: one launch of the library where it has an algorithm for it, otherwise
// the kernels that the operator stands for, one after the other.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

#include "kernels/cuda/contraction_plan.h"
#include "kernels/cuda/cuda_kernel.h"
#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/epilogue_plan.h"
#include "kernels/kernel_sequence.h"

namespace penstock::kernels::cuda {
namespace {

KernelOr MakeFused(const KernelSpec& spec, Stream& stream, const EpiloguePlan& plan,
                   std::shared_ptr<BlasProduct> product, std::shared_ptr<Kernel> steps) {
  return MakeKernel(
      spec, stream,
      [spec, epilogue = plan.epilogue, alignment = static_cast<uintptr_t>(plan.alignment),
       product = std::move(product),
       steps = std::move(steps)](const KernelArgs& args, CudaStream& to) -> absl::Status {
        EpiloguePointers pointers;
        if (epilogue == BlasEpilogue::kGeluGrad) {
          pointers.z = args.inputs[2];
        } else if (epilogue == BlasEpilogue::kAdd) {
          pointers.r = args.inputs[2];
        } else {
          pointers.bias = args.inputs[2];
          if (epilogue == BlasEpilogue::kBiasAdd) pointers.r = args.inputs[3];
          if (epilogue == BlasEpilogue::kBiasGeluAux) pointers.z = args.outputs[1];
        }
        uintptr_t addresses = 0;
        for (const void* address :
             {static_cast<const void*>(args.inputs[0]), static_cast<const void*>(args.inputs[1]),
              static_cast<const void*>(args.outputs[0]), static_cast<const void*>(pointers.bias),
              static_cast<const void*>(pointers.z), pointers.r}) {
          addresses |= reinterpret_cast<uintptr_t>(address);
        }
        if (addresses % alignment != 0) return steps->Run(args);
        return product->Run(to.handle(), args.inputs[0], args.inputs[1], args.outputs[0],
                            /*adds=*/false, AlignedWorkspace(args.workspace), pointers);
      });
}

KernelOr Create(const KernelDef& steps_def, const KernelSpec& spec, Device& device,
                Stream& stream) {
  ASSIGN_OR_RETURN(std::unique_ptr<Kernel> steps, steps_def.create(spec, device, stream));
  auto* cuda_device = dynamic_cast<CudaDevice*>(&device);
  if (cuda_device == nullptr) return steps;
  const std::optional<EpiloguePlan> plan = PlanEpilogue(spec);
  if (!plan.has_value()) return steps;
  ASSIGN_OR_RETURN(
      std::shared_ptr<BlasProduct> product,
      cuda_device->blas().Create(plan->layout, plan->types, plan->alignment, plan->epilogue));
  if (product == nullptr) return steps;
  return MakeFused(spec, stream, *plan, std::move(product), std::move(steps));
}

// `steps` has the kernels of all steps.
KernelDef EpilogueDef(std::shared_ptr<const KernelRegistry> steps) {
  const KernelDef steps_def =
      SequenceDef([steps = std::move(steps)](const std::string& op) { return steps->Find(op); });
  return {
      .workspace_bytes =
          [steps_def](const KernelSpec& spec, int num_threads) {
            const size_t of_library = kBlasWorkspaceBytes + kBlasWorkspaceAlignment;
            return std::max(PlanEpilogue(spec).has_value() ? of_library : 0,
                            steps_def.workspace_bytes(spec, num_threads));
          },
      .create = [steps_def](const KernelSpec& spec, Device& device,
                            Stream& stream) { return Create(steps_def, spec, device, stream); }};
}

}  // namespace

void AddEpilogueKernels(KernelRegistry* registry) {
  const auto steps = std::make_shared<KernelRegistry>();
  AddElementwiseKernels(steps.get());
  AddContractionKernels(steps.get());
  // einsum_bias is also a step of itself, with one operand less.
  const auto all_steps = std::make_shared<KernelRegistry>(*steps);
  AddKernel(all_steps.get(), "einsum_bias", EpilogueDef(steps));
  const KernelDef def = EpilogueDef(all_steps);
  for (const char* op : {"einsum_bias", "einsum_bias_gelu", "einsum_gelu_grad"}) {
    AddKernel(registry, op, def);
  }
}

}  // namespace penstock::kernels::cuda
