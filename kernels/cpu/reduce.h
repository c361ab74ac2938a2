// Reductions over any axes.
//
// Neighbouring dimensions that are both kept or both reduced are joined, so the innermost group is
// either reduced (rows are folded into vectors of partial results) or kept (whole rows are folded
// onto a row of results, in pieces that stay in the first-level cache).
//
// An operation R has the static members
//   Initial()             the result of reducing nothing,
//   Fold(partial, x)      on vectors of floats or on single integers,
//   FoldLanes(vector)     the reduction of a vector's elements,
//   Finish(result, count) with the global number of reduced elements.
//
// Thread rule: as kernel.h. Invariant: the order of folding does not depend on the threads.

#ifndef PENSTOCK_KERNELS_CPU_REDUCE_H_
#define PENSTOCK_KERNELS_CPU_REDUCE_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/simd.h"

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

  static int64_t Offset(const std::vector<Loop>& loops, int64_t iteration);
};

// R over count contiguous elements, starting from `partial`.
template <typename T, typename R>
T FoldRow(const T* x, int64_t count, T partial) {
  if constexpr (std::is_floating_point_v<T>) {
    // Four vectors hide the latency of an addition, and make sums of long rows more accurate.
    Vec<T> lanes[4];
    for (Vec<T>& lane : lanes) lane = Splat(R::template Initial<T>());
    int64_t i = 0;
    for (; i + 4 * kLanes<T> <= count; i += 4 * kLanes<T>) {
      for (int v = 0; v < 4; ++v) lanes[v] = R::Fold(lanes[v], Load(x + i + v * kLanes<T>));
    }
    for (; i + kLanes<T> <= count; i += kLanes<T>) lanes[0] = R::Fold(lanes[0], Load(x + i));
    if (i < count) {
      lanes[1] = R::Fold(lanes[1], LoadPart(x + i, count - i, R::template Initial<T>()));
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
    T* y = Output<T>(args, 0);
    if (plan_.is_row_reduced) {
      ReduceRows(x, y, AddsToOutputs(args));
    } else {
      ReduceOntoRows(x, y, AddsToOutputs(args));
    }
    return absl::OkStatus();
  }

 private:
  void Put(T result, bool adds, T* y) const {
    result = R::Finish(result, plan_.global_count);
    *y = adds ? static_cast<T>(Wrapping(*y) + Wrapping(result)) : result;
  }

  void ReduceRows(const T* x, T* y, bool adds) const {
    const int64_t grain = GrainRows(plan_.reduced_count * plan_.row_size);
    pool_.ParallelFor(plan_.kept_count, grain, [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const T* base = x + ReducePlan::Offset(plan_.kept, i);
        T result = R::template Initial<T>();
        for (int64_t j = 0; j < plan_.reduced_count; ++j) {
          result =
              FoldRow<T, R>(base + ReducePlan::Offset(plan_.reduced, j), plan_.row_size, result);
        }
        Put(result, adds, y + i);
      }
    });
  }

  void ReduceOntoRows(const T* x, T* y, bool adds) const {
    const int64_t piece = ColumnPiece(plan_.row_size, pool_.size());
    const int64_t pieces = (plan_.row_size + piece - 1) / piece;
    const int64_t grain = GrainRows(plan_.reduced_count * std::min(piece, plan_.row_size));
    pool_.ParallelFor(plan_.kept_count * pieces, grain, [&](int64_t begin, int64_t end, int) {
      alignas(kVecBytes) T partial[kMaxColumnPiece];
      for (int64_t task = begin; task < end; ++task) {
        const int64_t row = task / pieces;
        const int64_t first = task % pieces * piece;
        const int64_t count = std::min(piece, plan_.row_size - first);
        const T* base = x + ReducePlan::Offset(plan_.kept, row) + first;
        std::fill(partial, partial + count, R::template Initial<T>());
        for (int64_t j = 0; j < plan_.reduced_count; ++j) {
          Map(
              count, [](auto p, auto v) { return R::Fold(p, v); }, partial, partial,
              base + ReducePlan::Offset(plan_.reduced, j));
        }
        T* to = y + row * plan_.row_size + first;
        for (int64_t i = 0; i < count; ++i) Put(partial[i], adds, to + i);
      }
    });
  }

  ReducePlan plan_;
};

struct SumReduction {
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
  template <typename T>
  static T Finish(T sum, int64_t) {
    return sum;
  }
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_REDUCE_H_
