#include "kernels/cpu/random_words.h"

namespace penstock::kernels {
namespace {

template <typename T>
class RandomUniformKernelOf : public CpuKernel {
 public:
  RandomUniformKernelOf(const KernelSpec& spec, Device& device)
      : CpuKernel(spec, device), index_(spec.outputs[0]) {}

  absl::Status Run(const KernelArgs& args) override {
    T* y = Output<T>(args, 0);
    const RandomKey key = KeyOf(spec_, args);
    pool_.ParallelFor(
        spec_.outputs[0].num_elements(), kGrain, [&](int64_t begin, int64_t end, int) {
          ForEachWords(index_, key, begin, end, args.microbatch,
                       [&](int64_t at, int64_t count, const uint32_t* words, int64_t skip) {
                         for (int64_t i = 0; i < count; ++i) {
                           y[at + i] = WordToUniform(words[skip + i]);
                         }
                       });
        });
    return absl::OkStatus();
  }

 private:
  TileIndex index_;
};

}  // namespace

KernelDef RandomUniformKernel() { return {.create = CreateKernel<RandomUniformKernelOf, Floats>}; }

}  // namespace penstock::kernels
