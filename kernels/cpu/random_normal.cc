#include <algorithm>
#include <cmath>

#include "kernels/cpu/random_words.h"

namespace penstock::kernels {
namespace {

// Box-Muller as in RandomNormal, a pair of words for a pair of elements.
template <typename T>
class RandomNormalKernelOf : public CpuKernel {
 public:
  RandomNormalKernelOf(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), index_(spec.outputs[0]) {}

  absl::Status Run(const KernelArgs& args) override {
    T* y = Output<T>(args, 0);
    const RandomKey key = KeyOf(spec_, args);
    pool_.ParallelFor(
        spec_.outputs[0].num_elements(), kGrain / 16, [&](int64_t begin, int64_t end, int) {
          ForEachWords(index_, key, begin, end, args.microbatch,
                       [&](int64_t at, int64_t count, const uint32_t* words, int64_t skip) {
                         // Element i of the words is element i - skip of the piece.
                         for (int64_t i = skip / 2 * 2; i < skip + count; i += 2) {
                           const double u = (words[i] + 0.5) * 0x1p-32;
                           const double v = words[i + 1] * 0x1p-32;
                           const double radius = std::sqrt(-2.0 * std::log(u));
                           const double angle = 6.283185307179586476925 * v;
                           T* to = y + at + i - skip;
                           if (i >= skip) to[0] = static_cast<T>(radius * std::cos(angle));
                           if (i + 1 >= skip && i + 1 < skip + count) {
                             to[1] = static_cast<T>(radius * std::sin(angle));
                           }
                         }
                       });
        });
    return absl::OkStatus();
  }

 private:
  TileIndex index_;
};

}  // namespace

KernelDef RandomNormalKernel() { return {.create = CreateKernel<RandomNormalKernelOf, Floats>}; }

}  // namespace penstock::kernels
