#include "kernels/kernel_sequence.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>

#include "absl/container/inlined_vector.h"

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::kernels {
namespace {

using graph::Attributes;

// Builds the steps of one spec.
class Steps {
 public:
  explicit Steps(const KernelSpec& whole) : whole_(whole) {}

  void Add(std::string op, Attributes attributes, std::vector<StepTensor> inputs,
           StepTensor output) {
    KernelStep step;
    step.spec.op = std::move(op);
    step.spec.attributes = std::move(attributes);
    for (const StepTensor& tensor : inputs) step.spec.inputs.push_back(TileOf(tensor));
    step.spec.outputs = {TileOf(output)};
    step.inputs = std::move(inputs);
    step.outputs = {output};
    steps_.push_back(std::move(step));
  }

  void AddProduct(StepTensor output) {
    Add("einsum", whole_.attributes, {{false, 0}, {false, 1}}, output);
  }

  std::vector<KernelStep> Take() && { return std::move(steps_); }

 private:
  const TileDesc& TileOf(const StepTensor& tensor) const {
    return tensor.is_output ? whole_.outputs[tensor.index] : whole_.inputs[tensor.index];
  }

  const KernelSpec& whole_;
  std::vector<KernelStep> steps_;
};

struct MadeStep {
  std::unique_ptr<Kernel> kernel;
  std::vector<StepTensor> inputs;
  std::vector<StepTensor> outputs;
};

class SequenceKernel : public Kernel {
 public:
  explicit SequenceKernel(std::vector<MadeStep> steps) : steps_(std::move(steps)) {}

  absl::Status Run(const KernelArgs& args) override {
    for (const MadeStep& step : steps_) {
      absl::InlinedVector<void*, 4> inputs;
      absl::InlinedVector<void*, 2> outputs;
      const auto pointer = [&args](const StepTensor& tensor) {
        return tensor.is_output ? args.outputs[tensor.index] : args.inputs[tensor.index];
      };
      for (const StepTensor& tensor : step.inputs) inputs.push_back(pointer(tensor));
      for (const StepTensor& tensor : step.outputs) outputs.push_back(pointer(tensor));
      KernelArgs of_step = args;
      of_step.inputs = inputs;
      of_step.outputs = outputs;
      RETURN_IF_ERROR(step.kernel->Run(of_step));
    }
    return absl::OkStatus();
  }

 private:
  const std::vector<MadeStep> steps_;
};

absl::StatusOr<std::unique_ptr<Kernel>> CreateSequence(const FindKernel& find,
                                                       const KernelSpec& spec, Device& device,
                                                       Stream& stream) {
  ASSIGN_OR_RETURN(std::vector<KernelStep> steps, EpilogueSteps(spec));
  std::vector<MadeStep> made;
  for (KernelStep& step : steps) {
    const KernelDef* def = find(step.spec.op);
    if (def == nullptr) {
      return absl::UnimplementedError(
          StrCat("there is no kernel for ", spec.op, ", which needs one for ", step.spec.op));
    }
    ASSIGN_OR_RETURN(std::unique_ptr<Kernel> kernel, def->create(step.spec, device, stream));
    made.push_back({std::move(kernel), std::move(step.inputs), std::move(step.outputs)});
  }
  return std::make_unique<SequenceKernel>(std::move(made));
}

}  // namespace

bool HasWholeBias(const KernelSpec& spec) { return spec.inputs[2].shape == spec.outputs[0].shape; }

absl::StatusOr<std::vector<KernelStep>> EpilogueSteps(const KernelSpec& spec) {
  constexpr StepTensor kThird = {false, 2};
  constexpr StepTensor kFourth = {false, 3};
  constexpr StepTensor kResult = {true, 0};
  constexpr StepTensor kSecondResult = {true, 1};
  const bool has_second = spec.outputs.size() > 1 && spec.outputs[1].is_bound;
  Steps steps(spec);
  if (spec.op == "einsum_bias" && spec.inputs.size() > 3) {
    steps.Add("einsum_bias", spec.attributes, {{false, 0}, {false, 1}, kThird}, kResult);
    steps.Add("add", {}, {kResult, kFourth}, kResult);
  } else if (spec.op == "einsum_bias") {
    steps.AddProduct(kResult);
    steps.Add(HasWholeBias(spec) ? "add" : "bias_add", {}, {kResult, kThird}, kResult);
  } else if (spec.op == "einsum_bias_gelu" && has_second) {
    steps.AddProduct(kSecondResult);
    steps.Add("bias_add", {}, {kSecondResult, kThird}, kSecondResult);
    steps.Add("gelu", {}, {kSecondResult}, kResult);
  } else if (spec.op == "einsum_bias_gelu" && spec.inputs[2].shape.size() == 1) {
    steps.AddProduct(kResult);
    steps.Add("bias_gelu", {}, {kResult, kThird}, kResult);
  } else if (spec.op == "einsum_bias_gelu") {
    steps.AddProduct(kResult);
    steps.Add("bias_add", {}, {kResult, kThird}, kResult);
    steps.Add("gelu", {}, {kResult}, kResult);
  } else if (spec.op == "einsum_gelu_grad") {
    steps.AddProduct(kResult);
    steps.Add("gelu_grad", {}, {kThird, kResult}, kResult);
  } else {
    return absl::InternalError(StrCat(spec.op, " is not an operator of several steps"));
  }
  return std::move(steps).Take();
}

KernelDef SequenceDef(FindKernel find) {
  return {.workspace_bytes =
              [find](const KernelSpec& spec, int num_threads) {
                size_t most = 0;
                const auto steps = EpilogueSteps(spec);
                if (!steps.ok()) return most;  // create reports it
                for (const KernelStep& step : *steps) {
                  const KernelDef* def = find(step.spec.op);
                  if (def == nullptr || def->workspace_bytes == nullptr) continue;
                  most = std::max(most, def->workspace_bytes(step.spec, num_threads));
                }
                return most;
              },
          .create = [find](const KernelSpec& spec, Device& device,
                           Stream& stream) { return CreateSequence(find, spec, device, stream); },
          .prepare =
              [find](const KernelSpec& spec) {
                const auto steps = EpilogueSteps(spec);
                for (size_t i = 0; steps.ok() && i < steps->size(); ++i) {
                  const KernelDef* def = find((*steps)[i].spec.op);
                  if (def != nullptr && def->prepare != nullptr) def->prepare((*steps)[i].spec);
                }
              }};
}

}  // namespace penstock::kernels
