#include "kernels/cpu/pack.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Pack : public CpuKernel {
 public:
  Pack(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        parts_(PlanPack(spec.inputs[0],
                        NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(spec.inputs[0])),
                        spec.attributes.GetInts("sizes"), /*to_packed=*/true)) {}

  absl::Status Run(const KernelArgs& args) override {
    for (const PackedPart& part : parts_) {
      part.copy.Run(pool_, Input<T>(args, 0) + part.tile_offset,
                    Output<T>(args, 0) + part.packed_offset);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<PackedPart> parts_;
};

}  // namespace

KernelDef PackKernel() { return {.create = CreateBySize<Pack>}; }

}  // namespace penstock::kernels
