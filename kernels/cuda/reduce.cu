#include <type_traits>

#include "kernels/cuda/reduce.h"
#include "kernels/cuda/scalar_functions.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

constexpr int64_t kEnoughBlocks = 512;    // to keep the largest devices busy
constexpr int64_t kLeastRowPart = 4096;   // terms that are worth a block
constexpr int64_t kLeastColumnPart = 64;  // likewise, of columns side by side
constexpr int kColumns = 32;              // of a block
constexpr int kColumnThreads = 8;         // that share a column

// ---- Folds.

struct SumFold {
  template <typename T>
  __device__ static T Identity() {
    return T{0};
  }
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return AddFunction()(a, b);
  }
};

struct MaxFold {
  template <typename T>
  __device__ static T Identity() {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<Wrapping<T>>(1) << (8 * sizeof(T) - 1));
    } else {
      return -INFINITY;
    }
  }
  template <typename T>
  __device__ T operator()(T a, T b) const {
    return MaxFunction()(a, b);
  }
};

// ---- The terms: of an element, its result and its place among those folded into that.

template <typename T>
struct ElementTerm {
  const T* x;
  __device__ Compute<T> operator()(int64_t at, int64_t, int64_t) const { return Widen(x[at]); }
};
template <typename T>
struct ExpTerm {
  const T* x;
  const T* max;
  __device__ float operator()(int64_t at, int64_t result, int64_t) const {
    return expf(Widen(x[at]) - Widen(max[result]));
  }
};
template <typename T>
struct NormWeightTerm {
  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;
  __device__ float operator()(int64_t at, int64_t, int64_t row) const {
    const float centred = Widen(x[at]) - (mean != nullptr ? mean[row] : 0.0f);
    return Widen(dy[at]) * (centred * rstd[row]);
  }
};

__device__ int64_t OffsetOf(int rank, const int64_t* sizes, const int64_t* strides, int64_t index) {
  if (rank == 1) return index * strides[0];
  int64_t offset = 0;
  for (int i = rank - 1; i >= 0; --i) {
    offset += index % sizes[i] * strides[i];
    index /= sizes[i];
  }
  return offset;
}

// What a launch knows of its work.
struct ReduceWork {
  ReduceLoops loops;
  int64_t num_results = 0;
  int64_t num_reduced = 0;
  int64_t parts = 1;  // each writes its fold to y[part * num_results + result]
  ReduceResult result;
};

__device__ int64_t PartBegin(const ReduceWork& work, int64_t part) {
  return part * work.num_reduced / work.parts;
}

// R: T, or what is computed in T.
template <typename T, typename R>
__device__ void Store(const ReduceWork& work, int64_t result, T value, R* y) {
  if (work.parts > 1) {
    y[static_cast<int64_t>(blockIdx.y) * work.num_results + result] = Narrow<R>(value);
    return;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (work.result.divisor != 1) value /= work.result.divisor;
  }
  y[result] = Narrow<R>(work.result.adds ? AddFunction()(Widen(y[result]), value) : value);
}

// A block a result. T: what is computed in.
template <typename T, typename F, typename Term, typename R>
__global__ void __launch_bounds__(kMaxThreads) ReduceRowsKernel(ReduceWork work, Term term, R* y) {
  const ReduceLoops& loops = work.loops;
  const int64_t begin = PartBegin(work, blockIdx.y);
  const int64_t end = PartBegin(work, static_cast<int64_t>(blockIdx.y) + 1);
  for (int64_t result = blockIdx.x; result < work.num_results; result += gridDim.x) {
    const int64_t base = OffsetOf(loops.kept_rank, loops.kept_sizes, loops.kept_strides, result);
    T fold = F::template Identity<T>();
    for (int64_t i = begin + threadIdx.x; i < end; i += blockDim.x) {
      const int64_t at =
          base + OffsetOf(loops.reduced_rank, loops.reduced_sizes, loops.reduced_strides, i);
      fold = F()(fold, term(at, result, i));
    }
    fold = ReduceBlock(fold, F::template Identity<T>(), F());
    if (threadIdx.x == 0) Store(work, result, fold, y);
  }
}

// A block for kColumns results, which are neighbours; kColumnThreads threads share each.
template <typename T, typename F, typename Term, typename R>
__global__ void ReduceColumnsKernel(ReduceWork work, Term term, R* y) {
  __shared__ T folds[kColumnThreads][kColumns];
  const ReduceLoops& loops = work.loops;
  const int64_t begin = PartBegin(work, blockIdx.y);
  const int64_t end = PartBegin(work, static_cast<int64_t>(blockIdx.y) + 1);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kColumns;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kColumns; first < work.num_results;
       first += stride) {
    const int64_t result = first + threadIdx.x;
    T fold = F::template Identity<T>();
    if (result < work.num_results) {
      const int64_t base = OffsetOf(loops.kept_rank, loops.kept_sizes, loops.kept_strides, result);
      for (int64_t i = begin + threadIdx.y; i < end; i += kColumnThreads) {
        const int64_t at =
            base + OffsetOf(loops.reduced_rank, loops.reduced_sizes, loops.reduced_strides, i);
        fold = F()(fold, term(at, result, i));
      }
    }
    folds[threadIdx.y][threadIdx.x] = fold;
    __syncthreads();
    if (threadIdx.y == 0 && result < work.num_results) {
      for (int i = 1; i < kColumnThreads; ++i) fold = F()(fold, folds[i][threadIdx.x]);
      Store(work, result, fold, y);
    }
    __syncthreads();
  }
}

LaunchShape ShapeOf(const ReduceLoops& loops, int64_t parts) {
  const int64_t results = loops.num_results();
  LaunchShape shape;
  if (loops.has_rows()) {
    shape = ShapeForRows(results, CeilDiv(loops.num_reduced(), parts));
  } else {
    const int64_t blocks = CeilDiv(results, kColumns);
    shape = {.grid_x = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks),
             .threads_x = kColumns,
             .threads_y = kColumnThreads};
  }
  shape.grid_y = static_cast<unsigned>(parts);
  return shape;
}

template <typename T, typename F, typename Term, typename R>
LaunchResult FoldParts(StreamHandle stream, const ReduceLoops& loops, int64_t parts,
                       const ReduceResult& result, Term term, R* y) {
  const ReduceWork work = {loops, loops.num_results(), loops.num_reduced(), parts, result};
  const LaunchShape shape = ShapeOf(loops, parts);
  return loops.has_rows()
             ? Launch(&ReduceRowsKernel<T, F, Term, R>, shape, stream, work, term, y)
             : Launch(&ReduceColumnsKernel<T, F, Term, R>, shape, stream, work, term, y);
}

// In parts where that pays, which are folded then. T: what is computed in.
template <typename T, typename F, typename Term, typename R>
LaunchResult Fold(StreamHandle stream, const ReduceLoops& loops, const ReduceResult& result,
                  Term term, R* y, void* workspace) {
  const int64_t num_results = loops.num_results();
  if (num_results == 0) return 0;
  const int64_t parts = NumReduceParts(loops);
  if (parts == 1) return FoldParts<T, F>(stream, loops, 1, result, term, y);
  T* folds = static_cast<T*>(workspace);
  const LaunchResult launched = FoldParts<T, F>(stream, loops, parts, result, term, folds);
  if (launched != 0) return launched;
  ReduceLoops of_parts;
  of_parts.kept_rank = 1;
  of_parts.kept_sizes[0] = num_results;
  of_parts.kept_strides[0] = 1;
  of_parts.reduced_rank = 1;
  of_parts.reduced_sizes[0] = parts;
  of_parts.reduced_strides[0] = num_results;
  return FoldParts<T, F>(stream, of_parts, 1, result, ElementTerm<T>{folds}, y);
}

// See ScatterLaunch. The sums of a row have the order of the ids.
template <typename T, typename R>
__global__ void EmbeddingGradKernel(EmbeddingGradParams params, int rows_a_block, const T* dy,
                                    R* y) {
  __shared__ int row_of[kScatterThreads];  // of each id of a chunk, in the block, or -1
  __shared__ float sums[kMaxScatterRows][kScatterThreads];
  const int own = static_cast<int>(threadIdx.x);
  const int64_t column = static_cast<int64_t>(blockIdx.y) * blockDim.x + threadIdx.x;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * rows_a_block;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * rows_a_block; first < params.rows;
       first += stride) {
    for (int r = 0; r < rows_a_block; ++r) sums[r][own] = 0;
    for (int64_t begin = 0; begin < params.count; begin += blockDim.x) {
      const int64_t i = begin + own;
      int found = -1;
      if (i < params.count) {
        const int64_t id = LoadIndex(params.ids, i);
        const int64_t row = id - params.first - first;
        const bool is_valid = id >= 0 && id < params.limit;
        if (is_valid && row >= 0 && row < rows_a_block) found = static_cast<int>(row);
        if (first == 0 && blockIdx.y == 0) CheckIndex(params.site, id, params.limit);
      }
      row_of[own] = found;
      const bool has_found = __syncthreads_or(found >= 0 ? 1 : 0) != 0;
      if (has_found && column < params.width) {
        for (int j = 0; j < static_cast<int>(blockDim.x); ++j) {
          if (row_of[j] >= 0)
            sums[row_of[j]][own] += Widen(dy[(begin + j) * params.width + column]);
        }
      }
      __syncthreads();
    }
    if (column >= params.width) continue;
    for (int r = 0; r < rows_a_block && first + r < params.rows; ++r) {
      Put(params.adds, sums[r][own], y + (first + r) * params.width + column);
    }
  }
}

}  // namespace

int64_t NumReduceParts(const ReduceLoops& loops) {
  const int64_t results = loops.num_results();
  if (results == 0) return 1;
  const int64_t blocks = loops.has_rows() ? results : CeilDiv(results, kColumns);
  const int64_t least = loops.has_rows() ? kLeastRowPart : kLeastColumnPart;
  const int64_t wanted = kEnoughBlocks / blocks;
  const int64_t possible = loops.num_reduced() / least;
  const int64_t parts = wanted < possible ? wanted : possible;
  return parts < 1 ? 1 : parts;
}

size_t ReduceWorkspaceBytes(const ReduceLoops& loops, size_t element_bytes) {
  const int64_t parts = NumReduceParts(loops);
  return parts == 1 ? 0 : static_cast<size_t>(parts * loops.num_results()) * element_bytes;
}

template <typename T, typename R>
LaunchResult LaunchReduce(StreamHandle stream, FoldOp op, const ReduceLoops& loops,
                          const ReduceResult& result, const T* x, R* y, void* workspace) {
  if (op == FoldOp::kMax) {
    return Fold<Compute<T>, MaxFold>(stream, loops, result, ElementTerm<T>{x}, y, workspace);
  }
  return Fold<Compute<T>, SumFold>(stream, loops, result, ElementTerm<T>{x}, y, workspace);
}

template <typename T>
LaunchResult LaunchSumExp(StreamHandle stream, const ReduceLoops& loops, const ReduceResult& result,
                          const T* x, const T* max, float* y, void* workspace) {
  return Fold<float, SumFold>(stream, loops, result, ExpTerm<T>{x, max}, y, workspace);
}

template <typename T, typename R>
LaunchResult LaunchNormWeightGrad(StreamHandle stream, const ReduceLoops& loops,
                                  const ReduceResult& result, const T* dy, const T* x,
                                  const float* mean, const float* rstd, R* y, void* workspace) {
  return Fold<float, SumFold>(stream, loops, result, NormWeightTerm<T>{dy, x, mean, rstd}, y,
                              workspace);
}

template <typename T, typename R>
LaunchResult LaunchEmbeddingGrad(StreamHandle stream, const EmbeddingGradParams& params,
                                 const T* dy, R* y) {
  if (params.rows == 0 || params.width == 0) return 0;
  const ScatterLaunch launch = ScatterLaunchOf(1, params.rows, params.width);
  return Launch(&EmbeddingGradKernel<T, R>, launch.shape, stream, params, launch.rows, dy, y);
}

// ---- Instances.

template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const float*, float*, void*);
template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const BFloat16*, BFloat16*, void*);
template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const BFloat16*, float*, void*);
template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const Float16*, Float16*, void*);
template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const Float16*, float*, void*);
template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const int32_t*, int32_t*, void*);
template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const int64_t*, int64_t*, void*);

template LaunchResult LaunchSumExp(StreamHandle, const ReduceLoops&, const ReduceResult&,
                                   const float*, const float*, float*, void*);
template LaunchResult LaunchSumExp(StreamHandle, const ReduceLoops&, const ReduceResult&,
                                   const BFloat16*, const BFloat16*, float*, void*);
template LaunchResult LaunchSumExp(StreamHandle, const ReduceLoops&, const ReduceResult&,
                                   const Float16*, const Float16*, float*, void*);

template LaunchResult LaunchNormWeightGrad(StreamHandle, const ReduceLoops&, const ReduceResult&,
                                           const float*, const float*, const float*, const float*,
                                           float*, void*);
template LaunchResult LaunchNormWeightGrad(StreamHandle, const ReduceLoops&, const ReduceResult&,
                                           const BFloat16*, const BFloat16*, const float*,
                                           const float*, BFloat16*, void*);
template LaunchResult LaunchNormWeightGrad(StreamHandle, const ReduceLoops&, const ReduceResult&,
                                           const BFloat16*, const BFloat16*, const float*,
                                           const float*, float*, void*);
template LaunchResult LaunchNormWeightGrad(StreamHandle, const ReduceLoops&, const ReduceResult&,
                                           const Float16*, const Float16*, const float*,
                                           const float*, Float16*, void*);
template LaunchResult LaunchNormWeightGrad(StreamHandle, const ReduceLoops&, const ReduceResult&,
                                           const Float16*, const Float16*, const float*,
                                           const float*, float*, void*);

template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const float*,
                                          float*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const BFloat16*,
                                          BFloat16*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const BFloat16*,
                                          float*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const Float16*,
                                          Float16*);
template LaunchResult LaunchEmbeddingGrad(StreamHandle, const EmbeddingGradParams&, const Float16*,
                                          float*);

}  // namespace penstock::kernels::cuda
