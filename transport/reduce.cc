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

inline float InF32(float x) { return x; }
template <typename T>
float InF32(T x) {
  return ToFloat(x);
}

// Floats of 16 bits: in f32, rounded if `Out` has 16 bits.
template <typename Out, typename Op>
struct InFloat {
  template <typename A, typename B>
  static Out Of(A a, B b) {
    return FromFloat<Out>(Op::Of(InF32(a), InF32(b)));
  }
};

// Whole blocks of a fixed size first: compilers turn those into vector instructions at any level of
// optimisation. Equal pointers are fine, as element i depends on element i alone.
template <typename A, typename B, typename Out, typename Op>
void Fold(const void* a_bytes, const void* b_bytes, void* out_bytes, int64_t count) {
  constexpr int64_t kBlock = 64 / static_cast<int64_t>(sizeof(B));
  const A* a = static_cast<const A*>(a_bytes);
  const B* b = static_cast<const B*>(b_bytes);
  Out* out = static_cast<Out*>(out_bytes);
  for (; count >= kBlock; count -= kBlock, a += kBlock, b += kBlock, out += kBlock) {
#pragma GCC ivdep
    for (int64_t i = 0; i < kBlock; ++i) out[i] = Op::Of(a[i], b[i]);
  }
  for (int64_t i = 0; i < count; ++i) out[i] = Op::Of(a[i], b[i]);
}

template <typename T, typename Op>
FoldSteps StepsOf() {
  if constexpr (kIsHalf<T>) {
    using Narrow = InFloat<T, Op>;
    using Wide = InFloat<float, Op>;
    return {Fold<T, T, T, Narrow>, Fold<T, T, float, Wide>, Fold<float, T, float, Wide>,
            Fold<float, T, T, Narrow>, sizeof(float)};
  } else {
    const FoldFunction fold = Fold<T, T, T, Op>;
    return {fold, fold, fold, fold, sizeof(T)};
  }
}

template <typename T>
FoldSteps StepsOf(ReduceOp op) {
  using Compute = std::conditional_t<kIsHalf<T>, float, T>;
  switch (op) {
    case ReduceOp::kSum:
      return StepsOf<T, Sum<Compute>>();
    case ReduceOp::kMax:
      return StepsOf<T, Max<Compute>>();
    case ReduceOp::kMin:
      return StepsOf<T, Min<Compute>>();
    case ReduceOp::kProd:
      return StepsOf<T, Prod<Compute>>();
  }
  return {};
}

}  // namespace

FoldFunction FindFold(ReduceOp op, DType dtype) { return FindFoldSteps(op, dtype).pair; }

FoldSteps FindFoldSteps(ReduceOp op, DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return StepsOf<float>(op);
    case DType::kF64:
      return StepsOf<double>(op);
    case DType::kI8:
      return StepsOf<int8_t>(op);
    case DType::kU8:
      return StepsOf<uint8_t>(op);
    case DType::kI32:
      return StepsOf<int32_t>(op);
    case DType::kI64:
      return StepsOf<int64_t>(op);
    case DType::kBool:
      // A bool is a byte, 0 or 1.
      if (op != ReduceOp::kMax && op != ReduceOp::kMin) return {};
      return StepsOf<uint8_t>(op);
    case DType::kF16:
      return StepsOf<Float16>(op);
    case DType::kBF16:
      return StepsOf<BFloat16>(op);
  }
  return {};
}

void FoldTerms(const FoldSteps& steps, absl::Span<const std::byte* const> terms, void* partial,
               void* out, int64_t count) {
  const size_t last = terms.size() - 1;
  if (last == 1) {
    steps.pair(terms[0], terms[1], out, count);
    return;
  }
  steps.first(terms[0], terms[1], partial, count);
  for (size_t t = 2; t < last; ++t) steps.middle(partial, terms[t], partial, count);
  steps.last(partial, terms[last], out, count);
}

}  // namespace penstock::transport
