#include <algorithm>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/routing.h"

namespace penstock::kernels {
namespace {

// The terms of a token are added up in the order of its choices. Those of places that another tile
// holds are left out, so that the parts add up.
template <typename T>
class Combine : public CpuKernel {
 public:
  Combine(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), routing_(spec.inputs[1], spec.inputs[0]) {}

  absl::Status Run(const KernelArgs& args) override {
    const int64_t width = routing_.width();
    const int64_t choices = routing_.choices();
    const Routing::Rows row_of(routing_, args.microbatch);
    const IndexReader slots(args.inputs[1], spec_.inputs[1].dtype);
    const T* weights = args.inputs.size() > 2 ? Input<T>(args, 2) : nullptr;
    pool_.ParallelFor(routing_.num_tokens(), GrainRows(width * choices),
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t token = begin; token < end; ++token) {
                          T* z = Output<T>(args, 0) + token * width;
                          bool is_first = true;
                          for (int64_t i = token * choices; i < (token + 1) * choices; ++i) {
                            const int64_t row = row_of(i / routing_.choices_a_group(), slots[i]);
                            if (row < 0) continue;
                            const T* y = Input<T>(args, 0) + row * width;
                            const auto w = Splat(weights == nullptr ? T{1} : weights[i]);
                            if (is_first) {
                              Map(
                                  width, [w](auto v) { return v * w; }, z, y);
                            } else {
                              Map(
                                  width, [w](auto sum, auto v) { return sum + v * w; }, z, z, y);
                            }
                            is_first = false;
                          }
                          if (is_first) std::fill(z, z + width, T{});
                        }
                      });
    return absl::OkStatus();
  }

 private:
  Routing routing_;
};

KernelOr CreateCombine(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateKernel<Combine, Floats>(spec, device, stream);
}

}  // namespace

KernelDef CombineKernel() { return {.create = CreateCombine}; }

}  // namespace penstock::kernels
