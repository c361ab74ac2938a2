#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/scalar_functions.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

constexpr LaunchResult kUnknownOperation = 1;  // cudaErrorInvalidValue

// ---- Maps: out[i] = f(in[i]...).

template <int N, typename F, typename Out, typename... In>
__device__ void MapLoaded(const F& f, Out* out, const Pack<In, N>&... in) {
  Pack<Out, N> result;
  for (int i = 0; i < N; ++i) result.v[i] = f(in.v[i]...);
  *reinterpret_cast<Pack<Out, N>*>(out) = result;
}

template <int N, typename F, typename Out, typename... In>
__global__ void MapKernel(int64_t count, F f, Out* out, const In*... in) {
  const int64_t packs = count / N;
  for (int64_t i = ThreadIndex(); i < packs; i += ThreadCount()) {
    MapLoaded<N>(f, out + i * N, *reinterpret_cast<const Pack<In, N>*>(in + i * N)...);
  }
  for (int64_t i = packs * N + ThreadIndex(); i < count; i += ThreadCount()) out[i] = f(in[i]...);
}

template <typename T, typename... Ts>
constexpr size_t MaxSize() {
  size_t size = sizeof(T);
  ((size = sizeof(Ts) > size ? sizeof(Ts) : size), ...);
  return size;
}

template <typename F, typename Out, typename... In>
LaunchResult Map(StreamHandle stream, int64_t count, F f, Out* out, const In*... in) {
  if (count == 0) return 0;
  constexpr int kPack = kPackBytes / static_cast<int>(MaxSize<Out, In...>());
  if (kPack > 1 && IsAligned<kPack>(out) && (IsAligned<kPack>(in) && ...)) {
    return Launch(&MapKernel<kPack, F, Out, In...>, ShapeForLoop(CeilDiv(count, kPack)), stream,
                  count, f, out, in...);
  }
  return Launch(&MapKernel<1, F, Out, In...>, ShapeForLoop(count), stream, count, f, out, in...);
}

// One operand is a single element in the device's memory.
template <typename T, typename F>
struct WithLeft {
  const T* left;
  __device__ auto operator()(T right) const { return F()(*left, right); }
};
template <typename T, typename F>
struct WithRight {
  const T* right;
  __device__ auto operator()(T left) const { return F()(left, *right); }
};

template <typename F, typename T, typename Out>
LaunchResult MapTwo(StreamHandle stream, ScalarSide scalar, int64_t count, const T* x, const T* y,
                    Out* z) {
  switch (scalar) {
    case ScalarSide::kLeft:
      return Map(stream, count, WithLeft<T, F>{x}, z, y);
    case ScalarSide::kRight:
      return Map(stream, count, WithRight<T, F>{y}, z, x);
    default:
      return Map(stream, count, F(), z, x, y);
  }
}

struct EqualFunction {
  template <typename T>
  __device__ bool operator()(T x, T y) const {
    return x == y;
  }
};
struct LessFunction {
  template <typename T>
  __device__ bool operator()(T x, T y) const {
    return x < y;
  }
};
struct GreaterFunction {
  template <typename T>
  __device__ bool operator()(T x, T y) const {
    return x > y;
  }
};

// ---- Kernels that are no maps.

template <typename T>
__global__ void WhereKernel(int64_t count, const bool* condition, int64_t condition_step,
                            const T* x, int64_t x_step, const T* y, int64_t y_step, T* z) {
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    z[i] = condition[i * condition_step] ? x[i * x_step] : y[i * y_step];
  }
}

template <typename T>
__global__ void FillKernel(int64_t count, T value, T* y) {
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) y[i] = value;
}

template <typename T>
__global__ void IotaKernel(int64_t count, int64_t first, int64_t inner, int64_t extent, T* y) {
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    y[i] = static_cast<T>(first + i / inner % extent);
  }
}

struct BiasAdd {
  __device__ static float Value(float x, float b, float) { return x + b; }
  static constexpr bool kHasGradient = false;
};
template <typename G>
struct BiasGelu {
  __device__ static float Value(float x, float b, float) { return G::Value(x + b); }
  static constexpr bool kHasGradient = false;
};
template <typename G>
struct BiasGeluGrad {
  __device__ static float Value(float x, float b, float dy) { return dy * G::Slope(x + b); }
  static constexpr bool kHasGradient = true;
};

// N divides `size`.
template <int N, typename F>
__global__ void BiasKernel(int64_t count, int64_t size, const float* x, const float* b,
                           const float* dy, float* y) {
  using Floats = Pack<float, N>;
  for (int64_t i = ThreadIndex() * N; i < count; i += ThreadCount() * N) {
    const Floats in = *reinterpret_cast<const Floats*>(x + i);
    const Floats bias = *reinterpret_cast<const Floats*>(b + i % size);
    Floats gradient = {};
    if constexpr (F::kHasGradient) gradient = *reinterpret_cast<const Floats*>(dy + i);
    Floats out;
    for (int j = 0; j < N; ++j) out.v[j] = F::Value(in.v[j], bias.v[j], gradient.v[j]);
    *reinterpret_cast<Floats*>(y + i) = out;
  }
}

template <typename F>
LaunchResult RunBias(StreamHandle stream, int64_t count, int64_t size, const float* x,
                     const float* b, const float* dy, float* y) {
  if (count == 0) return 0;
  if (size % 4 == 0 && IsAligned<4>(x) && IsAligned<4>(b) && IsAligned<4>(y) &&
      (!F::kHasGradient || IsAligned<4>(dy))) {
    return Launch(&BiasKernel<4, F>, ShapeForLoop(count / 4), stream, count, size, x, b, dy, y);
  }
  return Launch(&BiasKernel<1, F>, ShapeForLoop(count), stream, count, size, x, b, dy, y);
}

// What all weights of a step have in common: see kernels/cpu/adamw.cc.
struct AdamwFactors {
  float scale, step_size, epsilon, keep;
};

__device__ AdamwFactors FactorsOf(const AdamwParams& params) {
  const double step = static_cast<double>(*params.step);
  const double rate = *params.rate;
  const double correction2 = sqrt(1 - pow(params.beta2, step));
  return {*params.scale, static_cast<float>(rate / (1 - pow(params.beta1, step)) * correction2),
          static_cast<float>(params.epsilon * correction2),
          static_cast<float>(1 - rate * params.weight_decay)};
}

template <int N>
__global__ void AdamwKernel(AdamwParams params, int64_t count, const float* w, const float* g,
                            const float* m, const float* v, float* new_w, float* new_m,
                            float* new_v) {
  using Floats = Pack<float, N>;
  __shared__ AdamwFactors of_block;
  if (threadIdx.x == 0) of_block = FactorsOf(params);
  __syncthreads();
  const AdamwFactors factors = of_block;
  const float beta1 = static_cast<float>(params.beta1);
  const float beta2 = static_cast<float>(params.beta2);
  const float rest1 = static_cast<float>(1 - params.beta1);
  const float rest2 = static_cast<float>(1 - params.beta2);
  for (int64_t i = ThreadIndex() * N; i < count; i += ThreadCount() * N) {
    Floats weight = *reinterpret_cast<const Floats*>(w + i);
    Floats mean = *reinterpret_cast<const Floats*>(m + i);
    Floats square = *reinterpret_cast<const Floats*>(v + i);
    const Floats gradients = *reinterpret_cast<const Floats*>(g + i);
    // A negative scale: the gradients are of no use, and all is kept as it is.
    for (int j = 0; j < N && !(factors.scale < 0); ++j) {
      const float gradient = gradients.v[j] * factors.scale;
      mean.v[j] = beta1 * mean.v[j] + rest1 * gradient;
      square.v[j] = beta2 * square.v[j] + rest2 * (gradient * gradient);
      weight.v[j] = factors.keep * weight.v[j] -
                    factors.step_size * mean.v[j] / (sqrtf(square.v[j]) + factors.epsilon);
    }
    *reinterpret_cast<Floats*>(new_w + i) = weight;
    *reinterpret_cast<Floats*>(new_m + i) = mean;
    *reinterpret_cast<Floats*>(new_v + i) = square;
  }
}

__global__ void SgdKernel(SgdParams params, int64_t count, const float* w, const float* g,
                          const float* buffer, float* new_w, float* new_buffer) {
  const float rate = *params.rate;
  const float scale = *params.scale;
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    const float weight = w[i];
    if (scale < 0) {  // as in AdamwKernel
      if (buffer != nullptr) new_buffer[i] = buffer[i];
      new_w[i] = weight;
      continue;
    }
    const float gradient = scale * g[i] + params.weight_decay * weight;
    float direction = gradient;
    if (buffer != nullptr) {
      const float moment = params.momentum * buffer[i] + gradient;
      new_buffer[i] = moment;
      direction = params.is_nesterov ? gradient + params.momentum * moment : moment;
    }
    new_w[i] = weight - rate * direction;
  }
}

__device__ uint64_t GlobalIndex(const TileMap& tile, int64_t position) {
  int64_t index = tile.offset;
  for (int i = tile.rank - 1; i >= 0; --i) {
    index += position % tile.extents[i] * tile.strides[i];
    position /= tile.extents[i];
  }
  return static_cast<uint64_t>(index);
}

__device__ uint32_t DrawWord(const RandomParams& params, int64_t position) {
  const uint64_t index = GlobalIndex(params.tile, position);
  return DrawWords(params.seed, params.stream, params.step, index >> 2).v[index & 3];
}

__global__ void DropoutKernel(RandomParams params, uint32_t threshold, float scale, int64_t count,
                              const float* x, float* y) {
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    const bool keeps = (DrawWord(params, i) >> 8) >= threshold;
    y[i] = x[i] * (keeps ? scale : 0.0f);
  }
}

// Of a tile whose elements have consecutive global indices, four to a block of words.
__global__ void WholeDropoutKernel(RandomParams params, uint32_t threshold, float scale,
                                   int64_t count, const float* x, float* y) {
  using Floats = Pack<float, 4>;
  const uint64_t first = static_cast<uint64_t>(params.tile.offset) >> 2;
  for (int64_t i = ThreadIndex(); i < count / 4; i += ThreadCount()) {
    const RandomWords words =
        DrawWords(params.seed, params.stream, params.step, first + static_cast<uint64_t>(i));
    Floats values = *reinterpret_cast<const Floats*>(x + 4 * i);
    for (int j = 0; j < 4; ++j) {
      values.v[j] *= (words.v[j] >> 8) >= threshold ? scale : 0.0f;
    }
    *reinterpret_cast<Floats*>(y + 4 * i) = values;
  }
}

__global__ void RandomUniformKernel(RandomParams params, int64_t count, float* y) {
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    y[i] = static_cast<float>(DrawWord(params, i) >> 8) * 0x1p-24f;
  }
}

// Box-Muller in double, as base/random.h.
__global__ void RandomNormalKernel(RandomParams params, int64_t count, float* y) {
  for (int64_t i = ThreadIndex(); i < count; i += ThreadCount()) {
    const uint64_t index = GlobalIndex(params.tile, i);
    const RandomWords words = DrawWords(params.seed, params.stream, params.step, index >> 2);
    const bool is_second_pair = (index & 2) != 0;
    const double u = ((is_second_pair ? words.v[2] : words.v[0]) + 0.5) * 0x1p-32;
    const double v = (is_second_pair ? words.v[3] : words.v[1]) * 0x1p-32;
    const double radius = sqrt(-2.0 * log(u));
    const double angle = 6.283185307179586476925 * v;
    y[i] = static_cast<float>((index & 1) != 0 ? radius * sin(angle) : radius * cos(angle));
  }
}

__device__ double ScaledFrequency(const RotaryParams& params, double frequency) {
  const double turns = params.context * frequency / 6.283185307179586476925;
  if (turns < params.low_factor) return frequency / params.factor;
  if (turns > params.high_factor) return frequency;
  const double kept = (turns - params.low_factor) / (params.high_factor - params.low_factor);
  return (1 - kept) * frequency / params.factor + kept * frequency;
}

__global__ void RotaryKernel(RotaryParams params, const float* x, float* y) {
  const int64_t half = params.width / 2;
  for (int64_t at = ThreadIndex(); at < params.rows * half; at += ThreadCount()) {
    const int64_t row = at / half;
    const int64_t i = at % half;
    const int64_t place = row / params.heads;
    int64_t position = params.first + place % params.positions;
    if (params.start.data != nullptr) position += LoadIndex(params.start, place / params.positions);
    const double frequency = ScaledFrequency(
        params,
        pow(params.base, -2.0 * static_cast<double>(i) / static_cast<double>(params.width)));
    const double angle = static_cast<double>(position) * frequency;
    const float cosine = static_cast<float>(cos(angle));
    const float sine = static_cast<float>(params.is_inverse ? -sin(angle) : sin(angle));
    const float a = x[row * params.width + i];
    const float b = x[row * params.width + half + i];
    y[row * params.width + i] = a * cosine - b * sine;
    y[row * params.width + half + i] = b * cosine + a * sine;
  }
}

}  // namespace

template <typename T>
LaunchResult LaunchUnary(StreamHandle stream, UnaryOp op, int64_t count, const T* x, T* y) {
  switch (op) {
    case UnaryOp::kAbs:
      return Map(stream, count, AbsFunction(), y, x);
    case UnaryOp::kNeg:
      return Map(stream, count, NegFunction(), y, x);
    case UnaryOp::kRelu:
      return Map(stream, count, ReluFunction(), y, x);
    case UnaryOp::kSquare:
      return Map(stream, count, SquareFunction(), y, x);
    default:
      break;
  }
  if constexpr (std::is_same_v<T, float>) {
    switch (op) {
      case UnaryOp::kExp:
        return Map(stream, count, ExpFunction(), y, x);
      case UnaryOp::kLog:
        return Map(stream, count, LogFunction(), y, x);
      case UnaryOp::kTanh:
        return Map(stream, count, TanhFunction(), y, x);
      case UnaryOp::kSqrt:
        return Map(stream, count, SqrtFunction(), y, x);
      case UnaryOp::kRsqrt:
        return Map(stream, count, RsqrtFunction(), y, x);
      case UnaryOp::kSin:
        return Map(stream, count, SinFunction(), y, x);
      case UnaryOp::kCos:
        return Map(stream, count, CosFunction(), y, x);
      case UnaryOp::kSigmoid:
        return Map(stream, count, SigmoidFunction(), y, x);
      case UnaryOp::kSilu:
        return Map(stream, count, SiluFunction(), y, x);
      case UnaryOp::kTanhGelu:
        return Map(stream, count, GeluFunction<TanhGelu>(), y, x);
      case UnaryOp::kExactGelu:
        return Map(stream, count, GeluFunction<ExactGelu>(), y, x);
      default:
        break;
    }
  }
  return kUnknownOperation;
}

template <typename T>
LaunchResult LaunchBinary(StreamHandle stream, BinaryOp op, ScalarSide scalar, int64_t count,
                          const T* x, const T* y, T* z) {
  switch (op) {
    case BinaryOp::kAdd:
      return MapTwo<AddFunction>(stream, scalar, count, x, y, z);
    case BinaryOp::kSub:
      return MapTwo<SubFunction>(stream, scalar, count, x, y, z);
    case BinaryOp::kMul:
      return MapTwo<MulFunction>(stream, scalar, count, x, y, z);
    case BinaryOp::kDiv:
      return MapTwo<DivFunction>(stream, scalar, count, x, y, z);
    case BinaryOp::kMax:
      return MapTwo<MaxFunction>(stream, scalar, count, x, y, z);
    case BinaryOp::kMin:
      return MapTwo<MinFunction>(stream, scalar, count, x, y, z);
    default:
      break;
  }
  if constexpr (std::is_same_v<T, float>) {
    if (op == BinaryOp::kTanhGeluGrad) {
      return MapTwo<GeluGradFunction<TanhGelu>>(stream, scalar, count, x, y, z);
    }
    if (op == BinaryOp::kExactGeluGrad) {
      return MapTwo<GeluGradFunction<ExactGelu>>(stream, scalar, count, x, y, z);
    }
  }
  return kUnknownOperation;
}

template <typename T>
LaunchResult LaunchCompare(StreamHandle stream, CompareOp op, ScalarSide scalar, int64_t count,
                           const T* x, const T* y, bool* z) {
  switch (op) {
    case CompareOp::kEqual:
      return MapTwo<EqualFunction>(stream, scalar, count, x, y, z);
    case CompareOp::kLess:
      return MapTwo<LessFunction>(stream, scalar, count, x, y, z);
    case CompareOp::kGreater:
      return MapTwo<GreaterFunction>(stream, scalar, count, x, y, z);
  }
  return kUnknownOperation;
}

template <typename To, typename From>
LaunchResult LaunchCast(StreamHandle stream, int64_t count, const From* x, To* y) {
  return Map(stream, count, CastFunction<To>(), y, x);
}

template <typename T>
LaunchResult LaunchWhere(StreamHandle stream, int64_t count, const bool* condition,
                         int64_t condition_step, const T* x, int64_t x_step, const T* y,
                         int64_t y_step, T* z) {
  if (count == 0) return 0;
  return Launch(&WhereKernel<T>, ShapeForLoop(count), stream, count, condition, condition_step, x,
                x_step, y, y_step, z);
}

template <typename T>
LaunchResult LaunchFill(StreamHandle stream, int64_t count, T value, T* y) {
  if (count == 0) return 0;
  return Launch(&FillKernel<T>, ShapeForLoop(count), stream, count, value, y);
}

template <typename T>
LaunchResult LaunchIota(StreamHandle stream, int64_t count, int64_t first, int64_t inner,
                        int64_t extent, T* y) {
  if (count == 0) return 0;
  return Launch(&IotaKernel<T>, ShapeForLoop(count), stream, count, first, inner, extent, y);
}

LaunchResult LaunchBias(StreamHandle stream, BiasOp op, int64_t count, int64_t size, const float* x,
                        const float* b, const float* dy, float* y) {
  switch (op) {
    case BiasOp::kAdd:
      return RunBias<BiasAdd>(stream, count, size, x, b, dy, y);
    case BiasOp::kTanhGelu:
      return RunBias<BiasGelu<TanhGelu>>(stream, count, size, x, b, dy, y);
    case BiasOp::kExactGelu:
      return RunBias<BiasGelu<ExactGelu>>(stream, count, size, x, b, dy, y);
    case BiasOp::kTanhGeluGrad:
      return RunBias<BiasGeluGrad<TanhGelu>>(stream, count, size, x, b, dy, y);
    case BiasOp::kExactGeluGrad:
      return RunBias<BiasGeluGrad<ExactGelu>>(stream, count, size, x, b, dy, y);
  }
  return kUnknownOperation;
}

LaunchResult LaunchAdamw(StreamHandle stream, const AdamwParams& params, int64_t count,
                         const float* w, const float* g, const float* m, const float* v,
                         float* new_w, float* new_m, float* new_v) {
  if (count == 0) return 0;
  const bool is_aligned = IsAligned<4>(w) && IsAligned<4>(g) && IsAligned<4>(m) &&
                          IsAligned<4>(v) && IsAligned<4>(new_w) && IsAligned<4>(new_m) &&
                          IsAligned<4>(new_v);
  if (count % 4 == 0 && is_aligned) {
    return Launch(&AdamwKernel<4>, ShapeForLoop(count / 4), stream, params, count, w, g, m, v,
                  new_w, new_m, new_v);
  }
  return Launch(&AdamwKernel<1>, ShapeForLoop(count), stream, params, count, w, g, m, v, new_w,
                new_m, new_v);
}

LaunchResult LaunchSgd(StreamHandle stream, const SgdParams& params, int64_t count, const float* w,
                       const float* g, const float* buffer, float* new_w, float* new_buffer) {
  if (count == 0) return 0;
  return Launch(&SgdKernel, ShapeForLoop(count), stream, params, count, w, g, buffer, new_w,
                new_buffer);
}

LaunchResult LaunchDropout(StreamHandle stream, const RandomParams& params, uint32_t threshold,
                           float scale, int64_t count, const float* x, float* y) {
  if (count == 0) return 0;
  const bool is_whole = params.tile.rank == 1 && params.tile.strides[0] == 1;
  if (is_whole && count % 4 == 0 && params.tile.offset % 4 == 0 && IsAligned<4>(x) &&
      IsAligned<4>(y)) {
    return Launch(&WholeDropoutKernel, ShapeForLoop(count / 4), stream, params, threshold, scale,
                  count, x, y);
  }
  return Launch(&DropoutKernel, ShapeForLoop(count), stream, params, threshold, scale, count, x, y);
}

LaunchResult LaunchRandomUniform(StreamHandle stream, const RandomParams& params, int64_t count,
                                 float* y) {
  if (count == 0) return 0;
  return Launch(&RandomUniformKernel, ShapeForLoop(count), stream, params, count, y);
}

LaunchResult LaunchRandomNormal(StreamHandle stream, const RandomParams& params, int64_t count,
                                float* y) {
  if (count == 0) return 0;
  return Launch(&RandomNormalKernel, ShapeForLoop(count), stream, params, count, y);
}

LaunchResult LaunchRotary(StreamHandle stream, const RotaryParams& params, const float* x,
                          float* y) {
  const int64_t count = params.rows * (params.width / 2);
  if (count == 0) return 0;
  return Launch(&RotaryKernel, ShapeForLoop(count), stream, params, x, y);
}

// ---- Instances.

template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const float*, float*);
template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const int32_t*, int32_t*);
template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const int64_t*, int64_t*);

template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const float*,
                                   const float*, float*);
template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const int32_t*,
                                   const int32_t*, int32_t*);
template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const int64_t*,
                                   const int64_t*, int64_t*);

template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const float*,
                                    const float*, bool*);
template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const int32_t*,
                                    const int32_t*, bool*);
template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const int64_t*,
                                    const int64_t*, bool*);

template LaunchResult LaunchCast(StreamHandle, int64_t, const float*, float*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const float*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const float*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const float*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, float*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, float*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, float*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, bool*);

template LaunchResult LaunchWhere(StreamHandle, int64_t, const bool*, int64_t, const uint8_t*,
                                  int64_t, const uint8_t*, int64_t, uint8_t*);
template LaunchResult LaunchWhere(StreamHandle, int64_t, const bool*, int64_t, const uint16_t*,
                                  int64_t, const uint16_t*, int64_t, uint16_t*);
template LaunchResult LaunchWhere(StreamHandle, int64_t, const bool*, int64_t, const uint32_t*,
                                  int64_t, const uint32_t*, int64_t, uint32_t*);
template LaunchResult LaunchWhere(StreamHandle, int64_t, const bool*, int64_t, const uint64_t*,
                                  int64_t, const uint64_t*, int64_t, uint64_t*);

template LaunchResult LaunchFill(StreamHandle, int64_t, uint8_t, uint8_t*);
template LaunchResult LaunchFill(StreamHandle, int64_t, uint16_t, uint16_t*);
template LaunchResult LaunchFill(StreamHandle, int64_t, uint32_t, uint32_t*);
template LaunchResult LaunchFill(StreamHandle, int64_t, uint64_t, uint64_t*);

template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, float*);
template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, int32_t*);
template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, int64_t*);

}  // namespace penstock::kernels::cuda
