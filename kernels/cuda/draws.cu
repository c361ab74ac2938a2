#include "kernels/cuda/draws.h"
#include "kernels/cuda/scalar_functions.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

__device__ uint64_t GlobalIndex(const TileMap& tile, int64_t position) {
  int64_t index = tile.offset;
  for (int i = tile.rank - 1; i >= 0; --i) {
    index += position % tile.extents[i] * tile.strides[i];
    position /= tile.extents[i];
  }
  return static_cast<uint64_t>(index);
}

__device__ uint32_t StepOf(const RandomParams& params) {
  if (params.offsets == nullptr) return params.step;
  return params.step + static_cast<uint32_t>(params.offsets->step);
}

__device__ uint32_t DrawWord(const RandomParams& params, uint32_t step, int64_t position) {
  const uint64_t index = GlobalIndex(params.tile, position);
  return DrawWords(params.seed, params.stream, step, index >> 2).v[index & 3];
}

template <typename T>
__global__ void DropoutKernel(RandomParams params, uint32_t threshold, float scale, int64_t count,
                              const T* x, T* y) {
  const uint32_t step = StepOf(params);
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    const bool keeps = (DrawWord(params, step, i) >> 8) >= threshold;
    y[i] = Narrow<T>(Widen(x[i]) * (keeps ? scale : 0.0f));
  }
}

// Of a tile whose elements have consecutive global indices, four to a block of words.
template <typename T>
__global__ void WholeDropoutKernel(RandomParams params, uint32_t threshold, float scale,
                                   int64_t count, const T* x, T* y) {
  constexpr int N = kPackOf<T>;
  const uint64_t first = static_cast<uint64_t>(params.tile.offset) >> 2;
  const uint32_t step = StepOf(params);
  for (int64_t i = ThreadIndex(); i < count / N; i += ThreadCount()) {
    Values<T, N> values = LoadElements<true, N>(x + N * i, 1, N);
    for (int block = 0; block < N / 4; ++block) {
      const RandomWords words = DrawWords(params.seed, params.stream, step,
                                          first + static_cast<uint64_t>(i * (N / 4) + block));
      for (int j = 0; j < 4; ++j) {
        values.v[4 * block + j] *= (words.v[j] >> 8) >= threshold ? scale : 0.0f;
      }
    }
    StoreElements<true, N, T>(values, 1, N, y + N * i);
  }
}

template <typename T>
__global__ void RandomUniformKernel(RandomParams params, int64_t count, T* y) {
  const uint32_t step = StepOf(params);
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    y[i] = Narrow<T>(static_cast<float>(DrawWord(params, step, i) >> 8) * 0x1p-24f);
  }
}

// Box-Muller in double, as base/random.h.
template <typename T>
__global__ void RandomNormalKernel(RandomParams params, int64_t count, T* y) {
  const uint32_t step = StepOf(params);
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    const uint64_t index = GlobalIndex(params.tile, i);
    const RandomWords words = DrawWords(params.seed, params.stream, step, index >> 2);
    const bool is_second_pair = (index & 2) != 0;
    const double u = ((is_second_pair ? words.v[2] : words.v[0]) + 0.5) * 0x1p-32;
    const double v = (is_second_pair ? words.v[3] : words.v[1]) * 0x1p-32;
    const double radius = sqrt(-2.0 * log(u));
    const double angle = 6.283185307179586476925 * v;
    y[i] =
        Narrow<T>(static_cast<float>((index & 1) != 0 ? radius * sin(angle) : radius * cos(angle)));
  }
}

}  // namespace

template <typename T>
LaunchResult LaunchDropout(StreamHandle stream, const RandomParams& params, uint32_t threshold,
                           float scale, int64_t count, const T* x, T* y) {
  if (count == 0) return 0;
  constexpr int kPack = kPackOf<T>;
  const bool is_whole = params.tile.rank == 1 && params.tile.strides[0] == 1;
  if (is_whole && count % kPack == 0 && params.tile.offset % 4 == 0 && IsAligned<kPack>(x) &&
      IsAligned<kPack>(y)) {
    return Launch(&WholeDropoutKernel<T>, ShapeForLoop(count / kPack), stream, params, threshold,
                  scale, count, x, y);
  }
  return Launch(&DropoutKernel<T>, ShapeForLoop(count), stream, params, threshold, scale, count, x,
                y);
}

template <typename T>
LaunchResult LaunchRandomUniform(StreamHandle stream, const RandomParams& params, int64_t count,
                                 T* y) {
  if (count == 0) return 0;
  return Launch(&RandomUniformKernel<T>, ShapeForLoop(count), stream, params, count, y);
}

template <typename T>
LaunchResult LaunchRandomNormal(StreamHandle stream, const RandomParams& params, int64_t count,
                                T* y) {
  if (count == 0) return 0;
  return Launch(&RandomNormalKernel<T>, ShapeForLoop(count), stream, params, count, y);
}

// ---- Instances.

template LaunchResult LaunchDropout(StreamHandle, const RandomParams&, uint32_t, float, int64_t,
                                    const float*, float*);
template LaunchResult LaunchDropout(StreamHandle, const RandomParams&, uint32_t, float, int64_t,
                                    const BFloat16*, BFloat16*);
template LaunchResult LaunchDropout(StreamHandle, const RandomParams&, uint32_t, float, int64_t,
                                    const Float16*, Float16*);

template LaunchResult LaunchRandomUniform(StreamHandle, const RandomParams&, int64_t, float*);
template LaunchResult LaunchRandomUniform(StreamHandle, const RandomParams&, int64_t, BFloat16*);
template LaunchResult LaunchRandomUniform(StreamHandle, const RandomParams&, int64_t, Float16*);

template LaunchResult LaunchRandomNormal(StreamHandle, const RandomParams&, int64_t, float*);
template LaunchResult LaunchRandomNormal(StreamHandle, const RandomParams&, int64_t, BFloat16*);
template LaunchResult LaunchRandomNormal(StreamHandle, const RandomParams&, int64_t, Float16*);

}  // namespace penstock::kernels::cuda
