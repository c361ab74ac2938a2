// Kernels of products with an epilogue: einsum, then what follows it in place. They are there for
// plans that are made for GPUs too; on a CPU they save nothing.

#include <cassert>
#include <memory>
#include <string>
#include <utility>

#include "kernels/cpu/converting.h"
#include "kernels/kernel_sequence.h"

namespace penstock::kernels {

// Of any of einsum_bias, einsum_bias_gelu and einsum_gelu_grad.
KernelDef EpilogueKernel() {
  const auto steps = std::make_shared<KernelRegistry>();
  const TrialDevice trial = MakeTrialDevice();
  const auto add = [&](std::string op, KernelDef def) {
    [[maybe_unused]] const absl::Status status =
        steps->Add(std::move(op), WithConversions(std::move(def), trial));
    assert(status.ok());  // a name is listed once
  };
  using Def = KernelDef;
  // clang-format off
  extern Def AddKernel(); add("add", AddKernel());
  extern Def BiasAddKernel(); add("bias_add", BiasAddKernel());
  extern Def BiasGeluKernel(); add("bias_gelu", BiasGeluKernel());
  extern Def EinsumKernel(); add("einsum", EinsumKernel());
  extern Def GeluKernel(); add("gelu", GeluKernel());
  extern Def GeluGradKernel(); add("gelu_grad", GeluGradKernel());
  // clang-format on
  // einsum_bias is also a step of itself, with one operand less.
  const auto basic = std::make_shared<const KernelRegistry>(*steps);
  add("einsum_bias", SequenceDef([basic](const std::string& op) { return basic->Find(op); }));
  return SequenceDef([steps](const std::string& op) { return steps->Find(op); });
}

}  // namespace penstock::kernels
