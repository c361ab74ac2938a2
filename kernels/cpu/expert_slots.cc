#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

class ExpertSlots : public CpuKernel {
 public:
  ExpertSlots(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        experts_(spec.attributes.GetInt("experts", 1)),
        capacity_(spec.attributes.GetInt("capacity", 1)) {}

  absl::Status Run(const KernelArgs& args) override {
    const Shape& shape = spec_.inputs[0].shape;
    const int64_t k = shape.back();
    const int64_t s = shape[shape.size() - 2];
    const int64_t count = spec_.inputs[0].num_elements();
    const IndexReader choices(args.inputs[0], spec_.inputs[0].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, choices, count, experts_));
    int64_t* slots = Output<int64_t>(args, 0);
    int64_t* load = args.outputs.size() > 1 ? Output<int64_t>(args, 1) : nullptr;
    int64_t* num_chosen = static_cast<int64_t*>(args.workspace);  // of each expert
    int64_t num_groups = 1;
    for (size_t i = 0; i + 2 < shape.size(); ++i) num_groups *= shape[i];
    for (int64_t group = 0; group < num_groups; ++group) {
      std::fill(num_chosen, num_chosen + experts_, int64_t{0});
      for (int64_t j = 0; j < k; ++j) {
        for (int64_t token = 0; token < s; ++token) {
          const int64_t i = (group * s + token) * k + j;
          const int64_t expert = choices[i];
          const int64_t place = num_chosen[expert]++;
          slots[i] = place < capacity_ ? expert * capacity_ + place : -1;
        }
      }
      if (load != nullptr) std::copy(num_chosen, num_chosen + experts_, load + group * experts_);
    }
    return absl::OkStatus();
  }

 private:
  int64_t experts_;
  int64_t capacity_;
};

size_t ExpertSlotsWorkspace(const KernelSpec& spec, int) {
  return spec.attributes.GetInt("experts", 1) * sizeof(int64_t);
}

KernelOr CreateExpertSlots(const KernelSpec& spec, Device& device, Stream&) {
  RETURN_IF_ERROR(CheckDevice(spec, device));
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[0].dtype));
  return std::make_unique<ExpertSlots>(spec, device);
}

}  // namespace

KernelDef ExpertSlotsKernel() {
  return {.workspace_bytes = ExpertSlotsWorkspace, .create = CreateExpertSlots};
}

}  // namespace penstock::kernels
