#include "kernels/cuda/optimizers.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

// Goes over a table, its chunks divided among the blocks: of(entry, begin, end) for each, by all
// threads of the block.
template <typename Table, typename F>
__device__ void ForEachChunk(const Table& table, const F& of) {
  const int num_chunks = table.begins[table.num_entries];
  for (int chunk = static_cast<int>(blockIdx.x); chunk < num_chunks;
       chunk += static_cast<int>(gridDim.x)) {
    const TableChunk found = FindChunk(table, chunk);
    const auto& entry = table.entries[found.entry];
    const int64_t begin = found.index * kUpdateChunk;
    const int64_t end = begin + kUpdateChunk < entry.count ? begin + kUpdateChunk : entry.count;
    of(entry, begin, end);
  }
}

// Divides [begin, end) among the threads of the block: update(size, i) for `size` elements from `i`
// on, a constant. If all of `tensors` are aligned, they are packs and the rest behind them.
template <typename T, typename F, typename... Tensors>
__device__ void ForEachPack(int64_t begin, int64_t end, const F& update,
                            const Tensors*... tensors) {
  constexpr int kPack = kPackOf<T>;
  const bool has_packs = (IsAligned<kPack>(tensors) && ...);
  const int64_t packs_end = has_packs ? end - end % kPack : begin;
  for (int64_t i = begin + threadIdx.x * kPack; i < packs_end; i += blockDim.x * kPack) {
    update(std::integral_constant<int, kPack>(), i);
  }
  for (int64_t i = packs_end + threadIdx.x; i < end; i += blockDim.x) {
    update(std::integral_constant<int, 1>(), i);
  }
}

// ---- AdamW.

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
__device__ void UpdateAdamw(const AdamwFactors& factors, const AdamwRates& rates,
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
  __shared__ AdamwFactors of_block;
  if (threadIdx.x == 0) of_block = FactorsOf(params);
  __syncthreads();
  const AdamwFactors factors = of_block;
  AdamwRates rates;
  rates.beta1 = static_cast<float>(params.beta1);
  rates.beta2 = static_cast<float>(params.beta2);
  rates.rest1 = static_cast<float>(1 - params.beta1);
  rates.rest2 = static_cast<float>(1 - params.beta2);
  ForEachChunk(table, [&](const AdamwEntry<T>& entry, int64_t begin, int64_t end) {
    rates.keep = static_cast<float>(1 - factors.rate * entry.weight_decay);
    ForEachPack<T>(
        begin, end,
        [&](auto size, int64_t i) { UpdateAdamw<decltype(size)::value>(factors, rates, entry, i); },
        entry.w, entry.g, entry.m, entry.v, entry.new_w, entry.new_m, entry.new_v);
  });
}

// ---- SGD.

struct SgdFactors {
  float rate, scale;
};

template <int N, typename T>
__device__ void UpdateSgd(const SgdParams& params, const SgdFactors& factors,
                          const SgdEntry<T>& entry, int64_t i) {
  const bool has_buffer = entry.buffer != nullptr;
  Values<T, N> weight = LoadElements<true, N>(entry.w + i, 1, N);
  Values<T, N> moment = {};
  if (has_buffer) moment = LoadElements<true, N>(entry.buffer + i, 1, N);
  const Values<T, N> gradients = LoadElements<true, N>(entry.g + i, 1, N);
  for (int j = 0; j < N && !(factors.scale < 0); ++j) {  // as in UpdateAdamw
    const float gradient = factors.scale * gradients.v[j] + entry.weight_decay * weight.v[j];
    float direction = gradient;
    if (has_buffer) {
      moment.v[j] = params.momentum * moment.v[j] + gradient;
      direction = params.is_nesterov ? gradient + params.momentum * moment.v[j] : moment.v[j];
    }
    weight.v[j] -= factors.rate * direction;
  }
  StoreElements<true, N, T>(weight, 1, N, entry.new_w + i);
  if (has_buffer) StoreElements<true, N, T>(moment, 1, N, entry.new_buffer + i);
}

template <typename T>
__global__ void __launch_bounds__(kLoopThreads, kWaveBlocksPerProcessor)
    SgdKernel(const __grid_constant__ SgdParams params, const __grid_constant__ SgdTable<T> table) {
  const SgdFactors factors = {LoadScalar(params.rate), LoadScalar(params.scale)};
  ForEachChunk(table, [&](const SgdEntry<T>& entry, int64_t begin, int64_t end) {
    ForEachPack<T>(
        begin, end,
        [&](auto size, int64_t i) { UpdateSgd<decltype(size)::value>(params, factors, entry, i); },
        entry.w, entry.g, entry.buffer, entry.new_w, entry.new_buffer);
  });
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
LaunchResult LaunchSgd(StreamHandle stream, const SgdParams& params, const SgdTable<T>& table) {
  static_assert(sizeof(params) + sizeof(table) <= kMaxParameterBytes);
  if (table.num_entries == 0) return 0;
  return Launch(&SgdKernel<T>, ShapeForChunks(table, kWaveBlocks), stream, params, table);
}

// ---- Instances.

template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, const AdamwTable<float>&);
template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, const AdamwTable<BFloat16>&);
template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, const AdamwTable<Float16>&);

template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, const SgdTable<float>&);
template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, const SgdTable<BFloat16>&);
template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, const SgdTable<Float16>&);

}  // namespace penstock::kernels::cuda
