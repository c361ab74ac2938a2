#include "kernels/cpu/pack.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Unpack : public CpuKernel {
 public:
  Unpack(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        parts_(PlanPack(spec.outputs[0],
                        NormalizeAxis(spec.attributes.GetInt("axis", 0), Rank(spec.outputs[0])),
                        spec.attributes.GetInts("sizes"), /*to_packed=*/false)) {}

  absl::Status Run(const KernelArgs& args) override {
    for (const PackedPart& part : parts_) {
      part.copy.Run(pool_, Input<T>(args, 0) + part.packed_offset,
                    Output<T>(args, 0) + part.tile_offset);
    }
    return absl::OkStatus();
  }

 private:
  std::vector<PackedPart> parts_;
};

}  // namespace

KernelDef UnpackKernel() { return {.create = CreateBySize<Unpack>}; }

}  // namespace penstock::kernels
