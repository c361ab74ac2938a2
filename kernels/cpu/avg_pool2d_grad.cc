#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "kernels/cpu/pooling.h"

namespace penstock::kernels {
namespace {

template <typename T>
class AvgPool2dGrad : public PoolingKernel {
 public:
  AvgPool2dGrad(const KernelSpec& spec, Device& device)
      : PoolingKernel(spec, device, spec.outputs[0], spec.inputs[0]),
        share_(1.0 / static_cast<double>(num_taps())) {
    if (out_[1] < kLeastInVectors) return;
    const graph::ImageAxis& columns = window_[1];
    most_before_ = (columns.taps - 1) / columns.stride;
    // Vectors of pairs of columns may begin at the last pair.
    const int64_t most_behind = (in_[1] + columns.low) / columns.stride + 2 * kLanes<T>;
    sums_.assign(pool_.size(), std::vector<T>(most_before_ + std::max(out_[1], most_behind)));
  }

  absl::Status Run(const KernelArgs& args) override {
    ForEachPlane([&](int64_t plane, int thread) {
      const T* dy = Input<T>(args, 0) + plane * out_size();
      T* dx = Output<T>(args, 0) + plane * in_size();
      if (sums_.empty()) {
        std::fill(dx, dx + in_size(), T{0});
        const T share = static_cast<T>(share_);
        ForEachWindow([&](int64_t i, const Range& rows, const Range& columns) {
          for (int64_t row = rows.begin; row < rows.end; ++row) {
            for (int64_t column = columns.begin; column < columns.end; ++column) {
              dx[row * in_[1] + column] += dy[i] * share;
            }
          }
        });
        return;
      }
      for (int64_t row = 0; row < in_[0]; ++row) {
        AddRows(dy, row, sums_[thread].data() + most_before_);
        ShareOut(sums_[thread].data() + most_before_, dx + row * in_[1]);
      }
    });
    return absl::OkStatus();
  }

 private:
  // Sums of what arrives for the windows that read `row`, by column of the results.
  void AddRows(const T* dy, int64_t row, T* sums) const {
    const graph::ImageAxis& rows = window_[0];
    const int64_t first = std::max<int64_t>(0, row + rows.low - rows.taps + rows.stride);
    const Range windows = {first / rows.stride,
                           std::min((row + rows.low) / rows.stride + 1, out_[0])};
    ForEachVector<T>([&](int64_t j, int64_t count) {
      Vec<T> sum = {};
      for (int64_t i = windows.begin; i < windows.end; ++i) {
        sum += LoadUpTo(dy + i * out_[1] + j, count);
      }
      StoreUpTo(sums + j, sum, count);
    });
  }

  // What columns k * stride + phase - low get, for successive k: shares of the windows of which
  // they are tap phase, phase + stride, and so on, those of results k, k - 1, and so on.
  Vec<T> SharesOf(const T* sums, int64_t phase, int64_t k) const {
    Vec<T> sum = {};
    const T* from = sums + k;
    for (int64_t tap = phase; tap < window_[1].taps; tap += window_[1].stride) sum += Load(from--);
    return sum * static_cast<T>(share_);
  }

  void ShareOut(const T* sums, T* dx) const {
    constexpr int64_t kCount = kLanes<T>;
    const int64_t low = window_[1].low;
    const int64_t stride = window_[1].stride;
    if (stride == 1) {
      for (int64_t column = 0; column < in_[1]; column += kCount) {
        StoreUpTo(dx + column, SharesOf(sums, 0, column + low), std::min(kCount, in_[1] - column));
      }
    } else if (stride == 2) {
      for (int64_t column = 0; column < in_[1]; column += 2 * kCount) {
        const int64_t even = column + low;
        const auto [first, second] =
            Zip(SharesOf(sums, even % 2, even / 2), SharesOf(sums, (even + 1) % 2, (even + 1) / 2));
        const int64_t left = in_[1] - column;
        StoreUpTo(dx + column, first, std::min(kCount, left));
        if (left > kCount) {
          StoreUpTo(dx + column + kCount, second, std::min(kCount, left - kCount));
        }
      }
    } else {
      for (int64_t phase = 0; phase < stride; ++phase) {
        std::array<T, kLanes<T>> shares;
        for (int64_t k = 0; k * stride + phase - low < in_[1]; k += kCount) {
          Store(shares.data(), SharesOf(sums, phase, k));
          for (int64_t lane = 0; lane < kCount; ++lane) {
            const int64_t column = (k + lane) * stride + phase - low;
            if (column >= 0 && column < in_[1]) dx[column] = shares[lane];
          }
        }
      }
    }
  }

  const double share_;
  int64_t most_before_ = 0;           // windows that read a column beside the last of them
  std::vector<std::vector<T>> sums_;  // by thread, with zeros before and behind them
};

}  // namespace

KernelDef AvgPool2dGradKernel() { return {.create = CreateKernel<AvgPool2dGrad, Floats>}; }

}  // namespace penstock::kernels
