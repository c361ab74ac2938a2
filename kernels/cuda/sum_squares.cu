#include "kernels/cuda/simt.h"
#include "kernels/cuda/sum_squares.h"

namespace penstock::kernels::cuda {
namespace {

// sums[part] = the sum of a part of the table. The order of additions does not depend on addresses:
// a thread adds up what has the same place in its packs, and then these sums.
template <typename T>
__global__ void SumPartsKernel(const __grid_constant__ SumSquaresTable table, float* sums) {
  constexpr int kPack = kPackOf<T>;
  const int num_parts = table.begins[table.num_entries];
  for (int part = static_cast<int>(blockIdx.x); part < num_parts;
       part += static_cast<int>(gridDim.x)) {
    const TableChunk found = FindChunk(table, part);
    const SumSquaresEntry& entry = table.entries[found.entry];
    const T* const x = static_cast<const T*>(entry.x);
    const int64_t begin = found.index * entry.part_size;
    const int64_t end =
        begin + entry.part_size < entry.count ? begin + entry.part_size : entry.count;
    const bool is_aligned = IsAligned<kPack>(x);
    Values<T, kPack> sum = {};
    const auto add = [&sum](const Values<T, kPack>& values) {
      for (int j = 0; j < kPack; ++j) sum.v[j] += values.v[j] * values.v[j];
    };
    const int64_t stride = static_cast<int64_t>(blockDim.x) * kPack;
    int64_t i = begin + threadIdx.x * kPack;
    if (is_aligned) {
      for (; i + kPack <= end; i += stride) add(LoadElements<true, kPack>(x + i, 1, kPack));
    }
    for (; i < end; i += stride) {
      const int64_t left = end - i;
      add(LoadElements<false, kPack>(x + i, 1, left < kPack ? static_cast<int>(left) : kPack));
    }
    float total = 0;
    for (int j = 0; j < kPack; ++j) total += sum.v[j];
    total = SumBlock(total);
    if (threadIdx.x == 0) sums[part] = total;
  }
}

// The results of the table, a block each.
template <typename T>
__global__ void AddPartsKernel(const __grid_constant__ SumSquaresTable table, const float* sums) {
  for (int at = static_cast<int>(blockIdx.x); at < table.num_entries;
       at += static_cast<int>(gridDim.x)) {
    float total = 0;
    for (int part = table.begins[at] + static_cast<int>(threadIdx.x); part < table.begins[at + 1];
         part += static_cast<int>(blockDim.x)) {
      total += sums[part];
    }
    total = SumBlock(total);
    if (threadIdx.x == 0) {
      Put(table.entries[at].adds, total, static_cast<T*>(table.entries[at].y));
    }
  }
}

}  // namespace

template <typename T>
LaunchResult LaunchSumSquares(StreamHandle stream, const SumSquaresTable& table, float* sums) {
  static_assert(sizeof(table) + sizeof(sums) <= kMaxParameterBytes);
  if (table.num_entries == 0) return 0;
  const LaunchResult launched =
      Launch(&SumPartsKernel<T>, ShapeForChunks(table, kMaxBlocks), stream, table, sums);
  if (launched != 0) return launched;
  return Launch(&AddPartsKernel<T>, ShapeForLoop(table.num_entries * kLoopThreads), stream, table,
                sums);
}

// ---- Instances.

template LaunchResult LaunchSumSquares<float>(StreamHandle, const SumSquaresTable&, float*);
template LaunchResult LaunchSumSquares<BFloat16>(StreamHandle, const SumSquaresTable&, float*);
template LaunchResult LaunchSumSquares<Float16>(StreamHandle, const SumSquaresTable&, float*);

}  // namespace penstock::kernels::cuda
