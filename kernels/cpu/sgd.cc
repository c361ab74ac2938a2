#include "kernels/cpu/copy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/scalar.h"

namespace penstock::kernels {
namespace {

// g' = scale g + weight_decay w; buffer' = momentum buffer + g'; w' = w - lr d, where d is g'
// without a buffer, buffer' with one, and g' + momentum buffer' with Nesterov's variant. Each
// result may be the memory of the operand that it replaces.
template <typename T>
class Sgd : public CpuKernel {
 public:
  Sgd(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        momentum_(Splat(static_cast<T>(spec.attributes.GetDouble("momentum", 0.0)))),
        weight_decay_(Splat(static_cast<T>(spec.attributes.GetDouble("weight_decay", 0.0)))),
        is_nesterov_(spec.attributes.GetBool("nesterov", false)) {}

  absl::Status Run(const KernelArgs& args) override {
    const bool has_buffer = args.inputs.size() > 4;
    const auto rate = Splat(static_cast<T>(ReadScalar(spec_, args, 2)));
    const double gradient_scale = ReadScalar(spec_, args, 3);
    if (gradient_scale < 0) {
      const size_t num_bytes = static_cast<size_t>(spec_.outputs[0].num_elements()) * sizeof(T);
      CopyBytes(pool_, Input<T>(args, 0), Output<T>(args, 0), num_bytes);
      if (has_buffer) CopyBytes(pool_, Input<T>(args, 4), Output<T>(args, 1), num_bytes);
      return absl::OkStatus();
    }
    const auto scale = Splat(static_cast<T>(gradient_scale));
    const auto gradient = [&](auto w, auto g) { return scale * g + weight_decay_ * w; };
    pool_.ParallelFor(
        spec_.outputs[0].num_elements(), kGrain, [&](int64_t begin, int64_t end, int) {
          const int64_t count = end - begin;
          const T* w = Input<T>(args, 0) + begin;
          const T* g = Input<T>(args, 1) + begin;
          T* new_w = Output<T>(args, 0) + begin;
          if (!has_buffer) {
            Map(
                count, [&](auto wi, auto gi) { return wi - rate * gradient(wi, gi); }, new_w, w, g);
            return;
          }
          const T* buffer = Input<T>(args, 4) + begin;
          T* new_buffer = Output<T>(args, 1) + begin;
          Map(
              count, [&](auto wi, auto gi, auto bi) { return momentum_ * bi + gradient(wi, gi); },
              new_buffer, w, g, buffer);
          Map(
              count,
              [&](auto wi, auto gi, auto bi) {
                return wi - rate * (is_nesterov_ ? gradient(wi, gi) + momentum_ * bi : bi);
              },
              new_w, w, g, new_buffer);
        });
    return absl::OkStatus();
  }

 private:
  Vec<T> momentum_;
  Vec<T> weight_decay_;
  bool is_nesterov_;
};

}  // namespace

KernelDef SgdKernel() { return {.create = CreateKernel<Sgd, Floats>, .can_alias = CanAliasFirst}; }

}  // namespace penstock::kernels
