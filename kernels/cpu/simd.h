// Vectors of the processor's widest registers and the elementary functions on them, in the vector
// extension that GCC and Clang share. A vector is never wider than a register: GCC 12 keeps a
// vector of two registers in memory, which costs a factor of 2 to 12.
//
// Kernels work on whole vectors, tails included (LoadPart pads), so an element's bits do not depend
// on where in a tensor or tile it lies.
//
// Floats of 16 bits are loaded as vectors of float and rounded when they are stored (to nearest,
// ties to even). The processor's instruction for bf16 takes denormal numbers for 0.
//
// exp: Cody-Waite reduction to |r| <= ln(2)/2 and the Taylor polynomial (degree 7 for f32, 13 for
// f64); results below the normal numbers are 0. tanh follows from expm1 without cancellation. Every
// function of a NaN is NaN.
// Measured relative errors: exp 0.8e-7, tanh and sigmoid 1.9e-7 in f32; 5e-16 in f64.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_CPU_SIMD_H_
#define PENSTOCK_KERNELS_CPU_SIMD_H_

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <utility>

#include "base/half.h"

namespace penstock::kernels {

#if defined(__AVX512F__)
inline constexpr int kVecBytes = 64;
#elif defined(__AVX__)
inline constexpr int kVecBytes = 32;
#else
inline constexpr int kVecBytes = 16;
#endif

// What kernels compute in: T itself, float for floats of 16 bits.
template <typename T>
using Arith = std::conditional_t<kIsHalf<T>, float, T>;

// Whether kernels compute with vectors of Arith<T>.
template <typename T>
inline constexpr bool kHasVectors = std::is_floating_point_v<Arith<T>>;

template <typename T>
struct VecOf {
  typedef Arith<T> Type __attribute__((vector_size(kVecBytes)));
};
template <typename T>
using Vec = typename VecOf<T>::Type;

template <typename T>
inline constexpr int kLanes = kVecBytes / static_cast<int>(sizeof(Arith<T>));

// The element type of a vector.
template <typename V>
using ElementOf = std::remove_cvref_t<decltype(std::declval<V&>()[0])>;

// The integers of the size of T: signed to compare with, unsigned for arithmetic on bits.
template <typename T>
using IntOf = std::conditional_t<sizeof(T) == 8, int64_t, int32_t>;
template <typename T>
using BitsOf = std::conditional_t<sizeof(T) == 8, uint64_t, uint32_t>;

template <typename T>
inline Vec<T> Splat(T value) {
  return value - Vec<T>{};  // keeps the sign of -0
}

namespace simd_internal {

// The bits of a vector's elements in 16 bits.
typedef uint16_t HalfBits __attribute__((vector_size(kVecBytes / 2)));

#ifdef __AVX512F__
// With it GCC 12 does not warn of the operand that its unmasked intrinsics leave undefined.
inline constexpr __mmask16 kAllLanes = 0xffff;
#endif

template <typename T>
inline Vec<float> Widen(HalfBits bits) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return std::bit_cast<Vec<float>>(__builtin_convertvector(bits, Vec<uint32_t>) << 16);
  } else {
#if defined(__AVX512F__)
    return _mm512_maskz_cvtph_ps(kAllLanes, std::bit_cast<__m256i>(bits));
#elif defined(__F16C__)
    return _mm256_cvtph_ps(std::bit_cast<__m128i>(bits));
#else
    Vec<float> v;
    for (int i = 0; i < kLanes<float>; ++i) v[i] = ToFloat(Float16{bits[i]});
    return v;
#endif
  }
}

template <typename T>
inline HalfBits Narrow(const Vec<float>& v) {
  if constexpr (std::is_same_v<T, BFloat16>) {
#ifdef __AVX512BF16__
    return std::bit_cast<HalfBits>(_mm512_cvtneps_pbh(v));
#else
    const auto bits = std::bit_cast<Vec<uint32_t>>(v);
    const Vec<uint32_t> rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    const Vec<uint32_t> nan = (bits >> 16) | 0x40;
    return __builtin_convertvector(v == v ? rounded : nan, HalfBits);
#endif
  } else {
#if defined(__AVX512F__)
    return std::bit_cast<HalfBits>(_mm512_maskz_cvtps_ph(kAllLanes, v, _MM_FROUND_TO_NEAREST_INT));
#elif defined(__F16C__)
    return std::bit_cast<HalfBits>(_mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
#else
    HalfBits bits;
    for (int i = 0; i < kLanes<float>; ++i) bits[i] = ToFloat16(v[i]).bits;
    return bits;
#endif
  }
}

}  // namespace simd_internal

template <typename T>
inline Vec<T> Load(const T* from) {
  if constexpr (kIsHalf<T>) {
    simd_internal::HalfBits bits;
    std::memcpy(&bits, from, sizeof(bits));
    return simd_internal::Widen<T>(bits);
  } else {
    Vec<T> v;
    std::memcpy(&v, from, sizeof(v));
    return v;
  }
}
template <typename T>
inline void Store(T* to, const Vec<T>& v) {
  if constexpr (kIsHalf<T>) {
    const simd_internal::HalfBits bits = simd_internal::Narrow<T>(v);
    std::memcpy(static_cast<void*>(to), &bits, sizeof(bits));
  } else {
    std::memcpy(to, &v, sizeof(v));
  }
}

// The first `count` elements, the others `padding`; 0 <= count < kLanes. GCC and Clang make no
// masked moves of the loops.
template <typename T>
inline Vec<T> LoadPart(const T* from, int64_t count, Arith<T> padding = {}) {
  Vec<T> v = Splat(padding);
#ifdef __AVX512F__
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_mask_loadu_ps(v, static_cast<__mmask16>((1u << count) - 1), from);
  } else if constexpr (std::is_same_v<T, double>) {
    return _mm512_mask_loadu_pd(v, static_cast<__mmask8>((1u << count) - 1), from);
  }
#endif
  for (int64_t i = 0; i < count; ++i) {
    if constexpr (kIsHalf<T>) {
      v[i] = ToFloat(from[i]);
    } else {
      v[i] = from[i];
    }
  }
  return v;
}
template <typename T>
inline void StorePart(T* to, const Vec<T>& v, int64_t count) {
#ifdef __AVX512F__
  if constexpr (std::is_same_v<T, float>) {
    return _mm512_mask_storeu_ps(to, static_cast<__mmask16>((1u << count) - 1), v);
  } else if constexpr (std::is_same_v<T, double>) {
    return _mm512_mask_storeu_pd(to, static_cast<__mmask8>((1u << count) - 1), v);
  }
#endif
  if constexpr (kIsHalf<T>) {
    const simd_internal::HalfBits bits = simd_internal::Narrow<T>(v);
    std::memcpy(static_cast<void*>(to), &bits, count * sizeof(T));
  } else {
    for (int64_t i = 0; i < count; ++i) to[i] = v[i];
  }
}

// v with 0 in all elements but the first `count`.
template <typename V>
inline V FirstLanes(V v, int64_t count) {
  using T = ElementOf<V>;
  Vec<IntOf<T>> lane;
  for (int i = 0; i < kLanes<T>; ++i) lane[i] = i;
  return lane < static_cast<IntOf<T>>(count) ? v : V{};
}

// f of each element, for functions that have no vector form.
template <typename V, typename F>
inline V PerLane(V x, F f) {
  using T = ElementOf<V>;
  alignas(kVecBytes) T lanes[kLanes<T>];
  Store(lanes, x);
  for (T& lane : lanes) lane = f(lane);
  return Load(lanes);
}

template <typename V>
inline V Sqrt(V x) {
  return PerLane(x, [](ElementOf<V> s) { return std::sqrt(s); });
}

// Signs are bits.
template <typename V>
inline constexpr BitsOf<ElementOf<V>> kSignBit =
    BitsOf<ElementOf<V>>{1} << (8 * sizeof(ElementOf<V>) - 1);
template <typename V>
inline V Abs(V x) {
  return std::bit_cast<V>(std::bit_cast<Vec<BitsOf<ElementOf<V>>>>(x) & ~kSignBit<V>);
}

// The magnitude of x with the sign of y.
template <typename V>
inline V CopySign(V x, V y) {
  using Bits = Vec<BitsOf<ElementOf<V>>>;
  return std::bit_cast<V>((std::bit_cast<Bits>(x) & ~kSignBit<V>) |
                          (std::bit_cast<Bits>(y) & kSignBit<V>));
}

// Larger of the two; NaN when either is.
template <typename V>
inline V Max(V x, V y) {
  return (x > y) | (x != x) ? x : y;
}

// The lanes folded in halves: 16 to 8 to 4 to 2 to 1. f takes vectors of any size, and elements.
template <typename V, typename F>
inline ElementOf<V> FoldLanes(V x, F f) {
  using T = ElementOf<V>;
  if constexpr (sizeof(V) > 16) {
    typedef T Half __attribute__((vector_size(sizeof(V) / 2)));
    struct Halves {
      Half low;
      Half high;
    };
    const auto [low, high] = std::bit_cast<Halves>(x);
    return FoldLanes(f(low, high), f);
  } else if constexpr (sizeof(T) == 4) {
    return f(f(T(x[0]), T(x[2])), f(T(x[1]), T(x[3])));
  } else {
    return f(T(x[0]), T(x[1]));
  }
}
template <typename V>
inline ElementOf<V> SumLanes(V x) {
  return FoldLanes(x, [](auto a, auto b) { return a + b; });
}
template <typename V>
inline ElementOf<V> MaxLanes(V x) {
  return FoldLanes(x, [](auto a, auto b) { return Max(a, b); });
}

namespace simd_internal {

template <typename T>
struct ExpConstants;
template <>
struct ExpConstants<float> {
  static constexpr int kDegree = 7;
  static constexpr float kMin = -87.336544f;  // exp is not a normal number below,
  static constexpr float kMax = 88.722831f;   // and infinite above
  static constexpr float kLn2High = 0.693359375f;
  static constexpr float kLn2Low = -2.12194440e-4f;
  static constexpr float kRound = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer,
  static constexpr int kMantissaBits = 23;      // which then is the low bits of the sum
  static constexpr uint32_t kBias = 127;
};
template <>
struct ExpConstants<double> {
  static constexpr int kDegree = 13;
  static constexpr double kMin = -708.39641853226408;
  static constexpr double kMax = 709.78271289338397;
  static constexpr double kLn2High = 6.93147180369123816490e-01;
  static constexpr double kLn2Low = 1.90821492927058770002e-10;
  static constexpr double kRound = 6755399441055744.0;  // 1.5 * 2^52
  static constexpr int kMantissaBits = 52;
  static constexpr uint64_t kBias = 1023;
};

// x = n ln(2) + r: expm1(r), and n where the exponent of a float is.
template <typename V>
struct ReducedExp {
  V expm1;
  Vec<BitsOf<ElementOf<V>>> exponent;
};
template <typename V>
inline ReducedExp<V> ReduceExp(V x) {
  using T = ElementOf<V>;
  using C = ExpConstants<T>;
  const V shifted = x * T(1.4426950408889634074) + C::kRound;
  const V n = shifted - C::kRound;
  const V r = (x - n * C::kLn2High) - n * C::kLn2Low;
  // Horner's rule on r + r^2/2! + ...
  double factorial = 1;
  for (int i = 2; i <= C::kDegree; ++i) factorial *= i;
  V sum = Splat(static_cast<T>(1 / factorial));
  for (int i = C::kDegree; i > 1; --i) {
    factorial /= i;
    sum = sum * r + static_cast<T>(1 / factorial);
  }
  return {sum * r, std::bit_cast<Vec<BitsOf<T>>>(shifted) << C::kMantissaBits};
}

}  // namespace simd_internal

// exp of what is at most kMax and may be -infinity; anything for NaN.
template <typename V>
inline V ExpOfSmall(V x) {
  using T = ElementOf<V>;
  const auto [expm1, exponent] = simd_internal::ReduceExp(x);
  const V y = std::bit_cast<V>(std::bit_cast<Vec<BitsOf<T>>>(expm1 + 1) + exponent);
  return x < simd_internal::ExpConstants<T>::kMin ? V{} : y;
}

template <typename V>
inline V Exp(V x) {
  using T = ElementOf<V>;
  // The sum is infinity or, for a NaN, NaN.
  const V large = x + std::numeric_limits<T>::infinity();
  return x <= simd_internal::ExpConstants<T>::kMax ? ExpOfSmall(x) : large;
}

template <typename V>
inline V Tanh(V x) {
  using T = ElementOf<V>;
  using C = simd_internal::ExpConstants<T>;
  // tanh(|x|) = -e / (e + 2) with e = expm1(-2|x|), which is -1 to the last bit from -40 down.
  V y = Abs(x) * T(-2);
  y = y < T(-40) ? Splat(T(-40)) : y;
  const auto [expm1, exponent] = simd_internal::ReduceExp(y);
  const V power = std::bit_cast<V>(exponent + (C::kBias << C::kMantissaBits));
  const V e = power * expm1 + (power - 1);
  return CopySign(e / (e + 2), x);
}

template <typename V>
inline V Sigmoid(V x) {
  return 1 / (1 + Exp(V{} - x));
}

// For x >= 0: sigmoid(x) and its complement sigmoid(-x), both to full relative accuracy; anything
// for NaN.
template <typename V>
struct SigmoidPair {
  V larger;
  V smaller;
};
template <typename V>
inline SigmoidPair<V> SigmoidOfPositive(V x) {
  const V t = ExpOfSmall(V{} - x);
  const V larger = 1 / (1 + t);
  return {larger, t * larger};
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_SIMD_H_
