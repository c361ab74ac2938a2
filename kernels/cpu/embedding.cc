#include <cstring>

#include "kernels/cpu/cpu_kernel.h"

namespace penstock::kernels {
namespace {

// Rows of the table; a row that another tile of a split table holds gives zeros, so that the parts
// add up.
template <typename T>
class Embedding : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const TileDesc& table = spec_.inputs[0];
    const int64_t rows = table.shape[0];
    const int64_t width = table.shape[1];
    const int64_t first = TileBegin(table, 0, args.microbatch);
    const int64_t count = spec_.inputs[1].num_elements();
    const IndexReader ids(args.inputs[1], spec_.inputs[1].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, ids, count, GlobalExtent(table, 0)));
    pool_.ParallelFor(count, GrainRows(width), [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = ids[i] - first;
        T* y = Output<T>(args, 0) + i * width;
        if (row >= 0 && row < rows) {
          std::memcpy(y, Input<T>(args, 0) + row * width, width * sizeof(T));
        } else {
          std::memset(y, 0, width * sizeof(T));
        }
      }
    });
    return absl::OkStatus();
  }
};

KernelOr CreateEmbedding(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateBySize<Embedding>(spec, device, stream);
}

}  // namespace

KernelDef EmbeddingKernel() { return {.create = CreateEmbedding}; }

}  // namespace penstock::kernels
