#include <algorithm>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {
namespace {

// The rows of dy that go to each row of the table, sorted by it (a counting sort, which keeps their
// order), and summed. Threads share the columns, so that every sum has one order whatever ids
// repeat.
template <typename T>
class EmbeddingGrad : public CpuKernel {
 public:
  using CpuKernel::CpuKernel;

  absl::Status Run(const KernelArgs& args) override {
    const TileDesc& table = spec_.outputs[0];
    const int64_t rows = table.shape[0];
    const int64_t width = table.shape[1];
    const int64_t count = spec_.inputs[1].num_elements();
    const IndexReader ids(args.inputs[1], spec_.inputs[1].dtype);
    RETURN_IF_ERROR(CheckIndices(spec_.op, ids, count, GlobalExtent(table, 0)));
    // The sources of row r are order[ends[r - 1]] to order[ends[r] - 1], from order[0] on.
    int64_t* ends = static_cast<int64_t*>(args.workspace);
    int64_t* order = ends + rows + 1;
    Sort(ids, count, TileBegin(table, 0, args.microbatch), rows, ends, order);

    const T* dy = Input<T>(args, 0);
    T* y = Output<T>(args, 0);
    const bool adds = AddsToOutputs(args);
    pool_.ParallelFor(width, GrainRows(std::max(count, rows)),
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t first = begin; first < end; first += kMaxColumnPiece) {
                          const int64_t columns = std::min(kMaxColumnPiece, end - first);
                          for (int64_t row = 0; row < rows; ++row) {
                            const int64_t from = row > 0 ? ends[row - 1] : 0;
                            SumRow(dy + first, width, order + from, ends[row] - from, columns, adds,
                                   y + row * width + first);
                          }
                        }
                      });
    return absl::OkStatus();
  }

 private:
  static void Sort(const IndexReader& ids, int64_t count, int64_t first, int64_t rows,
                   int64_t* ends, int64_t* order) {
    std::fill(ends, ends + rows + 1, int64_t{0});
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = ids[i] - first;
      if (row >= 0 && row < rows) ++ends[row + 1];
    }
    for (int64_t row = 0; row < rows; ++row) ends[row + 1] += ends[row];
    // Now where a row's sources begin; each one moves its row's entry on, to the end at last.
    for (int64_t i = 0; i < count; ++i) {
      const int64_t row = ids[i] - first;
      if (row >= 0 && row < rows) order[ends[row]++] = i;
    }
  }

  // y = the sum of `count` rows of dy, plus y when `adds`, in `columns` columns.
  static void SumRow(const T* dy, int64_t width, const int64_t* sources, int64_t count,
                     int64_t columns, bool adds, T* y) {
    if (count == 0) {
      if (!adds) std::fill(y, y + columns, T{});
    } else if (count == 1) {
      const T* from = dy + sources[0] * width;
      if (adds) {
        Map(
            columns, [](auto sum, auto v) { return sum + v; }, y, y, from);
      } else {
        std::copy(from, from + columns, y);
      }
    } else if (count <= kFewRows) {
      SumFewRows(
          count, columns, [&](int64_t i) { return sources[i] * width; }, dy, adds, y);
    } else {
      alignas(kVecBytes) double sums[kMaxColumnPiece];
      std::fill(sums, sums + columns, 0.0);
      AddColumns(
          count, columns, [&](int64_t i) { return sources[i] * width; }, dy, sums);
      StoreOrAdd(columns, adds, sums, y);
    }
  }
};

size_t EmbeddingGradWorkspace(const KernelSpec& spec, int) {
  return (spec.outputs[0].shape[0] + 1 + spec.inputs[1].num_elements()) * sizeof(int64_t);
}

KernelOr CreateEmbeddingGrad(const KernelSpec& spec, Device& device, Stream& stream) {
  RETURN_IF_ERROR(CheckIndexDType(spec.op, spec.inputs[1].dtype));
  return CreateKernel<EmbeddingGrad, Floats>(spec, device, stream);
}

}  // namespace

KernelDef EmbeddingGradKernel() {
  return {.workspace_bytes = EmbeddingGradWorkspace,
          .create = CreateEmbeddingGrad,
          .supports_accumulate = true};
}

}  // namespace penstock::kernels
