// What every CPU kernel shares: the base class, the choice of a C++ type by dtype, and the
// arithmetic of tiles.
//
// A kernel is one file with one function `KernelDef XKernel()` and one line in cpu_kernels.cc.
//
// Thread rule: as kernel.h. A kernel object keeps its spec and the device's pool, and no state that
// outlives a Run.

#ifndef PENSTOCK_KERNELS_CPU_CPU_KERNEL_H_
#define PENSTOCK_KERNELS_CPU_CPU_KERNEL_H_

#include <concepts>
#include <cstdint>
#include <memory>
#include <string_view>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/half.h"
#include "base/status_macros.h"
#include "base/thread_pool.h"
#include "kernels/kernel.h"
#include "kernels/tile.h"

namespace penstock::kernels {

// Elements (or elementary operations) below which another thread does not pay for its wake-up.
inline constexpr int64_t kGrain = 16384;

// Rows of `row_size` elements that make up a grain; at least 1.
inline int64_t GrainRows(int64_t row_size) {
  return row_size >= kGrain ? 1 : kGrain / (row_size > 0 ? row_size : 1);
}

// A kernel that runs where it is called, on the threads of the device's pool.
class CpuKernel : public Kernel {
 public:
  // REQUIRES: the device has a thread pool (CreateKernel checks it).
  CpuKernel(const KernelSpec& spec, Device& device) : spec_(spec), pool_(*device.thread_pool()) {}

 protected:
  // Whether this run adds to its outputs instead of overwriting them.
  bool AddsToOutputs(const KernelArgs& args) const {
    return spec_.accumulate && args.microbatch != 0;
  }

  const KernelSpec spec_;  // the operator, its attributes and the tiles of its operands and results
  ThreadPool& pool_;       // of the device, which outlives the kernel
};

// The elements of input `i`. REQUIRES: T holds its dtype.
template <typename T>
const T* Input(const KernelArgs& args, int i) {
  return static_cast<const T*>(args.inputs[i]);
}
// The elements of output `i`. REQUIRES: T holds its dtype.
template <typename T>
T* Output(const KernelArgs& args, int i) {
  return static_cast<T*>(args.outputs[i]);
}

// ---- Types by dtype.

// Types that hold elements, for DispatchDType.
template <typename... Ts>
struct TypeList {};

// Floats with arithmetic of their own.
using Floats = TypeList<float, double>;
// Of the floats of 16 bits, kernels that take much of a step's time have bf16 themselves. All
// others take them by conversion (converting.h).
using FloatsAndBFloat16 = TypeList<float, double, BFloat16>;
// Kernels that read the largest tensors, such as logits, take both floats of 16 bits themselves: to
// convert them would need a copy of twice their size.
using AllFloats = TypeList<float, double, BFloat16, Float16>;
// All integers; bool is none.
using Integers = TypeList<int8_t, uint8_t, int32_t, int64_t>;
// Floats and integers with arithmetic of their own.
using Numbers = TypeList<float, double, int8_t, uint8_t, int32_t, int64_t>;
// The same with bf16, as in FloatsAndBFloat16.
using NumbersAndBFloat16 = TypeList<float, double, int8_t, uint8_t, int32_t, int64_t, BFloat16>;
// The same with both floats of 16 bits, as in AllFloats.
using NumbersAndHalves =
    TypeList<float, double, int8_t, uint8_t, int32_t, int64_t, BFloat16, Float16>;
// What C++ has a type for: all dtypes but the floats of 16 bits.
using Natives = TypeList<float, double, int8_t, uint8_t, int32_t, int64_t, bool>;

// kUnimplemented, with the names of both.
absl::Status UnsupportedDType(std::string_view op, DType dtype);

// f(std::type_identity<T>()) for the T of the list that holds `dtype`; kUnimplemented, naming the
// operator and the dtype, when none does. f returns absl::Status.
template <typename... Ts, typename F>
absl::Status DispatchDType(TypeList<Ts...>, std::string_view op, DType dtype, F&& f) {
  absl::Status status;
  const bool is_known =
      ((dtype == DTypeOf<Ts>() && (status = f(std::type_identity<Ts>()), true)) || ...);
  return is_known ? status : UnsupportedDType(op, dtype);
}

// A kernel that was made, or why it could not be.
using KernelOr = absl::StatusOr<std::unique_ptr<Kernel>>;

// An error unless the device is one that CPU kernels run on.
absl::Status CheckDevice(const KernelSpec& spec, Device& device);

// The dtype that a kernel computes in: that of its first operand, or of its result when it has
// none.
inline DType MainDType(const KernelSpec& spec) {
  return spec.inputs.empty() ? spec.outputs[0].dtype : spec.inputs[0].dtype;
}

// K<T>(spec, device, extra...) with T by the main dtype. A CPU kernel runs where it is called, so
// the stream does not matter to it.
template <template <typename> class K, typename Types, typename... Extra>
KernelOr CreateKernel(const KernelSpec& spec, Device& device, Stream&, Extra... extra) {
  RETURN_IF_ERROR(CheckDevice(spec, device));
  std::unique_ptr<Kernel> kernel;
  RETURN_IF_ERROR(
      DispatchDType(Types(), spec.op, MainDType(spec), [&]<typename T>(std::type_identity<T>) {
        kernel = std::make_unique<K<T>>(spec, device, extra...);
        return absl::OkStatus();
      }));
  return kernel;
}

// K<U>(spec, device) with U the unsigned integer of the size of the result's elements: for kernels
// that only move elements, which therefore take every dtype.
template <template <typename> class K>
KernelOr CreateBySize(const KernelSpec& spec, Device& device, Stream&) {
  RETURN_IF_ERROR(CheckDevice(spec, device));
  switch (ByteSize(spec.outputs[0].dtype)) {
    case 1:
      return std::make_unique<K<uint8_t>>(spec, device);
    case 2:
      return std::make_unique<K<uint16_t>>(spec, device);
    case 4:
      return std::make_unique<K<uint32_t>>(spec, device);
    default:
      return std::make_unique<K<uint64_t>>(spec, device);
  }
}

// ---- Tiles.

// Elements of one step in the last dimension, and how many of those there are: a tensor as a
// matrix of rows. A scalar is one row of one element.
struct Rows {
  int64_t count = 1;  // product of the extents but the last
  int64_t size = 1;   // elements of each: the last extent
};
// The rows of a tile.
inline Rows RowsOf(const TileDesc& tile) {
  if (tile.shape.empty()) return {};
  Rows rows{1, tile.shape.back()};
  for (int i = 0; i + 1 < Rank(tile); ++i) rows.count *= tile.shape[i];
  return rows;
}

// Maps positions in a tile to row-major indices in its global tensor.
//
// Example: the tile [2, 3] at offset (4, 1) of a tensor [8, 5]: positions 0 1 2 3 4 5 have the
// global indices 21 22 23 26 27 28, in runs of 3.
class TileIndex {
 public:
  // The positions of `tile`, which is copied.
  explicit TileIndex(const TileDesc& tile);

  // Longest stretch of positions, starting at its multiples, whose global indices are consecutive.
  int64_t run_length() const { return run_length_; }

  // The global index of a position, which in a tensor split over micro-batches depends on which one
  // runs. REQUIRES: 0 <= position < elements of the tile.
  int64_t GlobalIndex(int64_t position, int64_t microbatch) const;

  // body(position, global_index, length) for each piece of [begin, end) with consecutive indices.
  template <typename F>
  void ForEachRun(int64_t begin, int64_t end, int64_t microbatch, F&& body) const {
    while (begin < end) {
      const int64_t left = run_length_ - begin % run_length_;
      const int64_t length = left < end - begin ? left : end - begin;
      body(begin, GlobalIndex(begin, microbatch), length);
      begin += length;
    }
  }

 private:
  TileDesc tile_;
  Shape global_strides_;
  int64_t run_length_ = 1;
};

// Integer operands such as indices: memory of any integer dtype read as int64.
class IndexReader {
 public:
  // `data` outlives the reader. REQUIRES: CheckIndexDType(dtype) is OK.
  IndexReader(const void* data, DType dtype) : data_(data), dtype_(dtype) {}
  // Element `i`. REQUIRES: there is one.
  int64_t operator[](int64_t i) const {
    switch (dtype_) {
      case DType::kI8:
        return static_cast<const int8_t*>(data_)[i];
      case DType::kU8:
        return static_cast<const uint8_t*>(data_)[i];
      case DType::kI32:
        return static_cast<const int32_t*>(data_)[i];
      default:
        return static_cast<const int64_t*>(data_)[i];
    }
  }

 private:
  const void* data_;
  DType dtype_;
};

// kUnimplemented unless `dtype` is one that IndexReader reads.
absl::Status CheckIndexDType(std::string_view op, DType dtype);

// kInvalidArgument naming the first of `count` indices that lies outside [0, limit).
absl::Status CheckIndices(std::string_view op, const IndexReader& indices, int64_t count,
                          int64_t limit);

// KernelDef::can_alias of kernels whose outputs depend, element by element, on the same element of
// every operand of the result's size.
inline bool CanAliasElementwise(const KernelSpec& spec, int input) {
  return spec.inputs[input].dtype == spec.outputs[0].dtype &&
         spec.inputs[input].shape == spec.outputs[0].shape;
}
// The same, for the first operand only.
inline bool CanAliasFirst(const KernelSpec& spec, int input) {
  return input == 0 && CanAliasElementwise(spec, input);
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_CPU_KERNEL_H_
