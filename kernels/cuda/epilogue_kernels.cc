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

// cuBLASLt overwrites the gradient of a bias and cannot add to it. Where micro-batches are summed,
// it writes to these bytes behind its workspace, and AddTerm adds them to the sum.
size_t TermBytes(const KernelSpec& spec) {
  return spec.op == "einsum_bias_grad" && spec.accumulate ? spec.outputs[1].num_bytes() : 0;
}

absl::Status AddTerm(const KernelSpec& spec, CudaStream& to, const void* term, void* sum) {
  const int64_t count = spec.outputs[1].num_elements();
  const auto add = [&]<typename T>(std::type_identity<T>) {
    return Launched(spec, LaunchBinary<T>(to.handle(), BinaryOp::kAdd, ScalarSide::kNone, count,
                                          static_cast<const T*>(sum), static_cast<const T*>(term),
                                          static_cast<T*>(sum)));
  };
  switch (spec.outputs[1].dtype) {
    case DType::kBF16:
      return add(std::type_identity<BFloat16>());
    case DType::kF16:
      return add(std::type_identity<Float16>());
    default:
      return add(std::type_identity<float>());
  }
}

KernelOr MakeFused(const KernelSpec& spec, Stream& stream, const EpiloguePlan& plan,
                   std::shared_ptr<BlasProduct> product, std::shared_ptr<Kernel> steps) {
  return MakeKernel(
      spec, stream,
      [spec, epilogue = plan.epilogue, alignment = static_cast<uintptr_t>(plan.alignment),
       product = std::move(product),
       steps = std::move(steps)](const KernelArgs& args, CudaStream& to) -> absl::Status {
        const bool is_bias_grad = spec.op == "einsum_bias_grad";
        const bool adds = AddsToResults(spec, args);
        auto* const workspace = static_cast<std::byte*>(AlignedWorkspace(args.workspace));
        void* const term = workspace + kBlasWorkspaceBytes;
        EpiloguePointers pointers;
        if (is_bias_grad) {
          pointers.bias = adds ? term : args.outputs[1];
        } else if (epilogue == BlasEpilogue::kGeluGrad) {
          pointers.z = args.inputs[2];
        } else {
          pointers.bias = args.inputs[2];
          if (epilogue == BlasEpilogue::kBiasGeluAux) pointers.z = args.outputs[1];
        }
        uintptr_t addresses = 0;
        for (const void* address :
             {static_cast<const void*>(args.inputs[0]), static_cast<const void*>(args.inputs[1]),
              static_cast<const void*>(args.outputs[0]), static_cast<const void*>(pointers.bias),
              static_cast<const void*>(pointers.z)}) {
          addresses |= reinterpret_cast<uintptr_t>(address);
        }
        if (addresses % alignment != 0) return steps->Run(args);
        RETURN_IF_ERROR(product->Run(to.handle(), args.inputs[0], args.inputs[1], args.outputs[0],
                                     adds, workspace, pointers));
        if (!is_bias_grad || !adds) return absl::OkStatus();
        return AddTerm(spec, to, term, args.outputs[1]);
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

}  // namespace

void AddEpilogueKernels(KernelRegistry* registry) {
  const auto steps = std::make_shared<KernelRegistry>();
  AddElementwiseKernels(steps.get());
  AddReduceKernels(steps.get());
  AddContractionKernels(steps.get());
  const KernelDef steps_def =
      SequenceDef([steps](const std::string& op) { return steps->Find(op); });
  const KernelDef def = {
      .workspace_bytes =
          [steps_def](const KernelSpec& spec, int num_threads) {
            const size_t of_library =
                kBlasWorkspaceBytes + kBlasWorkspaceAlignment + TermBytes(spec);
            return std::max(PlanEpilogue(spec).has_value() ? of_library : 0,
                            steps_def.workspace_bytes(spec, num_threads));
          },
      .create = [steps_def](const KernelSpec& spec, Device& device,
                            Stream& stream) { return Create(steps_def, spec, device, stream); }};
  for (const char* op : {"einsum_bias", "einsum_bias_gelu", "einsum_gelu_grad"}) {
    AddKernel(registry, op, def);
  }
  KernelDef sum = def;
  sum.supports_accumulate = true;
  AddKernel(registry, "einsum_bias_grad", std::move(sum));
}

}  // namespace penstock::kernels::cuda
