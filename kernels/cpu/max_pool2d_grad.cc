#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>

#include "kernels/cpu/pooling.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {
namespace {

// Gives what arrives for a window to the first of its largest elements; a NaN is larger than any
// number.
template <typename T>
class MaxPool2dGrad : public PoolingKernel {
 public:
  MaxPool2dGrad(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.inputs[0], spec.inputs[1]) {}

  absl::Status Run(const KernelArgs& args) override {
    ForEachPlane([&](int64_t plane, int) {
      const T* x = Input<T>(args, 0) + plane * in_size();
      const T* dy = Input<T>(args, 1) + plane * out_size();
      T* dx = Output<T>(args, 0) + plane * in_size();
      std::fill(dx, dx + in_size(), T{0});
      ForEachLargest(x, [&](int64_t first, int64_t count, const auto& largest) {
        for (int64_t k = 0; k < count; ++k) dx[largest.places[k]] += dy[first + k];
      });
    });
    return absl::OkStatus();
  }

 private:
  // Of the windows of a part of a row: the elements, and where in the plane.
  template <typename Place>
  struct Largest {
    std::array<T, kMostResults> elements;
    std::array<Place, kMostResults> places;
  };

  // f(first, count, largest) for all results of the plane `x`, a part of a row at a time.
  template <typename F>
  void ForEachLargest(const T* x, F f) const {
    // Places of the same size as elements are compared at once with them.
    if (in_size() <= std::numeric_limits<IntOf<T>>::max()) {
      FindLargest<IntOf<T>>(x, f);
    } else {
      FindLargest<int64_t>(x, f);
    }
  }

  template <typename Place, typename F>
  void FindLargest(const T* x, F f) const {
    Largest<Place> largest;
    ForEachPart([&](const Part& part) {
      std::fill_n(largest.elements.begin(), part.count, -std::numeric_limits<T>::infinity());
      std::fill_n(largest.places.begin(), part.count, Place{-1});
      ForEachTap(part, [&](const Tap& tap, int64_t place, auto stride) {
        TakeLarger(x + place, place, stride, tap.num_results(),
                   largest.elements.data() + tap.results.begin,
                   largest.places.data() + tap.results.begin);
      });
      for (int64_t k = 0; k < part.count; ++k) {
        if (largest.places[k] >= 0) continue;
        // All are minus infinity.
        const Range columns = WindowRange(window_[1], part.first % out_[1] + k, in_[1]);
        largest.places[k] = static_cast<Place>(part.rows.begin * in_[1] + columns.begin);
      }
      f(part.first, part.count, largest);
    });
  }

  template <typename Stride, typename Place>
  static void TakeLarger(const T* __restrict x, int64_t place, Stride stride, int64_t count,
                         T* __restrict elements, Place* __restrict places) {
    for (int64_t k = 0; k < count; ++k) {
      const T element = x[k * stride];
      const bool is_larger = IsLarger(element, elements[k]);
      elements[k] = is_larger ? element : elements[k];
      places[k] = is_larger ? static_cast<Place>(place + k * stride) : places[k];
    }
  }
};

}  // namespace

KernelDef MaxPool2dGradKernel() { return {.create = CreateKernel<MaxPool2dGrad, Floats>}; }

}  // namespace penstock::kernels
