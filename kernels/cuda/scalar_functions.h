// Functions of single elements for the kernels of this folder. The formulas are those of the CPU
// kernels, which say where they come from.
//
// Thread rule: device functions without state.

#ifndef PENSTOCK_KERNELS_CUDA_SCALAR_FUNCTIONS_H_
#define PENSTOCK_KERNELS_CUDA_SCALAR_FUNCTIONS_H_

#include <type_traits>

#include "kernels/cuda/simt.h"

namespace penstock::kernels::cuda {

// One name for f32 and f64.
__device__ inline float Abs(float x) { return fabsf(x); }
__device__ inline double Abs(double x) { return fabs(x); }
__device__ inline float Exp(float x) { return expf(x); }
__device__ inline double Exp(double x) { return exp(x); }
__device__ inline float Erfc(float x) { return erfcf(x); }
__device__ inline double Erfc(double x) { return erfc(x); }

// Sums and products of integers wrap: they are formed in an unsigned type.
template <typename T>
struct WrappingOf {
  using Type = T;
};
template <>
struct WrappingOf<int32_t> {
  using Type = uint32_t;
};
template <>
struct WrappingOf<int64_t> {
  using Type = uint64_t;
};
template <typename T>
using Wrapping = typename WrappingOf<T>::Type;

struct AddFunction {
  template <typename T>
  __device__ T operator()(T x, T y) const {
    return static_cast<T>(static_cast<Wrapping<T>>(x) + static_cast<Wrapping<T>>(y));
  }
};
struct SubFunction {
  template <typename T>
  __device__ T operator()(T x, T y) const {
    return static_cast<T>(static_cast<Wrapping<T>>(x) - static_cast<Wrapping<T>>(y));
  }
};
struct MulFunction {
  template <typename T>
  __device__ T operator()(T x, T y) const {
    return static_cast<T>(static_cast<Wrapping<T>>(x) * static_cast<Wrapping<T>>(y));
  }
};
// Division by zero gives 0 for integers, and division by -1 wraps.
struct DivFunction {
  template <typename T>
  __device__ T operator()(T x, T y) const {
    if constexpr (std::is_integral_v<T>) {
      if (y == 0) return 0;
      if (y == -1) return SubFunction()(T{0}, x);
    }
    return x / y;
  }
};
// NaN where either is.
struct MaxFunction {
  template <typename T>
  __device__ T operator()(T x, T y) const {
    return (x > y || x != x) ? x : y;
  }
};
struct MinFunction {
  template <typename T>
  __device__ T operator()(T x, T y) const {
    return (x < y || x != x) ? x : y;
  }
};

struct AbsFunction {
  template <typename T>
  __device__ T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return x < 0 ? SubFunction()(T{0}, x) : x;
    } else {
      return Abs(x);
    }
  }
};
struct NegFunction {
  template <typename T>
  __device__ T operator()(T x) const {
    if constexpr (std::is_integral_v<T>) {
      return SubFunction()(T{0}, x);
    } else {
      return -x;
    }
  }
};
struct ReluFunction {
  template <typename T>
  __device__ T operator()(T x) const {
    return x < T{0} ? T{0} : x;
  }
};
struct SquareFunction {
  template <typename T>
  __device__ T operator()(T x) const {
    return MulFunction()(x, x);
  }
};
struct ExpFunction {
  template <typename T>
  __device__ T operator()(T x) const {
    return Exp(x);
  }
};
struct LogFunction {
  __device__ float operator()(float x) const { return logf(x); }
  __device__ double operator()(double x) const { return log(x); }
};
struct TanhFunction {
  __device__ float operator()(float x) const { return tanhf(x); }
  __device__ double operator()(double x) const { return tanh(x); }
};
struct SqrtFunction {
  __device__ float operator()(float x) const { return sqrtf(x); }
  __device__ double operator()(double x) const { return sqrt(x); }
};
struct RsqrtFunction {
  __device__ float operator()(float x) const { return rsqrtf(x); }
  __device__ double operator()(double x) const { return rsqrt(x); }
};
struct SinFunction {
  __device__ float operator()(float x) const { return sinf(x); }
  __device__ double operator()(double x) const { return sin(x); }
};
struct CosFunction {
  __device__ float operator()(float x) const { return cosf(x); }
  __device__ double operator()(double x) const { return cos(x); }
};
struct SigmoidFunction {
  template <typename T>
  __device__ T operator()(T x) const {
    return 1 / (1 + Exp(-x));
  }
};
struct SiluFunction {
  template <typename T>
  __device__ T operator()(T x) const {
    return x / (1 + Exp(-x));
  }
};

// See kernels/cpu/gelu.h. T: float or double.
struct TanhGelu {
  template <typename T>
  static constexpr T kInner = T(1.5957691216057307118);  // 2 sqrt(2/pi)
  template <typename T>
  static constexpr T kCubic = T(0.044715) * kInner<T>;
  static constexpr int kFlat = 30;  // sigmoid(2u) is 0 or 1 beyond

  template <typename T>
  __device__ static T Value(T x) {
    return x / (1 + Exp(x * (-kInner<T> - kCubic<T> * x * x)));
  }
  template <typename T>
  __device__ static T Slope(T x) {
    const T magnitude = Abs(x);
    const T y = magnitude > kFlat ? kFlat : magnitude;
    const T square = y * y;
    const T e = Exp(-y * (kInner<T> + kCubic<T> * square));
    const T larger = 1 / (1 + e);
    const T smaller = e / (1 + e);
    const T rest = y * (kInner<T> + 3 * kCubic<T> * square) * larger * smaller;
    return x > 0 ? larger + rest : smaller - rest;
  }
};
struct ExactGelu {
  static constexpr int kFlat = 40;  // Phi is 0 or 1 beyond

  template <typename T>
  __device__ static T Phi(T x) {
    return T(0.5) * Erfc(x * T(-0.70710678118654752440));
  }
  template <typename T>
  __device__ static T Value(T x) {
    return x * Phi(x);
  }
  template <typename T>
  __device__ static T Slope(T x) {
    const T y = x > kFlat ? kFlat : x < -kFlat ? -kFlat : x;  // NaN stays
    return Phi(y) + y * T(0.39894228040143267794) * Exp(y * y * T(-0.5));
  }
};

template <typename G>
struct GeluFunction {
  template <typename T>
  __device__ T operator()(T x) const {
    return G::Value(x);
  }
};
template <typename G>
struct GeluGradFunction {
  template <typename T>
  __device__ T operator()(T x, T dy) const {
    return dy * G::Slope(x);
  }
};

// See kernels/cpu/cast.cc: floats are truncated and saturate, NaN gives 0.
template <typename To>
struct CastFunction {
  template <typename From>
  __device__ Compute<To> operator()(From x) const {
    if constexpr (std::is_same_v<To, bool>) {
      return x != From{};
    } else if constexpr (std::is_floating_point_v<From> && std::is_integral_v<To>) {
      constexpr To kHighest =
          static_cast<To>(~(static_cast<Wrapping<To>>(1) << (8 * sizeof(To) - 1)));
      constexpr To kLowest = -kHighest - 1;
      if (x != x) return 0;
      if (x <= static_cast<From>(kLowest)) return kLowest;
      return x >= static_cast<From>(kHighest) ? kHighest : static_cast<To>(x);
    } else {
      return static_cast<Compute<To>>(x);
    }
  }
};

// ---- Counter-based random numbers, bit for bit those of base/random.h.

struct RandomWords {
  uint32_t v[4];
};

__device__ inline RandomWords DrawWords(uint64_t seed, uint32_t stream, uint32_t step,
                                        uint64_t block) {
  uint32_t c0 = static_cast<uint32_t>(block);
  uint32_t c1 = static_cast<uint32_t>(block >> 32);
  uint32_t c2 = stream;
  uint32_t c3 = step;
  uint32_t k0 = static_cast<uint32_t>(seed);
  uint32_t k1 = static_cast<uint32_t>(seed >> 32);
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * c0;
    const uint64_t p1 = uint64_t{0xCD9E8D57} * c2;
    const uint32_t n0 = static_cast<uint32_t>(p1 >> 32) ^ c1 ^ k0;
    const uint32_t n2 = static_cast<uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<uint32_t>(p1);
    c3 = static_cast<uint32_t>(p0);
    c0 = n0;
    c2 = n2;
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {{c0, c1, c2, c3}};
}

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_SCALAR_FUNCTIONS_H_
