#include "kernels/cpu/pooling.h"

#include <algorithm>
#include <cstddef>
#include <limits>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/onednn_pooling.h"
#include "kernels/cpu/simd.h"

namespace penstock::kernels {
namespace {

// The window slides over planes; without the attribute `window` it is the plane.
PoolingShape ShapeOf(const KernelSpec& spec, PoolingPass pass) {
  const TileDesc* x = &spec.inputs[0];
  const TileDesc* y = &spec.outputs[0];
  if (pass == PoolingPass::kMaximumGradient) {
    y = &spec.inputs[1];
  } else if (pass == PoolingPass::kMeanGradient) {
    std::swap(x, y);
  }
  PoolingShape shape;
  shape.num_planes = x->shape[0] * x->shape[1];
  shape.in = {x->shape[2], x->shape[3]};
  shape.out = {y->shape[2], y->shape[3]};
  const Shape given = spec.attributes.GetInts("window");
  const std::array<int64_t, 2> taps =
      given.size() == 2 ? std::array<int64_t, 2>{given[0], given[1]} : shape.in;
  shape.window = graph::ImageWindowOf(spec.attributes, taps, taps);
  return shape;
}

// Where the operands and the result of the pass lie for a number of planes before them.
struct Strides {
  Strides(const PoolingShape& shape, PoolingPass pass)
      : a(pass == PoolingPass::kMeanGradient ? shape.out_size() : shape.in_size()),
        b(pass == PoolingPass::kMaximumGradient ? shape.out_size() : 0),
        result(IsGradient(pass) ? shape.in_size() : shape.out_size()) {}

  int64_t a;
  int64_t b;  // 0: there is none
  int64_t result;
};

// ---- In loops.

// The elements that result `i` of an axis of `extent` elements reads.
Range WindowRange(const graph::ImageAxis& axis, int64_t i, int64_t extent) {
  const int64_t begin = i * axis.stride - axis.low;
  return {std::max<int64_t>(begin, 0), std::min(begin + axis.taps, extent)};
}

// f(i, rows, columns) for every result of a plane: its number and the elements that it reads.
template <typename F>
void ForEachWindow(const PoolingShape& shape, F f) {
  for (int64_t i = 0; i < shape.out[0]; ++i) {
    const Range rows = WindowRange(shape.window[0], i, shape.in[0]);
    for (int64_t j = 0; j < shape.out[1]; ++j) {
      f(i * shape.out[1] + j, rows, WindowRange(shape.window[1], j, shape.in[1]));
    }
  }
}

// f(place) for the elements of a window, in the plane.
template <typename F>
void ForEachPlace(const PoolingShape& shape, const Range& rows, const Range& columns, F f) {
  for (int64_t row = rows.begin; row < rows.end; ++row) {
    for (int64_t column = columns.begin; column < columns.end; ++column) {
      f(row * shape.in[1] + column);
    }
  }
}

// Where the first of the largest elements of a window is. A NaN is larger than any number.
template <typename T>
int64_t FirstLargest(const PoolingShape& shape, const T* x, const Range& rows,
                     const Range& columns) {
  int64_t first = rows.begin * shape.in[1] + columns.begin;
  ForEachPlace(shape, rows, columns, [&](int64_t place) {
    const bool is_larger = !(x[place] <= x[first]) && x[first] == x[first];
    if (is_larger) first = place;
  });
  return first;
}

template <typename T>
void PoolPlane(const PoolingShape& shape, PoolingPass pass, const T* a, const T* b, T* result) {
  const double share = 1.0 / static_cast<double>(shape.window[0].taps * shape.window[1].taps);
  if (IsGradient(pass)) {
    std::fill_n(result, shape.in_size(), T{0});
  }
  ForEachWindow(shape, [&](int64_t i, const Range& rows, const Range& columns) {
    switch (pass) {
      case PoolingPass::kMaximum:
        result[i] = a[FirstLargest(shape, a, rows, columns)];
        break;
      case PoolingPass::kMaximumGradient:
        result[FirstLargest(shape, a, rows, columns)] += b[i];
        break;
      case PoolingPass::kMean: {
        double sum = 0;
        ForEachPlace(shape, rows, columns, [&](int64_t place) { sum += a[place]; });
        result[i] = static_cast<T>(sum * share);
        break;
      }
      case PoolingPass::kMeanGradient: {
        const T part = a[i] * static_cast<T>(share);
        ForEachPlace(shape, rows, columns, [&](int64_t place) { result[place] += part; });
        break;
      }
    }
  });
}

template <typename T>
class DirectPooling : public CpuKernel {
 public:
  DirectPooling(const KernelSpec& spec, Device& device, PoolingPass pass)
      : CpuKernel(spec, device), pass_(pass), shape_(ShapeOf(spec, pass)) {}

  absl::Status Run(const KernelArgs& args) override {
    const T* a = Input<T>(args, 0);
    const T* b = strides_.b > 0 ? Input<T>(args, 1) : nullptr;
    T* result = Output<T>(args, 0);
    const int64_t taps = shape_.window[0].taps * shape_.window[1].taps;
    pool_.ParallelFor(shape_.num_planes,
                      GrainRows(std::max(shape_.in_size(), shape_.out_size() * taps)),
                      [&](int64_t begin, int64_t end, int) {
                        for (int64_t i = begin; i < end; ++i) {
                          PoolPlane(shape_, pass_, a + i * strides_.a, b + i * strides_.b,
                                    result + i * strides_.result);
                        }
                      });
    return absl::OkStatus();
  }

 private:
  const PoolingPass pass_;
  const PoolingShape shape_;
  const Strides strides_{shape_, pass_};
};

// ---- In oneDNN.

// Most bytes of the planes that are computed at once. oneDNN takes 16 planes together.
constexpr int64_t kChunkBytes = int64_t{1} << 20;
constexpr int64_t kPlanesTogether = 16;

bool IsEmpty(const PoolingShape& shape) {
  return shape.num_planes * shape.in_size() * shape.out_size() == 0;
}

// The planes of a shape that a thread computes at once, and those that are left at the end.
struct Chunks {
  Chunks(const PoolingShape& shape, int num_threads) : whole(shape), rest(shape) {
    const auto bytes = static_cast<int64_t>(sizeof(float)) * (shape.in_size() + shape.out_size());
    const int64_t together_bytes = kPlanesTogether * bytes;
    const int64_t of_thread =
        (shape.num_planes + kPlanesTogether * num_threads - 1) / (kPlanesTogether * num_threads);
    const int64_t num_together =
        std::max<int64_t>(std::min(kChunkBytes / together_bytes, of_thread), 1);
    whole.num_planes = std::min(num_together * kPlanesTogether, shape.num_planes);
    rest.num_planes = shape.num_planes % whole.num_planes;
  }

  PoolingShape whole;
  PoolingShape rest;  // of no planes: none are left
};

// Whether oneDNN finds the largest of `count` elements in each of their windows: none is a NaN, or
// so small that it is not larger than what oneDNN starts from.
bool AreAllLarge(const float* x, int64_t count) {
  const Vec<float> lowest = Splat(std::numeric_limits<float>::lowest());
  auto are_large = lowest == lowest;
  for (int64_t i = 0; i < count; i += kLanes<float>) {
    const int64_t left = count - i;
    are_large &= (left < kLanes<float> ? LoadPart(x + i, left, 0.0F) : Load(x + i)) > lowest;
  }
  for (int lane = 0; lane < kLanes<float>; ++lane) {
    if (are_large[lane] == 0) return false;
  }
  return true;
}

// Threads take chunks of planes.
class ChunkedPooling : public CpuKernel {
 public:
  static KernelOr Create(const KernelSpec& spec, Device& device, PoolingPass pass) {
    auto kernel = std::make_unique<ChunkedPooling>(spec, device, pass);
    if (IsEmpty(kernel->shape_)) return kernel;
    const Chunks chunks(kernel->shape_, kernel->pool_.size());
    for (int i = 0; i < kernel->pool_.size(); ++i) {
      Worker& worker = kernel->workers_.emplace_back();
      ASSIGN_OR_RETURN(worker.whole, OneDnnPooling::Create(chunks.whole, pass));
      if (chunks.rest.num_planes == 0) continue;
      ASSIGN_OR_RETURN(worker.rest, OneDnnPooling::Create(chunks.rest, pass));
    }
    kernel->planes_at_once_ = chunks.whole.num_planes;
    return kernel;
  }

  // For any pool of up to `num_threads`.
  static size_t WorkspaceBytes(const KernelSpec& spec, PoolingPass pass, int num_threads) {
    const PoolingShape shape = ShapeOf(spec, pass);
    if (IsEmpty(shape)) return 0;
    std::map<int64_t, size_t> bytes_of;  // by the number of planes
    size_t most = 0;
    for (int count = 1; count <= num_threads; ++count) {
      const Chunks chunks(shape, count);
      size_t of_thread = 0;
      for (const PoolingShape& chunk : {chunks.whole, chunks.rest}) {
        const auto [at, is_new] = bytes_of.try_emplace(chunk.num_planes, 0);
        if (is_new && chunk.num_planes > 0) {
          const auto made = OneDnnPooling::Create(chunk, pass);
          if (made.ok()) at->second = (*made)->workspace_bytes();  // Create reports what is wrong
        }
        of_thread = std::max(of_thread, at->second);
      }
      most = std::max(most, of_thread * static_cast<size_t>(count));
    }
    return most;
  }

  ChunkedPooling(const KernelSpec& spec, Device& device, PoolingPass pass)
      : CpuKernel(spec, device), pass_(pass), shape_(ShapeOf(spec, pass)) {}

  absl::Status Run(const KernelArgs& args) override {
    if (workers_.empty()) {
      std::fill_n(Output<float>(args, 0), spec_.outputs[0].num_elements(), 0.0F);
      return absl::OkStatus();
    }
    auto* workspace = static_cast<std::byte*>(args.workspace);
    for (Worker& worker : workers_) {
      worker.status = absl::OkStatus();
      worker.workspace = workspace;
      workspace += worker.workspace_bytes();
    }
    const int64_t count = (shape_.num_planes + planes_at_once_ - 1) / planes_at_once_;
    pool_.ParallelFor(count, 1, [&](int64_t begin, int64_t end, int thread) {
      Worker& worker = workers_[static_cast<size_t>(thread)];
      for (int64_t i = begin; i < end && worker.status.ok(); ++i) {
        worker.status = RunChunk(args, i * planes_at_once_, worker);
      }
    });
    for (const Worker& worker : workers_) RETURN_IF_ERROR(worker.status);
    return absl::OkStatus();
  }

 private:
  // What a thread computes with.
  struct Worker {
    std::unique_ptr<OneDnnPooling> whole;
    std::unique_ptr<OneDnnPooling> rest;  // may be null
    // Of one run.
    std::byte* workspace = nullptr;
    absl::Status status;

    size_t workspace_bytes() const {
      return std::max(whole->workspace_bytes(), rest == nullptr ? 0 : rest->workspace_bytes());
    }
  };

  absl::Status RunChunk(const KernelArgs& args, int64_t first, Worker& worker) const {
    const int64_t count = std::min(planes_at_once_, shape_.num_planes - first);
    const float* a = Input<float>(args, 0) + first * strides_.a;
    const float* b = strides_.b > 0 ? Input<float>(args, 1) + first * strides_.b : nullptr;
    float* result = Output<float>(args, 0) + first * strides_.result;
    if (IsMaximum(pass_) && !AreAllLarge(a, count * strides_.a)) {
      for (int64_t i = 0; i < count; ++i) {
        PoolPlane(shape_, pass_, a + i * strides_.a, b + i * strides_.b,
                  result + i * strides_.result);
      }
      return absl::OkStatus();
    }
    OneDnnPooling& pooling = count == planes_at_once_ ? *worker.whole : *worker.rest;
    return pooling.Run(a, b, result, worker.workspace);
  }

  const PoolingPass pass_;
  const PoolingShape shape_;
  const Strides strides_{shape_, pass_};
  int64_t planes_at_once_ = 0;
  std::vector<Worker> workers_;  // by thread; none where there is nothing to compute
};

bool GoesThroughOneDnn(const KernelSpec& spec) {
  return MainDType(spec) == DType::kF32 && HasOneDnnPooling();
}

}  // namespace

KernelDef PoolingDef(PoolingPass pass) {
  return {.workspace_bytes =
              [pass](const KernelSpec& spec, int num_threads) {
                if (!GoesThroughOneDnn(spec)) return size_t{0};
                return ChunkedPooling::WorkspaceBytes(spec, pass, num_threads);
              },
          .create = [pass](const KernelSpec& spec, Device& device, Stream& stream) -> KernelOr {
            if (!GoesThroughOneDnn(spec)) {
              return CreateKernel<DirectPooling, Floats>(spec, device, stream, pass);
            }
            RETURN_IF_ERROR(CheckDevice(spec, device));
            return ChunkedPooling::Create(spec, device, pass);
          }};
}

}  // namespace penstock::kernels
