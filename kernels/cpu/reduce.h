// Reductions over any axes.
//
// Neighbouring dimensions that are both kept or both reduced are joined, so the innermost group is
// either reduced (rows are folded into vectors of partial results) or kept (whole rows are folded
// onto a row of results, in pieces that stay in the first-level cache). Dimensions of one element
// count for nothing.
//
// An operation R has the static members
//   Initial()             the result of reducing nothing,
//   Fold(partial, x)      on vectors of floats or on single integers,
//   FoldLanes(vector)     the reduction of a vector's elements,
//   Finish<T>(result, count) the result in T, with the global number of reduced elements.
// Sums of floats, marked by kIsSum, go by sum.h instead, and Finish gets a double. Sums of floats
// of 16 bits are f32; other results are of the operand's type.
//
// Thread rule: as kernel.h. Invariant: the order of folding does not depend on the threads.

#ifndef PENSTOCK_KERNELS_CPU_REDUCE_H_
#define PENSTOCK_KERNELS_CPU_REDUCE_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/simd.h"
#include "kernels/cpu/sum.h"

namespace penstock::kernels {

// What a reduction does, free of its operation: loops of the form size, operand stride.
struct ReducePlan {
  struct Loop {
    int64_t size = 1;
    int64_t stride = 0;
  };
  explicit ReducePlan(const KernelSpec& spec);

  std::vector<Loop> kept;     // outermost first; without the row when it is kept
  std::vector<Loop> reduced;  // likewise
  int64_t row_size = 1;       // innermost group
  bool is_row_reduced = false;
  int64_t kept_count = 1;     // product over `kept`
  int64_t reduced_count = 1;  // product over `reduced`
  int64_t global_count = 1;   // elements behind one result, over all tiles
  // The rows folded onto each other are narrow and follow each other without gaps.
  bool has_dense_columns = false;

  static int64_t Offset(const std::vector<Loop>& loops, int64_t iteration);
};

// The offsets of the iterations of some loops, one after the other.
class OffsetWalk {
 public:
  explicit OffsetWalk(const std::vector<ReducePlan::Loop>& loops) : loops_(loops) {}

  int64_t Next() {
    if (left_ > 0) {
      offset_ += loops_.back().stride;
    } else {
      offset_ = ReducePlan::Offset(loops_, iteration_);
      left_ = loops_.empty() ? 1 : loops_.back().size;
    }
    --left_;
    ++iteration_;
    return offset_;
  }

 private:
  const std::vector<ReducePlan::Loop>& loops_;
  int64_t iteration_ = 0;
  int64_t offset_ = 0;
  int64_t left_ = 0;  // iterations of the innermost loop
};

// R over count contiguous elements, starting from `partial`.
template <typename T, typename R>
Arith<T> FoldRow(const T* x, int64_t count, Arith<T> partial) {
  if constexpr (kHasVectors<T>) {
    const Arith<T> initial = R::template Initial<Arith<T>>();
    // Four vectors hide the latency of a fold.
    Vec<T> lanes[4];
    for (Vec<T>& lane : lanes) lane = Splat(initial);
    int64_t i = 0;
    for (; i + 4 * kLanes<T> <= count; i += 4 * kLanes<T>) {
      for (int v = 0; v < 4; ++v) lanes[v] = R::Fold(lanes[v], Load(x + i + v * kLanes<T>));
    }
    for (; i + kLanes<T> <= count; i += kLanes<T>) lanes[0] = R::Fold(lanes[0], Load(x + i));
    if (i < count) {
      lanes[1] = R::Fold(lanes[1], LoadPart(x + i, count - i, initial));
    }
    const Vec<T> all = R::Fold(R::Fold(lanes[0], lanes[1]), R::Fold(lanes[2], lanes[3]));
    return R::Fold(Splat(partial), Splat(R::FoldLanes(all)))[0];
  } else {
    for (int64_t i = 0; i < count; ++i) partial = static_cast<T>(R::Fold(partial, x[i]));
    return partial;
  }
}

template <typename T, typename R>
class ReduceKernel : public CpuKernel {
 public:
  ReduceKernel(const KernelSpec& spec, Device& device, R) : CpuKernel(spec, device), plan_(spec) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* x = Input<T>(args, 0);
    To* y = Output<To>(args, 0);
    if (plan_.is_row_reduced) {
      ReduceRows(x, y, AddsToOutputs(args));
    } else {
      ReduceOntoRows(x, y, AddsToOutputs(args));
    }
    return absl::OkStatus();
  }

 private:
  static constexpr bool kSumsFloats = R::kIsSum && kHasVectors<T>;
  using Partial = std::conditional_t<kSumsFloats, double, Arith<T>>;
  using To = std::conditional_t<kSumsFloats, Arith<T>, T>;

  void Put(int64_t count, const Partial* partial, bool adds, To* y) const {
    const int64_t reduced = plan_.global_count;
    if constexpr (kIsHalf<To>) {  // never a sum
      for (int64_t i = 0; i < count; ++i) {
        y[i] = FromFloat<To>(R::template Finish<float>(partial[i], reduced));
      }
    } else if (adds) {
      for (int64_t i = 0; i < count; ++i) {
        y[i] =
            static_cast<To>(Wrapping(y[i]) + Wrapping(R::template Finish<To>(partial[i], reduced)));
      }
    } else {
      for (int64_t i = 0; i < count; ++i) y[i] = R::template Finish<To>(partial[i], reduced);
    }
  }

  static Partial FoldRowOnto(const T* x, int64_t count, Partial partial) {
    if constexpr (kSumsFloats) {
      return partial + SumOf<T>(
                           count, [](auto v) { return v; }, x);
    } else {
      return FoldRow<T, R>(x, count, partial);
    }
  }

  // Folds columns [first, first + count) of the reduced rows from x on into `partial`.
  void FoldColumns(const T* x, int64_t first, int64_t count, Partial* partial) const {
    OffsetWalk walk(plan_.reduced);
    std::fill(partial, partial + count, R::template Initial<Partial>());
    if constexpr (kSumsFloats) {
      if (plan_.has_dense_columns) {
        AddDenseColumns(plan_.reduced_count, count, x, partial);
      } else {
        AddColumns(
            plan_.reduced_count, count, [&](int64_t) { return walk.Next() + first; }, x, partial);
      }
    } else {
      for (int64_t j = 0; j < plan_.reduced_count; ++j) {
        Map(
            count, [](auto p, auto v) { return R::Fold(p, v); }, partial, partial,
            x + walk.Next() + first);
      }
    }
  }

  void ReduceRows(const T* x, To* y, bool adds) const {
    const int64_t grain = GrainRows(plan_.reduced_count * plan_.row_size);
    pool_.ParallelFor(plan_.kept_count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const T* base = x + ReducePlan::Offset(plan_.kept, i);
        Partial partial = R::template Initial<Partial>();
        OffsetWalk walk(plan_.reduced);
        for (int64_t j = 0; j < plan_.reduced_count; ++j) {
          partial = FoldRowOnto(base + walk.Next(), plan_.row_size, partial);
        }
        Put(1, &partial, adds, y + i);
      }
    });
  }

  void ReduceOntoRows(const T* x, To* y, bool adds) const {
    const int64_t piece = ColumnPiece(plan_.row_size, pool_.size());
    const int64_t pieces = (plan_.row_size + piece - 1) / piece;
    const int64_t grain = GrainRows(plan_.reduced_count * std::min(piece, plan_.row_size));
    pool_.ParallelFor(plan_.kept_count * pieces, grain, [&](int64_t begin, int64_t end, int) {
      alignas(kVecBytes) Partial partial[kMaxColumnPiece];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / pieces;
        const int64_t first = task % pieces * piece;
        const int64_t count = std::min(piece, plan_.row_size - first);
        FoldColumns(x + ReducePlan::Offset(plan_.kept, row), first, count, partial);
        Put(count, partial, adds, y + row * plan_.row_size + first);
      }
    });
  }

  ReducePlan plan_;
};

// The kernel of a sum R. Of floats of 16 bits it gives f32 only.
template <typename Types, typename R>
KernelDef SumDef(R reduction) {
  KernelDef def = ElementwiseDef<ReduceKernel, Types>(reduction);
  def.create = [create = std::move(def.create)](const KernelSpec& spec, Device& device,
                                                Stream& stream) -> KernelOr {
    const DType result = spec.outputs[0].dtype;
    if (IsHalf(result)) return UnsupportedDType(spec.op, result);
    return create(spec, device, stream);
  };
  def.can_alias = nullptr;
  def.supports_accumulate = true;
  return def;
}

struct SumReduction {
  static constexpr bool kIsSum = true;
  template <typename T>
  static T Initial() {
    return T{};
  }
  template <typename V>
  static auto Fold(V partial, V x) {
    return Wrapping(partial) + Wrapping(x);
  }
  template <typename V>
  static auto FoldLanes(V x) {
    return SumLanes(x);
  }
  template <typename T, typename Sum>
  static T Finish(Sum sum, int64_t /*count*/) {
    return static_cast<T>(sum);
  }
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_REDUCE_H_
