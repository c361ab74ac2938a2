#include <utility>

#include "kernels/cuda/elementwise.h"
#include "kernels/cuda/scalar_functions.h"
#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {
namespace {

constexpr LaunchResult kUnknownOperation = 1;  // cudaErrorInvalidValue

// ---- Maps: out[i] = f(in[i]...), computed as simt.h says.

template <int N, typename F, typename Out, typename... In>
__device__ void MapLoaded(const F& f, Out* out, const Pack<In, N>&... in) {
  Pack<Out, N> result;
  for (int i = 0; i < N; ++i) result.v[i] = Narrow<Out>(f(Widen(in.v[i])...));
  *reinterpret_cast<Pack<Out, N>*>(out) = result;
}

template <int N, typename F, typename Out, typename... In>
__global__ void MapKernel(int64_t count, F f, Out* out, const In*... in) {
  const int64_t packs = count / N;
  for (int64_t i = ThreadIndex(); i < packs; i += ThreadCount()) {
    MapLoaded<N>(f, out + i * N, *reinterpret_cast<const Pack<In, N>*>(in + i * N)...);
  }
  for (int64_t i = packs * N + ThreadIndex(); i < count; i += ThreadCount()) {
    out[i] = Narrow<Out>(f(Widen(in[i])...));
  }
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

// The same for the entries of a table: of two operands at most.
template <int kPack, typename F, typename Out, typename... In, size_t... kIn>
__device__ void MapChunk(const MapEntry& entry, int64_t begin, int64_t end,
                         std::index_sequence<kIn...>) {
  Out* const out = static_cast<Out*>(entry.out);
  const bool has_packs =
      IsAligned<kPack>(out) && (IsAligned<kPack>(static_cast<const In*>(entry.in[kIn])) && ...);
  const int64_t packs_end = has_packs ? end - end % kPack : begin;
  for (int64_t i = begin + threadIdx.x * kPack; i < packs_end; i += blockDim.x * kPack) {
    MapLoaded<kPack>(
        F(), out + i,
        *reinterpret_cast<const Pack<In, kPack>*>(static_cast<const In*>(entry.in[kIn]) + i)...);
  }
  for (int64_t i = packs_end + threadIdx.x; i < end; i += blockDim.x) {
    out[i] = Narrow<Out>(F()(Widen(static_cast<const In*>(entry.in[kIn])[i])...));
  }
}

template <int kPack, typename F, typename Out, typename... In>
__global__ void MapTableKernel(const __grid_constant__ MapTable table) {
  const int num_chunks = table.begins[table.num_entries];
  for (int chunk = static_cast<int>(blockIdx.x); chunk < num_chunks;
       chunk += static_cast<int>(gridDim.x)) {
    const TableChunk found = FindChunk(table, chunk);
    const MapEntry& entry = table.entries[found.entry];
    const int64_t begin = found.index * kMapChunk;
    const int64_t end = begin + kMapChunk < entry.count ? begin + kMapChunk : entry.count;
    MapChunk<kPack, F, Out, In...>(entry, begin, end, std::index_sequence_for<In...>());
  }
}

template <typename F, typename Out, typename... In>
LaunchResult MapAll(StreamHandle stream, const MapTable& table) {
  static_assert(sizeof(table) <= kMaxParameterBytes);
  if (table.num_entries == 0) return 0;
  constexpr int kPack = kPackBytes / static_cast<int>(MaxSize<Out, In...>());
  return Launch(&MapTableKernel<kPack, F, Out, In...>, ShapeForChunks(table, kMaxBlocks), stream,
                table);
}

// One operand is a single element in the device's memory.
template <typename T, typename F>
struct WithLeft {
  const T* left;
  __device__ auto operator()(Compute<T> right) const { return F()(Widen(*left), right); }
};
template <typename T, typename F>
struct WithRight {
  const T* right;
  __device__ auto operator()(Compute<T> left) const { return F()(left, Widen(*right)); }
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
    y[i] = Narrow<T>(static_cast<Compute<T>>(first + i / inner % extent));
  }
}

struct BiasAdd {
  template <typename T>
  __device__ static T Value(T x, T b, T) {
    return x + b;
  }
  static constexpr bool kHasGradient = false;
};
template <typename G>
struct BiasGelu {
  template <typename T>
  __device__ static T Value(T x, T b, T) {
    return G::Value(x + b);
  }
  static constexpr bool kHasGradient = false;
};
template <typename G>
struct BiasGeluGrad {
  template <typename T>
  __device__ static T Value(T x, T b, T dy) {
    return dy * G::Slope(x + b);
  }
  static constexpr bool kHasGradient = true;
};

// N divides `size`.
template <int N, typename F, typename T>
__global__ void BiasKernel(int64_t count, int64_t size, const T* x, const T* b, const T* dy, T* y) {
  for (int64_t i = ThreadIndex() * N; i < count; i += ThreadCount() * N) {
    const Values<T, N> in = LoadElements<true, N>(x + i, 1, N);
    const Values<T, N> bias = LoadElements<true, N>(b + i % size, 1, N);
    Values<T, N> gradient = {};
    if constexpr (F::kHasGradient) gradient = LoadElements<true, N>(dy + i, 1, N);
    Values<T, N> out;
    for (int j = 0; j < N; ++j) out.v[j] = F::Value(in.v[j], bias.v[j], gradient.v[j]);
    StoreElements<true, N, T>(out, 1, N, y + i);
  }
}

template <typename F, typename T>
LaunchResult RunBias(StreamHandle stream, int64_t count, int64_t size, const T* x, const T* b,
                     const T* dy, T* y) {
  if (count == 0) return 0;
  constexpr int kPack = kPackOf<T>;
  if (size % kPack == 0 && IsAligned<kPack>(x) && IsAligned<kPack>(b) && IsAligned<kPack>(y) &&
      (!F::kHasGradient || IsAligned<kPack>(dy))) {
    return Launch(&BiasKernel<kPack, F, T>, ShapeForLoop(count / kPack), stream, count, size, x, b,
                  dy, y);
  }
  return Launch(&BiasKernel<1, F, T>, ShapeForLoop(count), stream, count, size, x, b, dy, y);
}

__device__ double ScaledFrequency(const RotaryParams& params, double frequency) {
  const double turns = params.context * frequency / 6.283185307179586476925;
  if (turns < params.low_factor) return frequency / params.factor;
  if (turns > params.high_factor) return frequency;
  const double kept = (turns - params.low_factor) / (params.high_factor - params.low_factor);
  return (1 - kept) * frequency / params.factor + kept * frequency;
}

template <typename T>
__global__ void RotaryKernel(RotaryParams params, const T* x, T* y) {
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
    const auto cosine = static_cast<Compute<T>>(cos(angle));
    const auto sine = static_cast<Compute<T>>(params.is_inverse ? -sin(angle) : sin(angle));
    const Compute<T> a = Widen(x[row * params.width + i]);
    const Compute<T> b = Widen(x[row * params.width + half + i]);
    y[row * params.width + i] = Narrow<T>(a * cosine - b * sine);
    y[row * params.width + half + i] = Narrow<T>(b * cosine + a * sine);
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
  if constexpr (!std::is_integral_v<T>) {
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
  if constexpr (!std::is_integral_v<T>) {
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

template <typename To, typename From>
LaunchResult LaunchCasts(StreamHandle stream, const MapTable& table) {
  return MapAll<CastFunction<To>, To, From>(stream, table);
}

template <typename T>
LaunchResult LaunchAdds(StreamHandle stream, const MapTable& table) {
  return MapAll<AddFunction, T, T, T>(stream, table);
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

template <typename T>
LaunchResult LaunchBias(StreamHandle stream, BiasOp op, int64_t count, int64_t size, const T* x,
                        const T* b, const T* dy, T* y) {
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

template <typename T>
LaunchResult LaunchRotary(StreamHandle stream, const RotaryParams& params, const T* x, T* y) {
  const int64_t count = params.rows * (params.width / 2);
  if (count == 0) return 0;
  return Launch(&RotaryKernel<T>, ShapeForLoop(count), stream, params, x, y);
}

// ---- Instances.

template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const float*, float*);
template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const double*, double*);
template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const BFloat16*, BFloat16*);
template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const Float16*, Float16*);
template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const int32_t*, int32_t*);
template LaunchResult LaunchUnary(StreamHandle, UnaryOp, int64_t, const int64_t*, int64_t*);

template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const float*,
                                   const float*, float*);
template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const double*,
                                   const double*, double*);
template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const BFloat16*,
                                   const BFloat16*, BFloat16*);
template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const Float16*,
                                   const Float16*, Float16*);
template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const int32_t*,
                                   const int32_t*, int32_t*);
template LaunchResult LaunchBinary(StreamHandle, BinaryOp, ScalarSide, int64_t, const int64_t*,
                                   const int64_t*, int64_t*);

template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const float*,
                                    const float*, bool*);
template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const double*,
                                    const double*, bool*);
template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const BFloat16*,
                                    const BFloat16*, bool*);
template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const Float16*,
                                    const Float16*, bool*);
template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const int32_t*,
                                    const int32_t*, bool*);
template LaunchResult LaunchCompare(StreamHandle, CompareOp, ScalarSide, int64_t, const int64_t*,
                                    const int64_t*, bool*);

template LaunchResult LaunchCast(StreamHandle, int64_t, const float*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const float*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const float*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const BFloat16*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const BFloat16*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const BFloat16*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const Float16*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const Float16*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const Float16*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, float*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, BFloat16*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, Float16*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, float*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, BFloat16*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, Float16*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, float*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, BFloat16*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, Float16*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const double*, float*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const double*, double*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const double*, BFloat16*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const double*, Float16*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const double*, int32_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const double*, int64_t*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const double*, bool*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const float*, double*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const BFloat16*, double*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const Float16*, double*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int32_t*, double*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const int64_t*, double*);
template LaunchResult LaunchCast(StreamHandle, int64_t, const bool*, double*);

template LaunchResult LaunchCasts<float, float>(StreamHandle, const MapTable&);
template LaunchResult LaunchCasts<BFloat16, float>(StreamHandle, const MapTable&);
template LaunchResult LaunchCasts<Float16, float>(StreamHandle, const MapTable&);
template LaunchResult LaunchCasts<float, BFloat16>(StreamHandle, const MapTable&);
template LaunchResult LaunchCasts<BFloat16, BFloat16>(StreamHandle, const MapTable&);
template LaunchResult LaunchCasts<Float16, BFloat16>(StreamHandle, const MapTable&);
template LaunchResult LaunchCasts<float, Float16>(StreamHandle, const MapTable&);
template LaunchResult LaunchCasts<BFloat16, Float16>(StreamHandle, const MapTable&);
template LaunchResult LaunchCasts<Float16, Float16>(StreamHandle, const MapTable&);

template LaunchResult LaunchAdds<float>(StreamHandle, const MapTable&);

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

template LaunchResult LaunchBias(StreamHandle, BiasOp, int64_t, int64_t, const float*, const float*,
                                 const float*, float*);
template LaunchResult LaunchBias(StreamHandle, BiasOp, int64_t, int64_t, const double*,
                                 const double*, const double*, double*);
template LaunchResult LaunchBias(StreamHandle, BiasOp, int64_t, int64_t, const BFloat16*,
                                 const BFloat16*, const BFloat16*, BFloat16*);
template LaunchResult LaunchBias(StreamHandle, BiasOp, int64_t, int64_t, const Float16*,
                                 const Float16*, const Float16*, Float16*);

template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, float*);
template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, double*);
template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, BFloat16*);
template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, Float16*);
template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, int32_t*);
template LaunchResult LaunchIota(StreamHandle, int64_t, int64_t, int64_t, int64_t, int64_t*);

template LaunchResult LaunchRotary(StreamHandle, const RotaryParams&, const float*, float*);
template LaunchResult LaunchRotary(StreamHandle, const RotaryParams&, const double*, double*);
template LaunchResult LaunchRotary(StreamHandle, const RotaryParams&, const BFloat16*, BFloat16*);
template LaunchResult LaunchRotary(StreamHandle, const RotaryParams&, const Float16*, Float16*);

}  // namespace penstock::kernels::cuda
