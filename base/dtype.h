// Element types of tensors, as named in the graph text format.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_BASE_DTYPE_H_
#define PENSTOCK_BASE_DTYPE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace penstock {

// The type of an element. `kBool` takes a byte, of 0 or 1; the floats of 16 bits have no arithmetic
// of their own in C++ and are converted.
enum class DType : uint8_t { kF32, kF64, kF16, kBF16, kI8, kU8, kI32, kI64, kBool };

// How many there are: their values are 0 to kNumDTypes - 1.
inline constexpr int kNumDTypes = 9;

// Bytes of one element; a bool takes one byte, 0 or 1.
size_t ByteSize(DType dtype);

// The text format's name: "f32", "bool", ...
std::string_view Name(DType dtype);
// The dtype of such a name; nothing if there is none.
std::optional<DType> ParseDType(std::string_view name);

// f32, f64, f16 or bf16.
bool IsFloat(DType dtype);
// i8, u8, i32 or i64; bool is not one.
bool IsInteger(DType dtype);

// The dtype whose elements the C++ type holds: those with arithmetic of their own.
template <typename T>
constexpr DType DTypeOf();
// f32.
template <>
constexpr DType DTypeOf<float>() {
  return DType::kF32;
}
// f64.
template <>
constexpr DType DTypeOf<double>() {
  return DType::kF64;
}
// i8.
template <>
constexpr DType DTypeOf<int8_t>() {
  return DType::kI8;
}
// u8.
template <>
constexpr DType DTypeOf<uint8_t>() {
  return DType::kU8;
}
// i32.
template <>
constexpr DType DTypeOf<int32_t>() {
  return DType::kI32;
}
// i64.
template <>
constexpr DType DTypeOf<int64_t>() {
  return DType::kI64;
}
// bool.
template <>
constexpr DType DTypeOf<bool>() {
  return DType::kBool;
}

}  // namespace penstock

#endif  // PENSTOCK_BASE_DTYPE_H_
