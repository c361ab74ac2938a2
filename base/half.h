// The floats of 16 bits as C++ types: they hold values, arithmetic is that of float.
//
// BFloat16 is the upper half of an IEEE float: 8 bits of exponent, 7 of mantissa. Float16 is IEEE
// binary16: 5 bits of exponent, 10 of mantissa.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_HALF_H_
#define PENSTOCK_BASE_HALF_H_

#include <bit>
#include <cstdint>
#include <type_traits>

#include "base/dtype.h"

namespace penstock {

// A value of DType::kBF16.
struct BFloat16 {
  uint16_t bits = 0;  // as they lie in memory
};
// A value of DType::kF16.
struct Float16 {
  uint16_t bits = 0;  // as they lie in memory
};

// bf16.
template <>
constexpr DType DTypeOf<BFloat16>() {
  return DType::kBF16;
}
// f16.
template <>
constexpr DType DTypeOf<Float16>() {
  return DType::kF16;
}

// Whether values of the type have 16 bits.
constexpr bool IsHalf(DType dtype) { return dtype == DType::kBF16 || dtype == DType::kF16; }

// The same of a C++ type.
template <typename T>
inline constexpr bool kIsHalf = std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>;

// Exact.
inline float ToFloat(BFloat16 x) { return std::bit_cast<float>(uint32_t{x.bits} << 16); }

// Exact; subnormal numbers are kept.
inline float ToFloat(Float16 x) {
  const uint32_t sign = uint32_t{x.bits & 0x8000u} << 16;
  const uint32_t magnitude = x.bits & 0x7fffu;
  uint32_t bits = (magnitude << 13) + 0x38000000;
  if (magnitude >= 0x7c00) {
    bits = (magnitude << 13) | 0x7f800000;  // infinity or not a number
  } else if (magnitude < 0x400) {
    // In steps of 2^-24: the mantissa behind the exponent of 1/2, less 1/2.
    bits = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude + 0x3f000000) - 0.5f);
  }
  return std::bit_cast<float>(sign | bits);
}

// Rounded to nearest, ties to even; NaN stays NaN.
inline BFloat16 ToBFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffff) > 0x7f800000) return {static_cast<uint16_t>((bits >> 16) | 0x40)};
  return {static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16)};
}

// The same; what is 65520 or more is infinite.
inline Float16 ToFloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const uint32_t sign = bits >> 16 & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  uint32_t half = 0;
  if (magnitude > 0x7f800000) {
    half = 0x7e00;  // not a number
  } else if (magnitude >= 0x477ff000) {
    half = 0x7c00;
  } else if (magnitude < 0x38800000) {
    // Below 2^-14 in steps of 2^-24, which is what a sum with 1/2 is rounded to.
    half = std::bit_cast<uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) - 0x3f000000;
  } else {
    half = (magnitude - 0x38000000 + 0xfff + (magnitude >> 13 & 1)) >> 13;
  }
  return {static_cast<uint16_t>(sign | half)};
}

// The value in another type: rounded as above if that has 16 bits, and as C++ converts it else.
template <typename T>
T FromFloat(float value) {
  if constexpr (std::is_same_v<T, BFloat16>) {
    return ToBFloat16(value);
  } else if constexpr (std::is_same_v<T, Float16>) {
    return ToFloat16(value);
  } else {
    return static_cast<T>(value);
  }
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_HALF_H_
