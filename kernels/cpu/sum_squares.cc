#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {
namespace {

// Elements summed in the operand's type before the partial sum goes to double.
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
        partial[chunk] = SumChunk(x + first, std::min(kChunk, count - first));
      }
    });
    double sum = 0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) sum += partial[chunk];
    T* y = Output<T>(args, 0);
    *y = static_cast<T>(AddsToOutputs(args) ? *y + sum : sum);
    return absl::OkStatus();
  }

 private:
  static double SumChunk(const T* x, int64_t count) {
    Vec<T> sums[4] = {};
    int64_t i = 0;
    for (; i + 4 * kLanes<T> <= count; i += 4 * kLanes<T>) {
      for (int v = 0; v < 4; ++v) {
        const Vec<T> value = Load(x + i + v * kLanes<T>);
        sums[v] += value * value;
      }
    }
    for (; i < count; i += kLanes<T>) {
      const Vec<T> value = count - i >= kLanes<T> ? Load(x + i) : LoadPart(x + i, count - i);
      sums[0] += value * value;
    }
    return SumLanes((sums[0] + sums[1]) + (sums[2] + sums[3]));
  }
};

size_t WorkspaceBytes(const KernelSpec& spec, int) { return NumChunks(spec) * sizeof(double); }

}  // namespace

KernelDef SumSquaresKernel() {
  return {.workspace_bytes = WorkspaceBytes,
          .create = CreateKernel<SumSquares, Floats>,
          .supports_accumulate = true};
}

}  // namespace penstock::kernels
