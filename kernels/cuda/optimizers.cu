#include "kernels/cuda/optimizers.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

// What all weights of a step have in common: see kernels/cpu/adamw.cc.
struct AdamwFactors {
  float scale, step_size, epsilon, keep;
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
  return {LoadScalar(params.scale), static_cast<float>(rate / (1 - power1) * correction2),
          static_cast<float>(params.epsilon * correction2),
          static_cast<float>(1 - rate * params.weight_decay)};
}

template <int N, typename T>
__global__ void AdamwKernel(AdamwParams params, int64_t count, const T* w, const T* g, const T* m,
                            const T* v, T* new_w, T* new_m, T* new_v) {
  __shared__ AdamwFactors of_block;
  if (threadIdx.x == 0) of_block = FactorsOf(params);
  __syncthreads();
  const AdamwFactors factors = of_block;
  const float beta1 = static_cast<float>(params.beta1);
  const float beta2 = static_cast<float>(params.beta2);
  const float rest1 = static_cast<float>(1 - params.beta1);
  const float rest2 = static_cast<float>(1 - params.beta2);
  for (int64_t i = ThreadIndex() * N; i < count; i += ThreadCount() * N) {
    Values<T, N> weight = LoadElements<true, N>(w + i, 1, N);
    Values<T, N> mean = LoadElements<true, N>(m + i, 1, N);
    Values<T, N> square = LoadElements<true, N>(v + i, 1, N);
    const Values<T, N> gradients = LoadElements<true, N>(g + i, 1, N);
    // A negative scale: the gradients are of no use, and all is kept as it is.
    for (int j = 0; j < N && !(factors.scale < 0); ++j) {
      const float gradient = gradients.v[j] * factors.scale;
      mean.v[j] = beta1 * mean.v[j] + rest1 * gradient;
      square.v[j] = beta2 * square.v[j] + rest2 * (gradient * gradient);
      weight.v[j] = factors.keep * weight.v[j] -
                    factors.step_size * mean.v[j] / (sqrtf(square.v[j]) + factors.epsilon);
    }
    StoreElements<true, N, T>(weight, 1, N, new_w + i);
    StoreElements<true, N, T>(mean, 1, N, new_m + i);
    StoreElements<true, N, T>(square, 1, N, new_v + i);
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
LaunchResult LaunchAdamw(StreamHandle stream, const AdamwParams& params, int64_t count, const T* w,
                         const T* g, const T* m, const T* v, T* new_w, T* new_m, T* new_v) {
  if (count == 0) return 0;
  constexpr int kPack = kPackOf<T>;
  const bool is_aligned = IsAligned<kPack>(w) && IsAligned<kPack>(g) && IsAligned<kPack>(m) &&
                          IsAligned<kPack>(v) && IsAligned<kPack>(new_w) &&
                          IsAligned<kPack>(new_m) && IsAligned<kPack>(new_v);
  if (count % kPack == 0 && is_aligned) {
    return Launch(&AdamwKernel<kPack, T>, ShapeForLoop(count / kPack, kWaveBlocks), stream, params,
                  count, w, g, m, v, new_w, new_m, new_v);
  }
  return Launch(&AdamwKernel<1, T>, ShapeForLoop(count, kWaveBlocks), stream, params, count, w, g,
                m, v, new_w, new_m, new_v);
}

template <typename T>
LaunchResult LaunchSgd(StreamHandle stream, const SgdParams& params, int64_t count, const T* w,
                       const T* g, const T* buffer, T* new_w, T* new_buffer) {
  if (count == 0) return 0;
  return Launch(&SgdKernel<T>, ShapeForLoop(count), stream, params, count, w, g, buffer, new_w,
                new_buffer);
}

// ---- Instances.

template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, int64_t, const float*,
                                  const float*, const float*, const float*, float*, float*, float*);
template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, int64_t, const BFloat16*,
                                  const BFloat16*, const BFloat16*, const BFloat16*, BFloat16*,
                                  BFloat16*, BFloat16*);
template LaunchResult LaunchAdamw(StreamHandle, const AdamwParams&, int64_t, const Float16*,
                                  const Float16*, const Float16*, const Float16*, Float16*,
                                  Float16*, Float16*);

template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, int64_t, const float*, const float*,
                                const float*, float*, float*);
template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, int64_t, const BFloat16*,
                                const BFloat16*, const BFloat16*, BFloat16*, BFloat16*);
template LaunchResult LaunchSgd(StreamHandle, const SgdParams&, int64_t, const Float16*,
                                const Float16*, const Float16*, Float16*, Float16*);

}  // namespace penstock::kernels::cuda
