// Launches of the kernels that go over tensors element by element. Any operand may be the memory of
// the result where it has the same type and size; where all addresses are multiples of 16 bytes,
// 16 bytes move at a time.
//
// Thread rule: pure functions but for the work that they give to the stream.

#ifndef PENSTOCK_KERNELS_CUDA_ELEMENTWISE_H_
#define PENSTOCK_KERNELS_CUDA_ELEMENTWISE_H_

#include <cstdint>

#include "base/half.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/launch_table.h"

namespace penstock::kernels::cuda {

enum class UnaryOp {
  kAbs,
  kNeg,
  kRelu,
  kSquare,
  // Of floats only:
  kExp,
  kLog,
  kTanh,
  kSqrt,
  kRsqrt,
  kSin,
  kCos,
  kSigmoid,
  kSilu,
  kTanhGelu,
  kExactGelu,
};

enum class BinaryOp {
  kAdd,
  kSub,
  kMul,
  kDiv,
  kMax,
  kMin,
  // Of floats only: (x, dy) -> dx.
  kTanhGeluGrad,
  kExactGeluGrad,
};

enum class CompareOp { kEqual, kLess, kGreater };

// Which operand of a binary operation is one element that goes with all of the other's.
enum class ScalarSide { kNone, kLeft, kRight };

// T: float, double, BFloat16, Float16, int32_t or int64_t. Integers wrap; x / 0 is 0.
template <typename T>
LaunchResult LaunchUnary(StreamHandle stream, UnaryOp op, int64_t count, const T* x, T* y);
template <typename T>
LaunchResult LaunchBinary(StreamHandle stream, BinaryOp op, ScalarSide scalar, int64_t count,
                          const T* x, const T* y, T* z);
template <typename T>
LaunchResult LaunchCompare(StreamHandle stream, CompareOp op, ScalarSide scalar, int64_t count,
                           const T* x, const T* y, bool* z);

// Of many tensors at once. `count` elements, which are not 0, of operands `in` and result `out`.
struct MapEntry {
  int64_t count = 0;
  const void* in[2] = {};
  void* out = nullptr;
};
using MapTable = LaunchTable<MapEntry, 112>;
inline constexpr int64_t kMapChunk = 4096;  // elements of a chunk of the table

// To, From: float, BFloat16 or Float16.
template <typename To, typename From>
LaunchResult LaunchCasts(StreamHandle stream, const MapTable& table);
// T: float.
template <typename T>
LaunchResult LaunchAdds(StreamHandle stream, const MapTable& table);

// To, From: float, double, BFloat16, Float16, int32_t, int64_t or bool, but none of the pairs that
// LaunchCasts has.
template <typename To, typename From>
LaunchResult LaunchCast(StreamHandle stream, int64_t count, const From* x, To* y);

// T: the unsigned integer of the elements' size. Step 0 repeats a scalar operand.
template <typename T>
LaunchResult LaunchWhere(StreamHandle stream, int64_t count, const bool* condition,
                         int64_t condition_step, const T* x, int64_t x_step, const T* y,
                         int64_t y_step, T* z);
template <typename T>
LaunchResult LaunchFill(StreamHandle stream, int64_t count, T value, T* y);

// In what follows T is float, double, BFloat16 or Float16 unless there is more said.

// What goes with x[..., size] and b[size]; dy only for the gradient.
enum class BiasOp { kAdd, kTanhGelu, kExactGelu, kTanhGeluGrad, kExactGeluGrad };
template <typename T>
LaunchResult LaunchBias(StreamHandle stream, BiasOp op, int64_t count, int64_t size, const T* x,
                        const T* b, const T* dy, T* y);

// y[i] = first + i / inner % extent. T: also int32_t or int64_t.
template <typename T>
LaunchResult LaunchIota(StreamHandle stream, int64_t count, int64_t first, int64_t inner,
                        int64_t extent, T* y);

// Rotates the points (x[i], x[i + width / 2]) of rows of `width` by the angle
// position * frequency, where frequency is base^(-2 i / width) or, as graph/rotary_scaling.h says,
// less: divided by `factor` where it is fewer than low_factor turns in `context` positions, and
// blended up to high_factor turns. Row r is of position `first` + (r / heads) % positions, plus
// start[r / (heads * positions)] where there are starts.
struct RotaryParams {
  int64_t rows = 0;
  int64_t heads = 1;  // rows of one position
  int64_t positions = 1;
  int64_t width = 0;
  int64_t first = 0;
  double base = 1e4;
  double factor = 1;
  double low_factor = -1;  // and high_factor: no frequency is scaled
  double high_factor = -1;
  double context = 0;
  bool is_inverse = false;
  Indices start;  // data null: none
};
template <typename T>
LaunchResult LaunchRotary(StreamHandle stream, const RotaryParams& params, const T* x, T* y);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_ELEMENTWISE_H_
