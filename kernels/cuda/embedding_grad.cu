#include "kernels/cuda/embedding_grad.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

constexpr int kSortThreads = 256;
constexpr int kIdsAThread = 4;    // that are under way at once
constexpr int kSumThreads = 256;  // most
constexpr int kSumRows = 4;       // most, of a block
constexpr int kSumBatch = 4;      // addends that a thread loads at a time

static_assert(kIdsAThread * kSortThreads / kWarp <= kWarp);  // a lane for each mask

// What the passes share, in the workspace.
struct SortedIds {
  EmbeddingParts parts;
  int64_t* counts = nullptr;   // of each part
  int64_t* begins = nullptr;   // likewise, among the entries
  int64_t* entries = nullptr;  // (i << shift) + the row in the part, in ascending order of i
};

// rows[k] = the row in a part of the id at i + k * step, or -1 if the part does not have it.
__device__ inline void FindRows(const EmbeddingGradParams& params, const EmbeddingParts& parts,
                                int64_t part, int64_t i, int64_t step, int (&rows)[kIdsAThread]) {
  int64_t ids[kIdsAThread];
  LoadIndices(params.ids, i, step, params.count, ids);
  const int64_t begin = part << parts.shift;
  const int64_t in_part = int64_t{1} << parts.shift;
  const int64_t own = params.rows - begin < in_part ? params.rows - begin : in_part;
  for (int k = 0; k < kIdsAThread; ++k) {
    rows[k] = -1;
    if (i + k * step >= params.count) continue;
    if (part == 0) CheckIndex(params.site, ids[k], params.limit);
    const int64_t row = ids[k] - params.first - begin;
    if (row >= 0 && row < own) rows[k] = static_cast<int>(row);
  }
}

// A block for each part.
__global__ void __launch_bounds__(kSortThreads)
    CountIdsKernel(EmbeddingGradParams params, SortedIds sorted) {
  const int64_t chunk = kIdsAThread * static_cast<int64_t>(blockDim.x);
  for (int64_t part = blockIdx.x; part < sorted.parts.parts; part += gridDim.x) {
    int64_t found = 0;
    for (int64_t i = threadIdx.x; i < params.count; i += chunk) {
      int rows[kIdsAThread];
      FindRows(params, sorted.parts, part, i, blockDim.x, rows);
      for (int k = 0; k < kIdsAThread; ++k) found += rows[k] >= 0 ? 1 : 0;
    }
    found = SumBlock(found);
    if (threadIdx.x == 0) sorted.counts[part] = found;
  }
}

// A block for each part.
__global__ void __launch_bounds__(kSortThreads)
    SortIdsKernel(EmbeddingGradParams params, SortedIds sorted) {
  // Two: a chunk's masks are written while slower warps read those before.
  __shared__ unsigned masks[2][kWarp];
  const int own = static_cast<int>(threadIdx.x);
  const int threads = static_cast<int>(blockDim.x);
  const int lane = own % kWarp;
  const int num_warps = threads / kWarp;
  for (int64_t part = blockIdx.x; part < sorted.parts.parts; part += gridDim.x) {
    int64_t at = 0;
    for (int64_t p = own; p < part; p += threads) at += sorted.counts[p];
    at = SumBlock(at);
    if (own == 0) sorted.begins[part] = at;
    int side = 0;
    for (int64_t begin = 0; begin < params.count; begin += kIdsAThread * threads, side = 1 - side) {
      int rows[kIdsAThread];
      FindRows(params, sorted.parts, part, begin + own, threads, rows);
      for (int k = 0; k < kIdsAThread; ++k) {
        const unsigned mask = __ballot_sync(0xffffffffu, rows[k] >= 0 ? 1 : 0);
        if (lane == 0) masks[side][k * num_warps + own / kWarp] = mask;
      }
      __syncthreads();
      const int words = kIdsAThread * num_warps;
      const int of_word = lane < words ? __popc(masks[side][lane]) : 0;
      const int found = ReduceWarp(of_word, SumOp());
      for (int k = 0; found != 0 && k < kIdsAThread; ++k) {
        if (rows[k] < 0) continue;
        const int word = k * num_warps + own / kWarp;
        int before = __popc(masks[side][word] & ((1u << lane) - 1));
        for (int w = 0; w < word; ++w) before += __popc(masks[side][w]);
        const int64_t i = begin + own + static_cast<int64_t>(k) * threads;
        sorted.entries[at + before] = (i << sorted.parts.shift) + rows[k];
      }
      at += found;
    }
    __syncthreads();  // the next part begins with the first side
  }
}

// A block has some rows of a part and kPerThread columns a thread: with kPacks one pack, otherwise
// columns that are a block apart. Its warps read the part's entries by themselves.
template <bool kPacks, int kPerThread, typename T, typename R>
__global__ void __launch_bounds__(kSumThreads)
    SumEmbeddingsKernel(EmbeddingGradParams params, SortedIds sorted, const T* dy, R* y) {
  const int own = static_cast<int>(threadIdx.x);
  const int lane = own % kWarp;
  const int64_t step = kPacks ? 1 : static_cast<int64_t>(blockDim.x);
  const int64_t column = static_cast<int64_t>(blockIdx.y) * blockDim.x * kPerThread +
                         static_cast<int64_t>(own) * (kPacks ? kPerThread : 1);
  const int64_t left = column < params.width ? (params.width - column + step - 1) / step : 0;
  const int count = static_cast<int>(left < kPerThread ? left : kPerThread);
  const int shift = sorted.parts.shift;
  const int64_t in_part = int64_t{1} << shift;
  const int rows_a_block = static_cast<int>(in_part < kSumRows ? in_part : kSumRows);
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_a_block; first < params.rows;
       first += static_cast<int64_t>(gridDim.x) * rows_a_block) {
    const int64_t part = first >> shift;
    const int64_t begin = sorted.begins[part];
    const int64_t end = begin + sorted.counts[part];
    for (int64_t row = first; row < first + rows_a_block && row < params.rows; ++row) {
      Values<R, kPerThread> sums = {};
      bool has_sum = false;
      for (int64_t at = begin; at < end; at += kWarp) {
        const bool is_own =
            at + lane < end && (sorted.entries[at + lane] & (in_part - 1)) == (row & (in_part - 1));
        unsigned mask = __ballot_sync(0xffffffffu, is_own ? 1 : 0);
        has_sum = has_sum || mask != 0;
        if (count == 0) continue;
        while (mask != 0) {
          Values<T, kPerThread> addends[kSumBatch];
          int loaded = 0;
          for (; loaded < kSumBatch && mask != 0; ++loaded, mask &= mask - 1) {
            const int bit = __ffs(static_cast<int>(mask)) - 1;
            const int64_t i = sorted.entries[at + bit] >> shift;
            addends[loaded] =
                LoadElements<kPacks, kPerThread>(dy + i * params.width + column, step, count);
          }
          for (int k = 0; k < loaded; ++k) {
            for (int j = 0; j < kPerThread; ++j) sums.v[j] += addends[k].v[j];
          }
        }
      }
      if (count == 0 || (params.adds && !has_sum)) continue;
      R* const to = y + row * params.width + column;
      if (params.adds) {
        const Values<R, kPerThread> old =
            LoadElements<kPacks, kPerThread>(static_cast<const R*>(to), step, count);
        for (int j = 0; j < kPerThread; ++j) sums.v[j] += old.v[j];
      }
      StoreElements<kPacks, kPerThread>(sums, step, count, to);
    }
  }
}

LaunchShape SumShape(const EmbeddingGradParams& params, const EmbeddingParts& parts, int columns) {
  const int64_t rows_a_block =
      (int64_t{1} << parts.shift) < kSumRows ? (int64_t{1} << parts.shift) : kSumRows;
  LaunchShape shape;
  shape.threads_x = kWarp;
  while (shape.threads_x < kSumThreads &&
         static_cast<int64_t>(shape.threads_x) * columns < params.width) {
    shape.threads_x *= 2;
  }
  const int64_t blocks = CeilDiv(params.rows, rows_a_block);
  const int64_t column_blocks =
      CeilDiv(params.width, static_cast<int64_t>(shape.threads_x) * columns);
  shape.grid_x = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks);
  shape.grid_y = static_cast<unsigned>(column_blocks > 0xffffffff ? 0 : column_blocks);
  return shape;
}

}  // namespace

size_t EmbeddingGradWorkspaceBytes(int64_t rows, int64_t count) {
  return static_cast<size_t>(2 * EmbeddingPartsOf(rows).parts + count) * sizeof(int64_t);
}

template <typename T, typename R>
LaunchResult LaunchEmbeddingGrad(StreamHandle stream, const EmbeddingGradParams& params,
                                 const T* dy, R* y, void* workspace) {
  if (params.rows == 0 || params.width == 0) return 0;
  SortedIds sorted;
  sorted.parts = EmbeddingPartsOf(params.rows);
  sorted.counts = static_cast<int64_t*>(workspace);
  sorted.begins = sorted.counts + sorted.parts.parts;
  sorted.entries = sorted.begins + sorted.parts.parts;
  const LaunchShape sort = {.grid_x = static_cast<unsigned>(
                                sorted.parts.parts < kMaxBlocks ? sorted.parts.parts : kMaxBlocks),
                            .threads_x = kSortThreads};
  LaunchResult result = Launch(&CountIdsKernel, sort, stream, params, sorted);
  if (result != 0) return result;
  result = Launch(&SortIdsKernel, sort, stream, params, sorted);
  if (result != 0) return result;
  constexpr int kPerThread = kPackOf<T>;
  const LaunchShape sum = SumShape(params, sorted.parts, kPerThread);
  const bool has_packs =
      params.width % kPerThread == 0 && IsAligned<kPerThread>(dy) && IsAligned<kPerThread>(y);
  return has_packs ? Launch(&SumEmbeddingsKernel<true, kPerThread, T, R>, sum, stream, params,
                            sorted, dy, y)
                   : Launch(&SumEmbeddingsKernel<false, kPerThread, T, R>, sum, stream, params,
                            sorted, dy, y);
}

// ---- Instances.

template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const float*,
                                          float*, void*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const double*,
                                          double*, void*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const BFloat16*,
                                          BFloat16*, void*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const BFloat16*,
                                          float*, void*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const Float16*,
                                          Float16*, void*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const Float16*,
                                          float*, void*);

}  // namespace penstock::kernels::cuda
