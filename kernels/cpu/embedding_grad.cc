#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/elementwise.h"

namespace penstock::kernels {
namespace {

// Adds each row of dy to its id's row, in order. Threads share the columns, so that every sum has
// one order whatever ids repeat.
template <typename T>
class EmbeddingGrad : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const TileDesc& table = spec_.outputs[0];
    const int64_t rows = table.shape[0];
    const int64_t width = table.shape[1];
    const int64_t first = TileBegin(table, 0, args.microbatch);
    const int64_t count = spec_.inputs[1].num_elements();
    const IndexReader ids(args.inputs[1], spec_.inputs[1].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, ids, count, GlobalExtent(table, 0)));
    const T* dy = Input<T>(args, 0);
    T* y = Output<T>(args, 0);
    const bool adds = AddsToOutputs(args);
    pool_.ParallelFor(width, GrainRows(std::max(count, rows)),
                      [&](int64_t begin, int64_t end, int) {
                        if (!adds) {
                          for (int64_t row = 0; row < rows; ++row) {
                            std::fill(y + row * width + begin, y + row * width + end, T{});
                          }
                        }
                        for (int64_t i = 0; i < count; ++i) {
                          const int64_t row = ids[i] - first;
                          if (row < 0 || row >= rows) continue;
                          T* to = y + row * width + begin;
                          Map(
                              end - begin, [](auto sum, auto v) { return sum + v; }, to, to,
                              dy + i * width + begin);
                        }
                      });
    return absl::OkStatus();
  }
};

KernelOr Create(const KernelSpec& spec, Device& device) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateKernel<EmbeddingGrad, Floats>(spec, device);
}

}  // namespace

KernelDef EmbeddingGradKernel() { return {.create = Create, .supports_accumulate = true}; }

}  // namespace penstock::kernels
