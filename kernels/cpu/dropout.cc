#include <cmath>

#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/random_words.h"

namespace penstock::kernels {
namespace {

template <typename T>
class Dropout : public CpuKernel {
  using A = Arith<T>;

 public:
  Dropout(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), index_(spec.outputs[0]) {
    const double rate = spec.attributes.GetDouble("rate", 0.0);
    // A uniform draw is (word >> 8) 2^-24, so it is >= rate where word >> 8 is >= this.
    threshold_ = static_cast<uint32_t>(std::ceil(rate * 0x1p24));
    scale_ = static_cast<A>(rate < 1 ? 1 / (1 - rate) : 0);
  }

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    T* y = Output<T>(args, 0);
    const RandomKey key = KeyOf(spec_, args);
    const uint32_t threshold = threshold_;
    const A scale = scale_;
    pool_.ParallelFor(
        spec_.outputs[0].num_elements(), kGrain, [&](int64_t begin, int64_t end, int) {
          ForEachWords(index_, key, begin, end, args.microbatch,
                       [&](int64_t at, int64_t count, const uint32_t* words, int64_t skip) {
                         alignas(kVecBytes) A factors[kWordElements];
                         for (int64_t i = 0; i < count; ++i) {
                           const bool keeps = (words[skip + i] >> 8) >= threshold;
                           factors[i] = static_cast<A>(keeps) * scale;
                         }
                         Map(
                             count, [](auto v, auto factor) { return v * factor; }, y + at, x + at,
                             static_cast<const A*>(factors));
                       });
        });
    return absl::OkStatus();
  }

 private:
  TileIndex index_;
  uint32_t threshold_ = 0;
  A scale_ = 1;
};

}  // namespace

KernelDef DropoutKernel() {
  return {.create = CreateKernel<Dropout, FloatsAndBFloat16>, .can_alias = CanAliasFirst};
}

}  // namespace penstock::kernels
