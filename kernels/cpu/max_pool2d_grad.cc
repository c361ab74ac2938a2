#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <vector>

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

// Gives what arrives for a window to the first of its largest elements; a NaN is larger than any
// number.
template <typename T>
class MaxPool2dGrad : public PoolingKernel {
 public:
  MaxPool2dGrad(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.inputs[0], spec.inputs[1]) {
    // Places in the rows of a window are compared with as many bits as elements.
    if (window_[0].taps * in_[1] > std::numeric_limits<Place>::max()) return;
    if (out_[1] < kLeastInVectors) return;
    rows_.assign(pool_.size(), {window_, in_, out_[1], -std::numeric_limits<T>::infinity()});
  }

  absl::Status Run(const KernelArgs& args) override {
    ForEachPlane([&](int64_t plane, int thread) {
      const T* x = Input<T>(args, 0) + plane * in_size();
      const T* dy = Input<T>(args, 1) + plane * out_size();
      T* dx = Output<T>(args, 0) + plane * in_size();
      std::fill(dx, dx + in_size(), T{0});
      if (rows_.empty()) {
        ForEachWindow([&](int64_t i, const Range& rows, const Range& columns) {
          dx[FirstLargest(x, rows, columns)] += dy[i];
        });
      } else {
        AddToLargest(x, dy, rows_[thread], dx);
      }
    });
    return absl::OkStatus();
  }

 private:
  using Place = IntOf<T>;

  void AddToLargest(const T* x, const T* dy, WindowRows<T>& laid_out, T* dx) const {
    for (int64_t i = 0; i < out_[0]; ++i) {
      const Range rows = laid_out.MoveTo(x, i);
      ForEachVector<T>([&](int64_t j, int64_t count) {
        // From the first tap's place in the first row; -1: all are minus infinity.
        std::array<Place, kLanes<T>> places;
        Store(places.data(), PlacesOfLargest(laid_out, rows, j));
        T* const first_row = dx + rows.begin * in_[1];
        for (int64_t k = 0; k < count; ++k) {
          const int64_t column = (j + k) * window_[1].stride - window_[1].low;
          const int64_t place = places[k] >= 0 ? places[k] + column : std::max<int64_t>(column, 0);
          first_row[place] += dy[i * out_[1] + j + k];
        }
      });
    }
  }

  Vec<Place> PlacesOfLargest(const WindowRows<T>& laid_out, const Range& rows, int64_t j) const {
    Vec<T> largest = Splat(-std::numeric_limits<T>::infinity());
    Vec<Place> places = Splat(Place{-1});
    for (int64_t row = rows.begin; row < rows.end; ++row) {
      const T* const of_row = laid_out.RowAt(row);
      const int64_t first = (row - rows.begin) * in_[1];
      for (int64_t tap = 0; tap < window_[1].taps; ++tap) {
        const Vec<T> elements = laid_out.Load(of_row, tap, j);
        const auto is_larger = IsLarger(elements, largest);
        largest = is_larger ? elements : largest;
        places = is_larger ? Splat(static_cast<Place>(first + tap)) : places;
      }
    }
    return places;
  }

  std::vector<WindowRows<T>> rows_;  // by thread
};

}  // namespace

KernelDef MaxPool2dGradKernel() { return {.create = CreateKernel<MaxPool2dGrad, Floats>}; }

}  // namespace penstock::kernels
