#include "transport/reduce.h"

#include <type_traits>

#include "base/half.h"

namespace penstock::transport {
namespace {

// Signed overflow is undefined, so integers are combined as unsigned.
template <typename T, bool = std::is_integral_v<T>>
struct ArithmeticOf {
  using Type = T;
};
template <typename T>
struct ArithmeticOf<T, true> {
  using Type = std::make_unsigned_t<T>;
};
template <typename T>
using Arithmetic = typename ArithmeticOf<T>::Type;

template <typename T>
struct Sum {
  static T Of(T a, T b) {
    return static_cast<T>(static_cast<Arithmetic<T>>(a) + static_cast<Arithmetic<T>>(b));
  }
};
template <typename T>
struct Prod {
  static T Of(T a, T b) {
    return static_cast<T>(static_cast<Arithmetic<T>>(a) * static_cast<Arithmetic<T>>(b));
  }
};
template <typename T>
struct Max {
  static T Of(T a, T b) { return (a < b) | (b != b) ? b : a; }
};
template <typename T>
struct Min {
  static T Of(T a, T b) { return (b < a) | (b != b) ? b : a; }
};

// Floats of 16 bits: in f32, rounded.
template <typename T, typename Op>
struct InFloat {
  static T Of(T a, T b) { return FromFloat<T>(Op::Of(ToFloat(a), ToFloat(b))); }
};

// Whole blocks of a fixed size first: compilers turn those into vector instructions at any level of
// optimisation. Equal pointers are fine, as element i depends on element i alone.
template <typename T, typename Op>
void Fold(const void* a_bytes, const void* b_bytes, void* out_bytes, int64_t count) {
  constexpr int64_t kBlock = 64 / static_cast<int64_t>(sizeof(T));
  const T* a = static_cast<const T*>(a_bytes);
  const T* b = static_cast<const T*>(b_bytes);
  T* out = static_cast<T*>(out_bytes);
  for (; count >= kBlock; count -= kBlock, a += kBlock, b += kBlock, out += kBlock) {
#pragma GCC ivdep
    for (int64_t i = 0; i < kBlock; ++i) out[i] = Op::Of(a[i], b[i]);
  }
  for (int64_t i = 0; i < count; ++i) out[i] = Op::Of(a[i], b[i]);
}

template <typename T>
FoldFunction FoldOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Fold<T, Sum<T>>;
    case ReduceOp::kMax:
      return Fold<T, Max<T>>;
    case ReduceOp::kMin:
      return Fold<T, Min<T>>;
    case ReduceOp::kProd:
      return Fold<T, Prod<T>>;
  }
  return nullptr;
}

template <typename T>
FoldFunction HalfFoldOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Fold<T, InFloat<T, Sum<float>>>;
    case ReduceOp::kMax:
      return Fold<T, InFloat<T, Max<float>>>;
    case ReduceOp::kMin:
      return Fold<T, InFloat<T, Min<float>>>;
    case ReduceOp::kProd:
      return Fold<T, InFloat<T, Prod<float>>>;
  }
  return nullptr;
}

}  // namespace

FoldFunction FindFold(ReduceOp op, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return FoldOf<float>(op);
    case DType::kF64:
      return FoldOf<double>(op);
    case DType::kI8:
      return FoldOf<int8_t>(op);
    case DType::kU8:
      return FoldOf<uint8_t>(op);
    case DType::kI32:
      return FoldOf<int32_t>(op);
    case DType::kI64:
      return FoldOf<int64_t>(op);
    case DType::kBool:
      // A bool is a byte, 0 or 1.
      return op == ReduceOp::kMax || op == ReduceOp::kMin ? FoldOf<uint8_t>(op) : nullptr;
    case DType::kF16:
      return HalfFoldOf<Float16>(op);
    case DType::kBF16:
      return HalfFoldOf<BFloat16>(op);
  }
  return nullptr;
}

}  // namespace penstock::transport
