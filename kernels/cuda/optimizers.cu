#include "kernels/cuda/optimizers.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

// What all weights of a step have in common, and then of an entry: see kernels/cpu/adamw.cc.
struct AdamwFactors {
  double rate;
  float scale, step_size, epsilon;
};

// The powers by repeated squaring: pow() would take one thread of each block, for which the others
// wait, several times as long.
__device__ AdamwFactors FactorsOf(const AdamwParams& params) {
  const double rate = LoadScalar(params.rate);
  double power1 = 1;
  double power2 = 1;
  double square1 = params.beta1;
  double square2 = params.beta2;
  for (int64_t left = *params.step; left > 0; left /= 2) {
    if (left % 2 != 0) {
      power1 *= square1;
      power2 *= square2;
    }
    square1 *= square1;
    square2 *= square2;
  }
  const double correction2 = sqrt(1 - power2);
  return {rate, LoadScalar(params.scale), static_cast<float>(rate / (1 - power1) * correction2),
          static_cast<float>(params.epsilon * correction2)};
}

struct AdamwRates {
  float beta1, rest1, beta2, rest2, keep;
};

// N weights from `i` on.
template <int N, typename T>
__device__ void Update(const AdamwFactors& factors, const AdamwRates& rates,
                       const AdamwEntry<T>& entry, int64_t i) {
  Values<T, N> weight = LoadElements<true, N>(entry.w + i, 1, N);
  Values<T, N> mean = LoadElements<true, N>(entry.m + i, 1, N);
  Values<T, N> square = LoadElements<true, N>(entry.v + i, 1, N);
  const Values<T, N> gradients = LoadElements<true, N>(entry.g + i, 1, N);
  // A negative scale: the gradients are of no use, and all is kept as it is.
  for (int j = 0; j < N && !(factors.scale < 0); ++j) {
    const float gradient = gradients.v[j] * factors.scale;
    mean.v[j] = rates.beta1 * mean.v[j] + rates.rest1 * gradient;
    square.v[j] = rates.beta2 * square.v[j] + rates.rest2 * (gradient * gradient);
    weight.v[j] = rates.keep * weight.v[j] -
                  factors.step_size * mean.v[j] / (sqrtf(square.v[j]) + factors.epsilon);
  }
  StoreElements<true, N, T>(weight, 1, N, entry.new_w + i);
  StoreElements<true, N, T>(mean, 1, N, entry.new_m + i);
  StoreElements<true, N, T>(square, 1, N, entry.new_v + i);
}

template <typename T>
__global__ void __launch_bounds__(kLoopThreads, kWaveBlocksPerProcessor)
    AdamwKernel(const __grid_constant__ AdamwParams params,
                const __grid_constant__ AdamwTable<T> table) {
  constexpr int kPack = kPackOf<T>;
  __shared__ AdamwFactors of_block;
  if (threadIdx.x == 0) of_block = FactorsOf(params);
  __syncthreads();
  const AdamwFactors factors = of_block;
  AdamwRates rates;
  rates.beta1 = static_cast<float>(params.beta1);
  rates.beta2 = static_cast<float>(params.beta2);
  rates.rest1 = static_cast<float>(1 - params.beta1);
  rates.rest2 = static_cast<float>(1 - params.beta2);
  const int num_chunks = table.begins[table.num_entries];
  for (int chunk = static_cast<int>(blockIdx.x); chunk < num_chunks;
       chunk += static_cast<int>(gridDim.x)) {
    const TableChunk found = FindChunk(table, chunk);
    const AdamwEntry<T>& entry = table.entries[found.entry];
    rates.keep = static_cast<float>(1 - factors.rate * entry.weight_decay);
    const int64_t begin = found.index * kAdamwChunk;
    const int64_t end = begin + kAdamwChunk < entry.count ? begin + kAdamwChunk : entry.count;
    const bool has_packs = IsAligned<kPack>(entry.w) && IsAligned<kPack>(entry.g) &&
                           IsAligned<kPack>(entry.m) && IsAligned<kPack>(entry.v) &&
                           IsAligned<kPack>(entry.new_w) && IsAligned<kPack>(entry.new_m) &&
                           IsAligned<kPack>(entry.new_v);
    const int64_t packs_end = has_packs ? end - end % kPack : begin;
    for (int64_t i = begin + threadIdx.x * kPack; i < packs_end; i += blockDim.x * kPack) {
      Update<kPack>(factors, rates, entry, i);
    }
    for (int64_t i = packs_end + threadIdx.x; i < end; i += blockDim.x) {
      Update<1>(factors, rates, entry, i);
    }
  }
}

template <typename T>
__global__ void SgdKernel(SgdParams params, int64_t count, const T* w, const T* g, const T* buffer,
                          T* new_w, T* new_buffer) {
  const float rate = LoadScalar(params.rate);
  const float scale = LoadScalar(params.scale);
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    if (scale < 0) {  // as in AdamwKernel
      if (buffer != nullptr) new_buffer[i] = buffer[i];
      new_w[i] = w[i];
      continue;
    }
    const float weight = Widen(w[i]);
    const float gradient = scale * Widen(g[i]) + params.weight_decay * weight;
    float direction = gradient;
    if (buffer != nullptr) {
      const float moment = params.momentum * Widen(buffer[i]) + gradient;
      new_buffer[i] = Narrow<T>(moment);
      direction = params.is_nesterov ? gradient + params.momentum * moment : moment;
    }
    new_w[i] = Narrow<T>(weight - rate * direction);
  }
}

}  // namespace

template <typename T>
LaunchResult LaunchAdamw(StreamHandle stream, const AdamwParams& params,
                         const AdamwTable<T>& table) {
  static_assert(sizeof(params) + sizeof(table) <= kMaxParameterBytes);
  if (table.num_entries == 0) return 0;
  return Launch(&AdamwKernel<T>, ShapeForChunks(table, kWaveBlocks), stream, params, table);
}

template <typename T>
LaunchResult LaunchSgd(StreamHandle stream, const SgdParams& params, int64_t count, const T* w,
                       const T* g, const T* buffer, T* new_w, T* new_buffer) {
  if (count == 0) return 0;
  return Launch(&SgdKernel<T>, ShapeForLoop(count), stream, params, count, w, g, buffer, new_w,
                new_buffer);
}

// ---- Instances.

template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, const AdamwTable<float>&);
template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, const AdamwTable<BFloat16>&);
template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, const AdamwTable<Float16>&);

template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, int64_t, const float*, const float*,
                                const float*, float*, float*);
template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, int64_t, const BFloat16*,
                                const BFloat16*, const BFloat16*, BFloat16*, BFloat16*);
template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, int64_t, const Float16*,
                                const Float16*, const Float16*, Float16*, Float16*);

}  // namespace penstock::kernels::cuda
