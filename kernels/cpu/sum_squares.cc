#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// Elements that one thread sums up.
constexpr int64_t kChunk = 4096;

int64_t NumChunks(const KernelSpec& spec) {
  return (spec.inputs[0].num_elements() + kChunk - 1) / kChunk;
}

// Partial sums of fixed chunks, added up in order: the same bits for any number of threads.
template <typename T>
class SumSquares : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    const int64_t count = spec_.inputs[0].num_elements();
    const int64_t chunks = NumChunks(spec_);
    double* partial = static_cast<double*>(args.workspace);
    pool_.ParallelFor(chunks, kGrain / kChunk, [&](int64_t begin, int64_t end, int) {
      for (int64_t chunk = begin; chunk < end; ++chunk) {
        const int64_t first = chunk * kChunk;
        partial[chunk] = SumOf<T>(
            std::min(kChunk, count - first), [](auto v) { return v * v; }, x + first);
      }
    });
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk];
    T* y = Output<T>(args, 0);
    *y = static_cast<T>(AddsToOutputs(args) ? *y + sum : sum);
    return absl::OkStatus();
  }
};

size_t SumSquaresWorkspace(const KernelSpec& spec, int) { return NumChunks(spec) * sizeof(double); }

}  // namespace

KernelDef SumSquaresKernel() {
  return {.workspace_bytes = SumSquaresWorkspace,
          .create = CreateKernel<SumSquares, Floats>,
          .supports_accumulate = true};
}

}  // namespace penstock::kernels
