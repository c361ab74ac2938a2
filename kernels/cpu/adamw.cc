#include <cmath>

#include "kernels/cpu/copy.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/scalar.h"

namespace penstock::kernels {
namespace {

// One pass over w, g, m and v. Each result may be the memory of the operand that it replaces.
template <typename T>
class Adamw : public CpuKernel {
 public:
  Adamw(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device),
        beta1_(spec.attributes.GetDouble("beta1", 0.9)),
        beta2_(spec.attributes.GetDouble("beta2", 0.999)),
        epsilon_(spec.attributes.GetDouble("epsilon", 1e-8)),
        weight_decay_(spec.attributes.GetDouble("weight_decay", 0.0)) {}

  absl::Status Run(const KernelArgs& args) override {
    const double step = static_cast<double>(*Input<int64_t>(args, 4));
    const double rate = ReadScalar(spec_, args, 5);
    const double correction2 = std::sqrt(1 - std::pow(beta2_, step));
    const double gradient_scale = ReadScalar(spec_, args, 6);
    if (gradient_scale < 0) return Keep(args);
    const auto scale = Splat(static_cast<T>(gradient_scale));
    // rate m^ / (sqrt(v^) + epsilon) with the corrections m^ = m / (1 - beta1^step) and
    // v^ = v / (1 - beta2^step) taken out of the loop.
    const auto step_size = Splat(static_cast<T>(rate / (1 - std::pow(beta1_, step)) * correction2));
    const auto epsilon = Splat(static_cast<T>(epsilon_ * correction2));
    const auto keep = Splat(static_cast<T>(1 - rate * weight_decay_));
    const auto beta1 = Splat(static_cast<T>(beta1_));
    const auto beta2 = Splat(static_cast<T>(beta2_));
    const auto rest1 = Splat(static_cast<T>(1 - beta1_));
    const auto rest2 = Splat(static_cast<T>(1 - beta2_));
    const T* w = Input<T>(args, 0);
    const T* g = Input<T>(args, 1);
    const T* m = Input<T>(args, 2);
    const T* v = Input<T>(args, 3);
    T* new_w = Output<T>(args, 0);
    T* new_m = Output<T>(args, 1);
    T* new_v = Output<T>(args, 2);
    const auto update = [&](Vec<T>* weight, Vec<T> gradient, Vec<T>* mean, Vec<T>* square) {
      gradient *= scale;
      *mean = beta1 * *mean + rest1 * gradient;
      *square = beta2 * *square + rest2 * (gradient * gradient);
      *weight = keep * *weight - step_size * *mean / (Sqrt(*square) + epsilon);
    };
    pool_.ParallelFor(spec_.outputs[0].num_elements(), kGrain,
                      [&](int64_t begin, int64_t end, int) {
                        int64_t i = begin;
                        for (; i + kLanes<T> <= end; i += kLanes<T>) {
                          Vec<T> weight = Load(w + i);
                          Vec<T> mean = Load(m + i);
                          Vec<T> square = Load(v + i);
                          update(&weight, Load(g + i), &mean, &square);
                          Store<T>(new_w + i, weight);
                          Store<T>(new_m + i, mean);
                          Store<T>(new_v + i, square);
                        }
                        if (i == end) return;
                        const int64_t left = end - i;
                        Vec<T> weight = LoadPart(w + i, left);
                        Vec<T> mean = LoadPart(m + i, left);
                        Vec<T> square = LoadPart(v + i, left);
                        update(&weight, LoadPart(g + i, left), &mean, &square);
                        StorePart<T>(new_w + i, weight, left);
                        StorePart<T>(new_m + i, mean, left);
                        StorePart<T>(new_v + i, square, left);
                      });
    return absl::OkStatus();
  }

 private:
  absl::Status Keep(const KernelArgs& args) {
    const size_t num_bytes = static_cast<size_t>(spec_.outputs[0].num_elements()) * sizeof(T);
    CopyBytes(pool_, Input<T>(args, 0), Output<T>(args, 0), num_bytes);
    CopyBytes(pool_, Input<T>(args, 2), Output<T>(args, 1), num_bytes);
    CopyBytes(pool_, Input<T>(args, 3), Output<T>(args, 2), num_bytes);
    return absl::OkStatus();
  }

  double beta1_;
  double beta2_;
  double epsilon_;
  double weight_decay_;
};

}  // namespace

KernelDef AdamwKernel() {
  return {.create = CreateKernel<Adamw, Floats>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
