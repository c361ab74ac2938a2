#include <cfloat>
#include <type_traits>

#include "kernels/cuda/rows.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

// Most threads of a block that works on a row of logits. A processor has several such blocks, so
// that some of them load while others wait at a barrier.
constexpr int kEntropyThreads = 256;

// 0 for the maximum of a row whose softmax exists; NaN, as the softmax, when an element is NaN or
// infinity or all are -infinity.
__device__ float NanUnlessFinite(float max) { return max - max; }

// A row of `size` elements that are `step` apart, in chunks of kPackOf<T>: a thread has every
// blockDim.x-th of them. With kPacks a chunk is a pack; see LoadElements.
template <bool kPacks, typename T>
struct Row {
  static constexpr int kChunk = kPackOf<T>;
  using Chunk = Values<T, kChunk>;

  int64_t size;
  int64_t step;

  // body(i, count): of the chunk [i, i + count).
  template <typename F>
  __device__ void ForChunks(const F& body) const {
    for (int64_t i = static_cast<int64_t>(threadIdx.x) * kChunk; i < size;
         i += static_cast<int64_t>(blockDim.x) * kChunk) {
      if constexpr (kPacks) {
        body(i, kChunk);
      } else {
        body(i, size - i < kChunk ? static_cast<int>(size - i) : kChunk);
      }
    }
  }
  __device__ Chunk Load(const T* row, int64_t i, int count) const {
    return LoadElements<kPacks, kChunk>(row + Offset(i), step, count);
  }
  __device__ void Store(const Chunk& chunk, int64_t i, int count, T* row) const {
    StoreElements<kPacks, kChunk, T>(chunk, step, count, row + Offset(i));
  }
  __device__ int64_t Offset(int64_t i) const { return kPacks ? i : i * step; }
};

// Where a row begins in [outer, size, inner].
__device__ int64_t RowBegin(const RowShape& shape, int64_t row) {
  return row / shape.inner * shape.size * shape.inner + row % shape.inner;
}

template <bool kPacks, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    SoftmaxKernel(RowShape shape, int64_t count, const T* x, T* y) {
  const Row<kPacks, T> row = {shape.size, shape.inner};
  using Chunk = typename Row<kPacks, T>::Chunk;
  for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
    const T* from = x + RowBegin(shape, at);
    T* to = y + RowBegin(shape, at);
    float max = -INFINITY;
    row.ForChunks([&](int64_t i, int size) {
      const Chunk in = row.Load(from, i, size);
      for (int j = 0; j < size; ++j) max = MaxOp()(max, in.v[j]);
    });
    max = MaxBlock(max);
    float sum = 0;
    row.ForChunks([&](int64_t i, int size) {
      const Chunk in = row.Load(from, i, size);
      for (int j = 0; j < size; ++j) sum += expf(in.v[j] - max);
    });
    const float scale = 1 / (SumBlock(sum) + NanUnlessFinite(max));
    row.ForChunks([&](int64_t i, int size) {
      Chunk chunk = row.Load(from, i, size);
      for (int j = 0; j < size; ++j) chunk.v[j] = expf(chunk.v[j] - max) * scale;
      row.Store(chunk, i, size, to);
    });
  }
}

template <bool kPacks, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    SoftmaxGradKernel(RowShape shape, int64_t count, const T* y, const T* dy, T* dx) {
  const Row<kPacks, T> row = {shape.size, shape.inner};
  using Chunk = typename Row<kPacks, T>::Chunk;
  for (int64_t at = blockIdx.x; at < count; at += gridDim.x) {
    const int64_t begin = RowBegin(shape, at);
    float dot = 0;
    row.ForChunks([&](int64_t i, int size) {
      const Chunk weight = row.Load(y + begin, i, size);
      const Chunk gradient = row.Load(dy + begin, i, size);
      for (int j = 0; j < size; ++j) dot += weight.v[j] * gradient.v[j];
    });
    dot = SumBlock(dot);
    row.ForChunks([&](int64_t i, int size) {
      const Chunk weight = row.Load(y + begin, i, size);
      Chunk gradient = row.Load(dy + begin, i, size);
      for (int j = 0; j < size; ++j) gradient.v[j] = weight.v[j] * (gradient.v[j] - dot);
      row.Store(gradient, i, size, dx + begin);
    });
  }
}

// Two passes over a row that the first one has brought into the cache: no cancellation.
template <bool kPacks, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    LayerNormKernel(NormParams params, const T* x, const T* scale, const T* bias, T* y,
                    float* means, float* rstds) {
  const Row<kPacks, T> row = {params.size, 1};
  using Chunk = typename Row<kPacks, T>::Chunk;
  for (int64_t at = blockIdx.x; at < params.rows; at += gridDim.x) {
    const T* from = x + at * params.size;
    T* to = y + at * params.size;
    float sum = 0;
    row.ForChunks([&](int64_t i, int size) {
      const Chunk in = row.Load(from, i, size);
      for (int j = 0; j < size; ++j) sum += in.v[j];
    });
    const float mean = SumBlock(sum) / static_cast<float>(params.size);
    float squares = 0;
    row.ForChunks([&](int64_t i, int size) {
      const Chunk in = row.Load(from, i, size);
      for (int j = 0; j < size; ++j) squares += (in.v[j] - mean) * (in.v[j] - mean);
    });
    const float variance = SumBlock(squares) / static_cast<float>(params.size);
    const float rstd = 1 / sqrtf(variance + params.epsilon);
    row.ForChunks([&](int64_t i, int size) {
      Chunk chunk = row.Load(from, i, size);
      const Chunk factor = row.Load(scale, i, size);
      const Chunk offset = row.Load(bias, i, size);
      for (int j = 0; j < size; ++j) {
        chunk.v[j] = (chunk.v[j] - mean) * rstd * factor.v[j] + offset.v[j];
      }
      row.Store(chunk, i, size, to);
    });
    if (threadIdx.x == 0) {
      if (means != nullptr) means[at] = mean;
      if (rstds != nullptr) rstds[at] = rstd;
    }
  }
}

// A row of at most kWarpRowSize elements, in packs, in the registers of a warp: lane l has every
// kWarp-th pack from l on. So a norm reads a row once, and needs no barriers of the block.
constexpr int64_t kWarpRowSize = 1024;
constexpr int kWarpRowThreads = 128;  // of a block

template <typename T, int kPacksALane>
struct WarpRow {
  static constexpr int kChunk = kPackOf<T>;

  Pack<T, kChunk> packs[kPacksALane];

  // body(p, i): of the p-th pack of the lane, whose elements begin at i.
  template <typename F>
  __device__ static void ForPacks(int size, const F& body) {
    const int lane = static_cast<int>(threadIdx.x) % kWarp;
#pragma unroll
    for (int p = 0; p < kPacksALane; ++p) {
      const int i = (p * kWarp + lane) * kChunk;
      if (i < size) body(p, i);
    }
  }
  __device__ void Load(const T* row, int size) {
    ForPacks(size,
             [&](int p, int i) { packs[p] = *reinterpret_cast<const Pack<T, kChunk>*>(row + i); });
  }
  __device__ Values<T, kChunk> Widened(int p) const {
    Values<T, kChunk> values;
    for (int j = 0; j < kChunk; ++j) values.v[j] = Widen(packs[p].v[j]);
    return values;
  }
};

// As LayerNormKernel.
template <typename T, int kPacksALane>
__global__ void __launch_bounds__(kWarpRowThreads)
    LayerNormWarpKernel(NormParams params, const T* x, const T* scale, const T* bias, T* y,
                        float* means, float* rstds) {
  using Row = WarpRow<T, kPacksALane>;
  constexpr int kChunk = Row::kChunk;
  const int size = static_cast<int>(params.size);
  const int64_t step = ThreadCount() / kWarp;
  for (int64_t at = ThreadIndex() / kWarp; at < params.rows; at += step) {
    Row in;
    in.Load(x + at * params.size, size);
    float sum = 0;
    Row::ForPacks(size, [&](int p, int) {
      const Values<T, kChunk> values = in.Widened(p);
      for (int j = 0; j < kChunk; ++j) sum += values.v[j];
    });
    const float mean = ReduceWarp(sum, SumOp()) / static_cast<float>(size);
    float squares = 0;
    Row::ForPacks(size, [&](int p, int) {
      const Values<T, kChunk> values = in.Widened(p);
      for (int j = 0; j < kChunk; ++j) squares += (values.v[j] - mean) * (values.v[j] - mean);
    });
    const float variance = ReduceWarp(squares, SumOp()) / static_cast<float>(size);
    const float rstd = 1 / sqrtf(variance + params.epsilon);
    Row::ForPacks(size, [&](int p, int i) {
      Values<T, kChunk> values = in.Widened(p);
      const Values<T, kChunk> factor = LoadElements<true, kChunk>(scale + i, 1, kChunk);
      const Values<T, kChunk> offset = LoadElements<true, kChunk>(bias + i, 1, kChunk);
      for (int j = 0; j < kChunk; ++j) {
        values.v[j] = (values.v[j] - mean) * rstd * factor.v[j] + offset.v[j];
      }
      StoreElements<true, kChunk>(values, 1, kChunk, y + at * params.size + i);
    });
    if (threadIdx.x % kWarp == 0) {
      if (means != nullptr) means[at] = mean;
      if (rstds != nullptr) rstds[at] = rstd;
    }
  }
}

// As NormGradKernel.
template <bool kAdds, typename T, int kPacksALane>
__global__ void __launch_bounds__(kWarpRowThreads)
    NormGradWarpKernel(NormParams params, const T* dy, const T* x, const T* scale,
                       const float* means, const float* rstds, const T* r, T* dx) {
  using Row = WarpRow<T, kPacksALane>;
  constexpr int kChunk = Row::kChunk;
  const int size = static_cast<int>(params.size);
  const float share = 1 / static_cast<float>(size);
  const int64_t step = ThreadCount() / kWarp;
  Row factors;
  factors.Load(scale, size);
  for (int64_t at = ThreadIndex() / kWarp; at < params.rows; at += step) {
    Row gradients;
    Row in;
    gradients.Load(dy + at * params.size, size);
    in.Load(x + at * params.size, size);
    // Not behind the sums over the warp, where the row would wait for it.
    [[maybe_unused]] Row addends;
    if constexpr (kAdds) addends.Load(r + at * params.size, size);
    const float mean = means != nullptr ? means[at] : 0.0f;
    const float rstd = rstds[at];
    float sum_g = 0;
    float sum_gh = 0;
    // body(g, h) of each element of a pack.
    const auto each = [&](int p, const auto& body) {
      Values<T, kChunk> gradient = gradients.Widened(p);
      const Values<T, kChunk> factor = factors.Widened(p);
      const Values<T, kChunk> from = in.Widened(p);
      for (int j = 0; j < kChunk; ++j) {
        gradient.v[j] = body(gradient.v[j] * factor.v[j], (from.v[j] - mean) * rstd);
      }
      return gradient;
    };
    Row::ForPacks(size, [&](int p, int) {
      each(p, [&](float g, float h) {
        sum_g += g;
        sum_gh += g * h;
        return g;
      });
    });
    const float mean_gh = ReduceWarp(sum_gh, SumOp()) * share;
    const float mean_g = means != nullptr ? ReduceWarp(sum_g, SumOp()) * share : 0.0f;
    Row::ForPacks(size, [&](int p, int i) {
      Values<T, kChunk> result =
          each(p, [&](float g, float h) { return rstd * (g - mean_g - h * mean_gh); });
      if constexpr (kAdds) {
        const Values<T, kChunk> addend = addends.Widened(p);
        for (int j = 0; j < kChunk; ++j) result.v[j] += addend.v[j];
      }
      StoreElements<true, kChunk>(result, 1, kChunk, dx + at * params.size + i);
    });
  }
}

template <bool kPacks, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    RmsNormKernel(NormParams params, const T* x, const T* scale, T* y, float* rstds) {
  const Row<kPacks, T> row = {params.size, 1};
  using Chunk = typename Row<kPacks, T>::Chunk;
  for (int64_t at = blockIdx.x; at < params.rows; at += gridDim.x) {
    const T* from = x + at * params.size;
    T* to = y + at * params.size;
    float squares = 0;
    row.ForChunks([&](int64_t i, int size) {
      const Chunk in = row.Load(from, i, size);
      for (int j = 0; j < size; ++j) squares += in.v[j] * in.v[j];
    });
    const float square = SumBlock(squares) / static_cast<float>(params.size);
    const float rstd = 1 / sqrtf(square + params.epsilon);
    row.ForChunks([&](int64_t i, int size) {
      Chunk chunk = row.Load(from, i, size);
      const Chunk factor = row.Load(scale, i, size);
      for (int j = 0; j < size; ++j) chunk.v[j] = chunk.v[j] * rstd * factor.v[j];
      row.Store(chunk, i, size, to);
    });
    if (threadIdx.x == 0 && rstds != nullptr) rstds[at] = rstd;
  }
}

// With h = (x - mean) rstd and g = dy scale: dx = rstd (g - mean(g) - h mean(g h)) + r; RMS norm
// has no mean to subtract.
template <bool kPacks, bool kAdds, typename T>
__global__ void __launch_bounds__(kMaxThreads)
    NormGradKernel(NormParams params, const T* dy, const T* x, const T* scale, const float* means,
                   const float* rstds, const T* r, T* dx) {
  const Row<kPacks, T> row = {params.size, 1};
  using Chunk = typename Row<kPacks, T>::Chunk;
  for (int64_t at = blockIdx.x; at < params.rows; at += gridDim.x) {
    const int64_t begin = at * params.size;
    const float mean = means != nullptr ? means[at] : 0.0f;
    const float rstd = rstds[at];
    float sum_g = 0;
    float sum_gh = 0;
    row.ForChunks([&](int64_t i, int size) {
      const Chunk gradient = row.Load(dy + begin, i, size);
      const Chunk factor = row.Load(scale, i, size);
      const Chunk in = row.Load(x + begin, i, size);
      for (int j = 0; j < size; ++j) {
        const float g = gradient.v[j] * factor.v[j];
        sum_g += g;
        sum_gh += g * ((in.v[j] - mean) * rstd);
      }
    });
    const float share = 1 / static_cast<float>(params.size);
    const float mean_gh = SumBlock(sum_gh) * share;
    const float mean_g = means != nullptr ? SumBlock(sum_g) * share : 0.0f;
    row.ForChunks([&](int64_t i, int size) {
      Chunk gradient = row.Load(dy + begin, i, size);
      const Chunk factor = row.Load(scale, i, size);
      const Chunk in = row.Load(x + begin, i, size);
      for (int j = 0; j < size; ++j) {
        const float g = gradient.v[j] * factor.v[j];
        const float h = (in.v[j] - mean) * rstd;
        gradient.v[j] = rstd * (g - mean_g - h * mean_gh);
      }
      if constexpr (kAdds) {
        const Chunk addend = row.Load(r + begin, i, size);
        for (int j = 0; j < size; ++j) gradient.v[j] += addend.v[j];
      }
      row.Store(gradient, i, size, dx + begin);
    });
  }
}

// One pass: each thread keeps the largest logit so far and the sum of exp(logit - that), which it
// rescales once a chunk.
//
// If the label has the largest logit, the loss may be far smaller than its term of the sum, 1,
// which is therefore left to log1p (see kernels/cpu/cross_entropy.cc): the pass leaves out the
// label.
template <bool kPacks, typename T>
__global__ void __launch_bounds__(kEntropyThreads)
    CrossEntropyKernel(CrossEntropyParams params, const T* logits, float* losses, float* maxima,
                       float* log_sums) {
  const Row<kPacks, T> row = {params.size, 1};
  using Chunk = typename Row<kPacks, T>::Chunk;
  constexpr int kChunk = Row<kPacks, T>::kChunk;
  for (int64_t at = blockIdx.x; at < params.rows; at += gridDim.x) {
    const T* x = logits + at * params.size;
    const int64_t label = LoadIndex(params.labels, at);
    const bool is_inside = label >= 0 && label < params.limit;
    float max = -FLT_MAX;  // finite, so that its difference from -infinity is a number
    float sum = 0;
    const auto add = [&](const Chunk& in) {
      float new_max = max;
      for (int j = 0; j < kChunk; ++j) new_max = fmaxf(new_max, in.v[j]);
      sum *= Exp2((max - new_max) * kLog2E);
      for (int j = 0; j < kChunk; ++j) sum += Exp2((in.v[j] - new_max) * kLog2E);
      max = new_max;
    };
    // First the whole chunks without the label, with one test each; then the others.
    const int64_t label_chunk = is_inside ? label / kChunk : -1;
    row.ForChunks([&](int64_t i, int size) {
      if (i != label_chunk * kChunk && (kPacks || size == kChunk)) add(row.Load(x, i, size));
    });
    const auto add_rest = [&](int64_t i) {
      const int size = row.size - i < kChunk ? static_cast<int>(row.size - i) : kChunk;
      Chunk in = row.Load(x, i, size);
#pragma unroll
      for (int j = 0; j < kChunk; ++j) in.v[j] = j < size && i + j != label ? in.v[j] : -INFINITY;
      add(in);
    };
    const int64_t last_chunk = (row.size - 1) / kChunk;
    const auto is_own = [](int64_t chunk) {  // the number of threads is a power of 2
      return (static_cast<unsigned>(chunk) & (blockDim.x - 1)) == threadIdx.x;
    };
    if (is_inside && is_own(label_chunk)) add_rest(label_chunk * kChunk);
    if (row.size % kChunk != 0 && last_chunk != label_chunk && is_own(last_chunk)) {
      add_rest(last_chunk * kChunk);
    }
    const float own_max = max;
    max = MaxBlock(max);
    sum = SumBlock(sum * Exp2((own_max - max) * kLog2E));
    if (sum == 0) max = -INFINITY;  // none but the label, or no other logit is above -infinity
    if (sum != sum) {               // NaN or infinity, which fmaxf does not tell apart
      max = -INFINITY;
      row.ForChunks([&](int64_t i, int size) {
        const Chunk in = row.Load(x, i, size);
        for (int j = 0; j < size; ++j) max = MaxOp()(max, in.v[j]);
      });
      max = MaxBlock(max);
    }
    if (threadIdx.x != 0) continue;
    CheckIndex(params.site, label, params.limit);
    const float of_label = is_inside ? Widen(x[label]) : NAN;
    const float max_of_others = max;
    if (is_inside) max = MaxOp()(max, of_label);
    if (sum > 0) sum *= expf(max_of_others - max);
    sum += NanUnlessFinite(max);
    const double log_sum = of_label == max ? log1p(static_cast<double>(sum))
                                           : log(static_cast<double>(sum) + expf(of_label - max));
    losses[at] = static_cast<float>(log_sum - (static_cast<double>(of_label) - max));
    if (maxima != nullptr) maxima[at] = max;
    if (log_sums != nullptr) log_sums[at] = static_cast<float>(log_sum);
  }
}

// The label's place in the chunk that begins at `i`, or a negative number: a chunk has one test.
template <int kChunk>
__device__ int PlaceInChunk(int64_t label, int64_t i) {
  const auto place = static_cast<uint64_t>(label - i);
  return place < kChunk ? static_cast<int>(place) : -1;
}

template <bool kPacks, typename T>
__global__ void __launch_bounds__(kEntropyThreads)
    CrossEntropyGradKernel(CrossEntropyParams params, const T* logits, const float* maxima,
                           const float* log_sums, const float* dlosses, T* dlogits) {
  const Row<kPacks, T> row = {params.size, 1};
  using Chunk = typename Row<kPacks, T>::Chunk;
  constexpr int kChunk = Row<kPacks, T>::kChunk;
  for (int64_t at = blockIdx.x; at < params.rows; at += gridDim.x) {
    const int64_t begin = at * params.size;
    const int64_t label = LoadIndex(params.labels, at);
    const int64_t own = label - params.first;
    const float max = maxima[at];
    float dloss = dlosses[at];
    if (label < 0 || label >= params.limit) {
      if (threadIdx.x == 0) CheckIndex(params.site, label, params.limit);
      dloss = NAN;
    }
    const float offset = log_sums[at] * kLog2E;
    row.ForChunks([&](int64_t i, int size) {
      Chunk chunk = row.Load(logits + begin, i, size);
      for (int j = 0; j < kChunk; ++j) {
        chunk.v[j] = dloss * Exp2((chunk.v[j] - max) * kLog2E - offset);
      }
      const int place = PlaceInChunk<kChunk>(own, i);
      if (place >= 0) {
#pragma unroll
        for (int j = 0; j < kChunk; ++j) chunk.v[j] -= j == place ? dloss : 0.0f;
      }
      row.Store(chunk, i, size, dlogits + begin);
    });
  }
}

// Whether rows of `size` elements are whole packs that all begin at one.
template <typename T, typename... Data>
bool HasPacks(int64_t size, const Data*... rows) {
  return size % kPackOf<T> == 0 && (IsAligned<kPackOf<T>>(rows) && ...);
}

template <typename T>
LaunchShape ShapeOf(int64_t rows, int64_t size) {
  return ShapeForRows(rows, size, kPackOf<T>);
}

// launch(kPacksALane, shape), where a warp can hold a row of `size` elements in so many packs.
template <typename T, typename F>
LaunchResult LaunchWarpRows(int64_t rows, int64_t size, const F& launch) {
  constexpr int kStep = 8 / kPackOf<T>;  // packs of 8 elements
  const int64_t blocks = CeilDiv(rows, kWarpRowThreads / kWarp);
  const LaunchShape shape = {
      .grid_x = static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks),
      .threads_x = kWarpRowThreads};
  switch (CeilDiv(size, 8 * kWarp)) {
    case 1:
      return launch(std::integral_constant<int, kStep>(), shape);
    case 2:
      return launch(std::integral_constant<int, 2 * kStep>(), shape);
    case 3:
      return launch(std::integral_constant<int, 3 * kStep>(), shape);
    default:
      return launch(std::integral_constant<int, 4 * kStep>(), shape);
  }
}

template <bool kAdds, typename T>
LaunchResult LaunchNormGradOf(StreamHandle stream, const NormParams& params, const T* dy,
                              const T* x, const T* scale, const float* mean, const float* rstd,
                              const T* r, T* dx) {
  if (params.rows == 0) return 0;
  const bool has_packs = HasPacks<T>(params.size, dy, x, scale, r, dx);
  if (has_packs && params.size <= kWarpRowSize) {
    return LaunchWarpRows<T>(
        params.rows, params.size,
        [&]<int kPacksALane>(std::integral_constant<int, kPacksALane>, auto shape) {
          return Launch(&NormGradWarpKernel<kAdds, T, kPacksALane>, shape, stream, params, dy, x,
                        scale, mean, rstd, r, dx);
        });
  }
  return Launch(has_packs ? &NormGradKernel<true, kAdds, T> : &NormGradKernel<false, kAdds, T>,
                ShapeOf<T>(params.rows, params.size), stream, params, dy, x, scale, mean, rstd, r,
                dx);
}

template <typename T>
LaunchShape EntropyShapeOf(int64_t rows, int64_t size) {
  LaunchShape shape = ShapeOf<T>(rows, size);
  if (shape.threads_x > kEntropyThreads) shape.threads_x = kEntropyThreads;
  return shape;
}

}  // namespace

template <typename T>
LaunchResult LaunchSoftmax(StreamHandle stream, const RowShape& shape, const T* x, T* y) {
  if (shape.count() * shape.size == 0) return 0;
  const bool has_packs = shape.inner == 1 && HasPacks<T>(shape.size, x, y);
  return Launch(has_packs ? &SoftmaxKernel<true, T> : &SoftmaxKernel<false, T>,
                ShapeOf<T>(shape.count(), shape.size), stream, shape, shape.count(), x, y);
}

template <typename T>
LaunchResult LaunchSoftmaxGrad(StreamHandle stream, const RowShape& shape, const T* y, const T* dy,
                               T* dx) {
  if (shape.count() * shape.size == 0) return 0;
  const bool has_packs = shape.inner == 1 && HasPacks<T>(shape.size, y, dy, dx);
  return Launch(has_packs ? &SoftmaxGradKernel<true, T> : &SoftmaxGradKernel<false, T>,
                ShapeOf<T>(shape.count(), shape.size), stream, shape, shape.count(), y, dy, dx);
}

template <typename T>
LaunchResult LaunchLayerNorm(StreamHandle stream, const NormParams& params, const T* x,
                             const T* scale, const T* bias, T* y, float* mean, float* rstd) {
  if (params.rows == 0) return 0;
  const bool has_packs = HasPacks<T>(params.size, x, scale, bias, y);
  if (has_packs && params.size <= kWarpRowSize) {
    return LaunchWarpRows<T>(
        params.rows, params.size,
        [&]<int kPacksALane>(std::integral_constant<int, kPacksALane>, auto shape) {
          return Launch(&LayerNormWarpKernel<T, kPacksALane>, shape, stream, params, x, scale, bias,
                        y, mean, rstd);
        });
  }
  return Launch(has_packs ? &LayerNormKernel<true, T> : &LayerNormKernel<false, T>,
                ShapeOf<T>(params.rows, params.size), stream, params, x, scale, bias, y, mean,
                rstd);
}

template <typename T>
LaunchResult LaunchRmsNorm(StreamHandle stream, const NormParams& params, const T* x,
                           const T* scale, T* y, float* rstd) {
  if (params.rows == 0) return 0;
  const bool has_packs = HasPacks<T>(params.size, x, scale, y);
  return Launch(has_packs ? &RmsNormKernel<true, T> : &RmsNormKernel<false, T>,
                ShapeOf<T>(params.rows, params.size), stream, params, x, scale, y, rstd);
}

template <typename T>
LaunchResult LaunchNormGrad(StreamHandle stream, const NormParams& params, const T* dy, const T* x,
                            const T* scale, const float* mean, const float* rstd, const T* r,
                            T* dx) {
  return r != nullptr ? LaunchNormGradOf<true>(stream, params, dy, x, scale, mean, rstd, r, dx)
                      : LaunchNormGradOf<false>(stream, params, dy, x, scale, mean, rstd, r, dx);
}

template <typename T>
LaunchResult LaunchCrossEntropy(StreamHandle stream, const CrossEntropyParams& params,
                                const T* logits, float* loss, float* max, float* log_sum) {
  if (params.rows == 0) return 0;
  const bool has_packs = HasPacks<T>(params.size, logits);
  return Launch(has_packs ? &CrossEntropyKernel<true, T> : &CrossEntropyKernel<false, T>,
                EntropyShapeOf<T>(params.rows, params.size), stream, params, logits, loss, max,
                log_sum);
}

template <typename T>
LaunchResult LaunchCrossEntropyGrad(StreamHandle stream, const CrossEntropyParams& params,
                                    const T* logits, const float* max, const float* log_sum,
                                    const float* dloss, T* dlogits) {
  if (params.rows == 0) return 0;
  const bool has_packs = HasPacks<T>(params.size, logits, dlogits);
  return Launch(has_packs ? &CrossEntropyGradKernel<true, T> : &CrossEntropyGradKernel<false, T>,
                EntropyShapeOf<T>(params.rows, params.size), stream, params, logits, max, log_sum,
                dloss, dlogits);
}

// ---- Instances.

template LaunchResult LaunchSoftmax(StreamHandle, const RowShape&, const float*, float*);
template LaunchResult LaunchSoftmax(StreamHandle, const RowShape&, const BFloat16*, BFloat16*);
template LaunchResult LaunchSoftmax(StreamHandle, const RowShape&, const Float16*, Float16*);

template LaunchResult LaunchSoftmaxGrad(StreamHandle, const RowShape&, const float*, const float*,
                                        float*);
template LaunchResult LaunchSoftmaxGrad(StreamHandle, const RowShape&, const BFloat16*,
                                        const BFloat16*, BFloat16*);
template LaunchResult LaunchSoftmaxGrad(StreamHandle, const RowShape&, const Float16*,
                                        const Float16*, Float16*);

template LaunchResult LaunchLayerNorm(StreamHandle, const NormParams&, const float*, const float*,
                                      const float*, float*, float*, float*);
template LaunchResult LaunchLayerNorm(StreamHandle, const NormParams&, const BFloat16*,
                                      const BFloat16*, const BFloat16*, BFloat16*, float*, float*);
template LaunchResult LaunchLayerNorm(StreamHandle, const NormParams&, const Float16*,
                                      const Float16*, const Float16*, Float16*, float*, float*);

template LaunchResult LaunchRmsNorm(StreamHandle, const NormParams&, const float*, const float*,
                                    float*, float*);
template LaunchResult LaunchRmsNorm(StreamHandle, const NormParams&, const BFloat16*,
                                    const BFloat16*, BFloat16*, float*);
template LaunchResult LaunchRmsNorm(StreamHandle, const NormParams&, const Float16*, const Float16*,
                                    Float16*, float*);

template LaunchResult LaunchNormGrad(StreamHandle, const NormParams&, const float*, const float*,
                                     const float*, const float*, const float*, const float*,
                                     float*);
template LaunchResult LaunchNormGrad(StreamHandle, const NormParams&, const BFloat16*,
                                     const BFloat16*, const BFloat16*, const float*, const float*,
                                     const BFloat16*, BFloat16*);
template LaunchResult LaunchNormGrad(StreamHandle, const NormParams&, const Float16*,
                                     const Float16*, const Float16*, const float*, const float*,
                                     const Float16*, Float16*);

template LaunchResult LaunchCrossEntropy(StreamHandle, const CrossEntropyParams&, const float*,
                                         float*, float*, float*);
template LaunchResult LaunchCrossEntropy(StreamHandle, const CrossEntropyParams&, const BFloat16*,
                                         float*, float*, float*);
template LaunchResult LaunchCrossEntropy(StreamHandle, const CrossEntropyParams&, const Float16*,
                                         float*, float*, float*);

template LaunchResult LaunchCrossEntropyGrad(StreamHandle, const CrossEntropyParams&, const float*,
                                             const float*, const float*, const float*, float*);
template LaunchResult LaunchCrossEntropyGrad(StreamHandle, const CrossEntropyParams&,
                                             const BFloat16*, const float*, const float*,
                                             const float*, BFloat16*);
template LaunchResult LaunchCrossEntropyGrad(StreamHandle, const CrossEntropyParams&,
                                             const Float16*, const float*, const float*,
                                             const float*, Float16*);

}  // namespace penstock::kernels::cuda
