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

// Of the columns of a matrix.
constexpr int64_t kMatrixBlocks = kWaveBlocks;
constexpr int64_t kLeastMatrixPart = 128;  // rows that are worth a block
constexpr int kMatrixColumns = 64;         // of a block
constexpr int kMatrixThreads = static_cast<int>(kLoopThreads);

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

// ---- The terms of matrices: of a pack of neighbours in a row. Load is apart from the terms, so
// that a thread can have several loads under way.

template <typename T>
struct ElementsOfColumns {
  using Element = T;
  using Sum = Compute<T>;
  using Loaded = Values<T, kPackOf<T>>;
  static constexpr int kFolds = 1;
  static constexpr int kUnroll = 4;  // rows that a thread loads at a time

  const T* x;

  template <bool kPacks>
  __device__ Loaded Load(int64_t at, int64_t, int count) const {
    return LoadElements<kPacks, kPackOf<T>>(x + at, 1, count);
  }
  __device__ void Terms(const Loaded& loaded, int j, Sum (&terms)[1]) const {
    terms[0] = loaded.v[j];
  }
};

// dy (x - mean[row]) rstd[row] and, with kHasBias, dy.
template <bool kHasBias, typename T>
struct NormWeightsOfColumns {
  using Element = T;
  using Sum = float;
  struct Loaded {
    Values<T, kPackOf<T>> dy;
    Values<T, kPackOf<T>> x;
    float mean;
    float rstd;
  };
  static constexpr int kFolds = kHasBias ? 2 : 1;
  static constexpr int kUnroll = 2;

  const T* dy;
  const T* x;
  const float* mean;
  const float* rstd;

  template <bool kPacks>
  __device__ Loaded Load(int64_t at, int64_t row, int count) const {
    return {LoadElements<kPacks, kPackOf<T>>(dy + at, 1, count),
            LoadElements<kPacks, kPackOf<T>>(x + at, 1, count), mean != nullptr ? mean[row] : 0.0f,
            rstd[row]};
  }
  __device__ void Terms(const Loaded& loaded, int j, float (&terms)[kFolds]) const {
    terms[0] = loaded.dy.v[j] * ((loaded.x.v[j] - loaded.mean) * loaded.rstd);
    if constexpr (kHasBias) terms[1] = loaded.dy.v[j];
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
__device__ void Finish(const ReduceResult& result, T value, R* to) {
  if constexpr (std::is_floating_point_v<T>) {
    if (result.divisor != 1) value /= static_cast<T>(result.divisor);
  }
  *to = Narrow<R>(result.adds ? AddFunction()(Widen(*to), value) : value);
}
template <typename T, typename R>
__device__ void Store(const ReduceWork& work, int64_t result, T value, R* y) {
  if (work.parts > 1) {
    y[static_cast<int64_t>(blockIdx.y) * work.num_results + result] = Narrow<R>(value);
  } else {
    Finish(work.result, value, y + result);
  }
}

// A block a result. T: what is computed in.
template <typename T, typename F, typename Term, typename R>
__global__ void __launch_bounds__(kMaxThreads)
    ReduceRowsKernel(ReduceLoops loops, ReduceWork work, Term term, R* y) {
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
__global__ void ReduceColumnsKernel(ReduceLoops loops, ReduceWork work, Term term, R* y) {
  __shared__ T folds[kColumnThreads][kColumns];
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

// Folds the columns of a matrix [work.num_reduced, columns] into Term::kFolds results each, of
// which y has the first ones of all columns, then the second ones. A block works on kMatrixColumns
// of them: threads in x share a row, in packs, and threads in y the rows, whose folds they join in
// order.
template <bool kPacks, typename F, typename Term, typename To>
__global__ void __launch_bounds__(kMatrixThreads, kWaveBlocksPerProcessor)
    ReduceMatrixKernel(ReduceWork work, int64_t columns, Term term, To y) {
  using T = typename Term::Sum;
  constexpr int kChunk = kPackOf<typename Term::Element>;
  constexpr int kFolds = Term::kFolds;
  constexpr int kUnroll = Term::kUnroll;
  constexpr int kLanes = kMatrixThreads / (kMatrixColumns / kChunk);
  __shared__ T folds[kFolds][kLanes][kMatrixColumns];
  const int thread = static_cast<int>(threadIdx.y * blockDim.x + threadIdx.x);
  const int own = static_cast<int>(threadIdx.x) * kChunk;
  const int64_t begin = PartBegin(work, blockIdx.y);
  const int64_t end = PartBegin(work, static_cast<int64_t>(blockIdx.y) + 1);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kMatrixColumns;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kMatrixColumns; first < columns;
       first += stride) {
    const int64_t left = columns - first - own;
    const int count = left < 0 ? 0 : left < kChunk ? static_cast<int>(left) : kChunk;
    T fold[kFolds][kChunk];
    for (int f = 0; f < kFolds; ++f) {
      for (int j = 0; j < kChunk; ++j) fold[f][j] = F::template Identity<T>();
    }
    const auto load = [&](int64_t row) {
      return term.template Load<kPacks>(row * columns + first + own, row, count);
    };
    const auto add = [&](const typename Term::Loaded& loaded) {
      for (int j = 0; j < kChunk; ++j) {
        T terms[kFolds];
        term.Terms(loaded, j, terms);
        for (int f = 0; f < kFolds; ++f) fold[f][j] = F()(fold[f][j], terms[f]);
      }
    };
    if (count > 0) {
      int64_t row = begin + threadIdx.y;
      for (; row + (kUnroll - 1) * kLanes < end; row += kUnroll * kLanes) {
        typename Term::Loaded loaded[kUnroll];
        for (int k = 0; k < kUnroll; ++k) loaded[k] = load(row + k * kLanes);
        for (int k = 0; k < kUnroll; ++k) add(loaded[k]);
      }
      for (; row < end; row += kLanes) add(load(row));
    }
    for (int f = 0; f < kFolds; ++f) {
      for (int j = 0; j < kChunk; ++j) folds[f][threadIdx.y][own + j] = fold[f][j];
    }
    __syncthreads();
    for (int i = thread; i < kFolds * kMatrixColumns; i += kMatrixThreads) {
      const int f = i / kMatrixColumns;
      const int column = i % kMatrixColumns;
      if (first + column >= columns) continue;
      T value = folds[f][0][column];
      for (int lane = 1; lane < kLanes; ++lane) value = F()(value, folds[f][lane][column]);
      y.Store(work, f * columns + first + column, value);
    }
    __syncthreads();
  }
}

// Where the results of a matrix go: each part's to the workspace...
template <typename T>
struct PartResults {
  T* y;
  __device__ void Store(const ReduceWork& work, int64_t result, T value) const {
    y[static_cast<int64_t>(blockIdx.y) * work.num_results + result] = value;
  }
};
// ...or the sums of them to the outputs; `y[1]` has those from `size` on.
template <typename R>
struct ColumnResults {
  R* y[2];
  int64_t size;
  template <typename T>
  __device__ void Store(const ReduceWork& work, int64_t result, T value) const {
    const bool is_second = result >= size;
    Finish(work.result, value, is_second ? y[1] + (result - size) : y[0] + result);
  }
};

template <typename F, typename Term, typename To>
LaunchResult FoldMatrixParts(StreamHandle stream, const ReduceWork& work, int64_t columns,
                             bool has_packs, Term term, To y) {
  constexpr int kAcross = kMatrixColumns / kPackOf<typename Term::Element>;
  const int64_t blocks = CeilDiv(columns, kMatrixColumns);
  const LaunchShape shape = {
      .grid_x = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks),
      .grid_y = static_cast<unsigned>(work.parts),
      .threads_x = kAcross,
      .threads_y = kMatrixThreads / kAcross};
  return Launch(
      has_packs ? &ReduceMatrixKernel<true, F, Term, To> : &ReduceMatrixKernel<false, F, Term, To>,
      shape, stream, work, columns, term, y);
}

// has_packs: `columns` and the operands' addresses are multiples of a pack.
template <typename F, typename Term, typename R>
LaunchResult FoldMatrix(StreamHandle stream, int64_t rows, int64_t columns,
                        const ReduceResult& result, bool has_packs, Term term, R* y, R* second,
                        void* workspace) {
  using T = typename Term::Sum;
  if (columns == 0) return 0;
  const int64_t results = columns * Term::kFolds;
  const int64_t parts = NumMatrixParts(rows, columns);
  const ColumnResults<R> to = {{y, second}, columns};
  if (parts == 1) {
    return FoldMatrixParts<F>(stream, {results, rows, 1, result}, columns, has_packs, term, to);
  }
  T* folds = static_cast<T*>(workspace);
  const LaunchResult launched = FoldMatrixParts<F>(stream, {results, rows, parts, result}, columns,
                                                   has_packs, term, PartResults<T>{folds});
  if (launched != 0) return launched;
  return FoldMatrixParts<F>(stream, {results, parts, 1, result}, results,
                            results % kPackOf<T> == 0 && IsAligned<kPackOf<T>>(folds),
                            ElementsOfColumns<T>{folds}, to);
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
  const ReduceWork work = {loops.num_results(), loops.num_reduced(), parts, result};
  const LaunchShape shape = ShapeOf(loops, parts);
  return loops.has_rows()
             ? Launch(&ReduceRowsKernel<T, F, Term, R>, shape, stream, loops, work, term, y)
             : Launch(&ReduceColumnsKernel<T, F, Term, R>, shape, stream, loops, work, term, y);
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

}  // namespace

int64_t NumMatrixParts(int64_t rows, int64_t columns) {
  if (columns == 0) return 1;
  const int64_t wanted = kMatrixBlocks / CeilDiv(columns, kMatrixColumns);
  const int64_t possible = rows / kLeastMatrixPart;
  const int64_t parts = wanted < possible ? wanted : possible;
  return parts < 1 ? 1 : parts;
}

size_t NormWeightGradWorkspaceBytes(int64_t rows, int64_t columns, bool has_bias) {
  const int64_t parts = NumMatrixParts(rows, columns);
  return parts == 1 ? 0 : static_cast<size_t>(parts * columns * (has_bias ? 2 : 1)) * sizeof(float);
}

int64_t NumReduceParts(const ReduceLoops& loops) {
  const int64_t results = loops.num_results();
  if (results == 0) return 1;
  if (loops.is_matrix()) return NumMatrixParts(loops.num_reduced(), results);
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
  const auto fold = [&]<typename F>(F) {
    if (!loops.is_matrix()) {
      return Fold<Compute<T>, F>(stream, loops, result, ElementTerm<T>{x}, y, workspace);
    }
    const int64_t columns = loops.num_results();
    const bool has_packs = columns % kPackOf<T> == 0 && IsAligned<kPackOf<T>>(x);
    return FoldMatrix<F>(stream, loops.num_reduced(), columns, result, has_packs,
                         ElementsOfColumns<T>{x}, y, static_cast<R*>(nullptr), workspace);
  };
  return op == FoldOp::kMax ? fold(MaxFold()) : fold(SumFold());
}

template <typename T>
LaunchResult LaunchSumExp(StreamHandle stream, const ReduceLoops& loops, const ReduceResult& result,
                          const T* x, const T* max, float* y, void* workspace) {
  return Fold<float, SumFold>(stream, loops, result, ExpTerm<T>{x, max}, y, workspace);
}

template <typename T, typename R>
LaunchResult LaunchNormWeightGrad(StreamHandle stream, int64_t rows, int64_t columns,
                                  const ReduceResult& result, const T* dy, const T* x,
                                  const float* mean, const float* rstd, R* dscale, R* dbias,
                                  void* workspace) {
  const bool has_packs =
      columns % kPackOf<T> == 0 && IsAligned<kPackOf<T>>(dy) && IsAligned<kPackOf<T>>(x);
  const auto fold = [&](auto term) {
    return FoldMatrix<SumFold>(stream, rows, columns, result, has_packs, term, dscale, dbias,
                               workspace);
  };
  return dbias != nullptr ? fold(NormWeightsOfColumns<true, T>{dy, x, mean, rstd})
                          : fold(NormWeightsOfColumns<false, T>{dy, x, mean, rstd});
}

// ---- Instances.

template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const float*, float*, void*);
template LaunchResult LaunchReduce(StreamHandle, FoldOp, const ReduceLoops&, const ReduceResult&,
                                   const double*, double*, void*);
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

template LaunchResult LaunchNormWeightGrad(StreamHandle, int64_t, int64_t, const ReduceResult&,
                                           const float*, const float*, const float*, const float*,
                                           float*, float*, void*);
template LaunchResult LaunchNormWeightGrad(StreamHandle, int64_t, int64_t, const ReduceResult&,
                                           const BFloat16*, const BFloat16*, const float*,
                                           const float*, BFloat16*, BFloat16*, void*);
template LaunchResult LaunchNormWeightGrad(StreamHandle, int64_t, int64_t, const ReduceResult&,
                                           const BFloat16*, const BFloat16*, const float*,
                                           const float*, float*, float*, void*);
template LaunchResult LaunchNormWeightGrad(StreamHandle, int64_t, int64_t, const ReduceResult&,
                                           const Float16*, const Float16*, const float*,
                                           const float*, Float16*, Float16*, void*);
template LaunchResult LaunchNormWeightGrad(StreamHandle, int64_t, int64_t, const ReduceResult&,
                                           const Float16*, const Float16*, const float*,
                                           const float*, float*, float*, void*);

}  // namespace penstock::kernels::cuda
