#include "kernels/cpu/convolution.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/elementwise.h"
#include "kernels/cpu/onednn_convolution.h"

namespace penstock::kernels {
namespace {

using graph::ImageAxis;

ConvolutionShape ShapeOf(const KernelSpec& spec, ConvolutionPass pass) {
  const TileDesc* x = &spec.inputs[0];
  const TileDesc* w = &spec.inputs[1];
  const TileDesc* y = &spec.outputs[0];
  if (pass == ConvolutionPass::kInputGradient) {
    x = &spec.outputs[0];
    w = &spec.inputs[0];
    y = &spec.inputs[1];
  } else if (pass == ConvolutionPass::kWeightGradient) {
    w = &spec.outputs[0];
    y = &spec.inputs[1];
  }
  ConvolutionShape shape;
  shape.n = x->shape[0];
  shape.c = w->shape[1];
  // Of a tile: groups may be split.
  shape.groups = shape.c > 0 ? x->shape[1] / shape.c : 1;
  shape.o = shape.groups > 0 ? w->shape[0] / shape.groups : 0;
  shape.in = {x->shape[2], x->shape[3]};
  shape.out = {y->shape[2], y->shape[3]};
  shape.window = graph::ImageWindowOf(spec.attributes, {w->shape[2], w->shape[3]});
  return shape;
}

// The results of an axis that read an element for the tap, and the first of those elements.
struct TapRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t from = 0;
};
TapRange ResultsOfTap(const ImageAxis& axis, int64_t tap, int64_t in, int64_t out) {
  const int64_t offset = tap * axis.dilation - axis.low;  // of result 0
  TapRange range;
  range.begin = offset >= 0 ? 0 : (-offset + axis.stride - 1) / axis.stride;
  range.end = in > offset ? std::min(out, (in - offset - 1) / axis.stride + 1) : 0;
  range.from = range.begin * axis.stride + offset;
  return range;
}

// row(x, tap, y, count) for what a plane of x has to do with one of y: `count` elements of y, one
// after another, and as many of x, a stride apart, meet at the tap.
template <typename Row>
void ForEachRow(const ConvolutionShape& shape, Row row) {
  const auto& [vertical, horizontal] = shape.window;
  for (int64_t kh = 0; kh < vertical.taps; ++kh) {
    const TapRange h = ResultsOfTap(vertical, kh, shape.in[0], shape.out[0]);
    for (int64_t kw = 0; kw < horizontal.taps; ++kw) {
      const TapRange w = ResultsOfTap(horizontal, kw, shape.in[1], shape.out[1]);
      if (w.begin >= w.end) continue;
      for (int64_t i = h.begin; i < h.end; ++i) {
        const int64_t line = h.from + (i - h.begin) * vertical.stride;
        row(line * shape.in[1] + w.from, kh * horizontal.taps + kw, i * shape.out[1] + w.begin,
            w.end - w.begin);
      }
    }
  }
}

// In loops, for types and builds without oneDNN. Each unit of work writes a part of the result of
// its own: a plane, or the taps of a pair of channels.
template <typename T>
class DirectConvolution : public CpuKernel {
 public:
  DirectConvolution(const KernelSpec& spec, Device& device, ConvolutionPass pass)
      : CpuKernel(spec, device), pass_(pass), shape_(ShapeOf(spec, pass)) {}

  absl::Status Run(const KernelArgs& args) override {
    const auto& [vertical, horizontal] = shape_.window;
    const int64_t x_plane = shape_.in[0] * shape_.in[1];
    const int64_t y_plane = shape_.out[0] * shape_.out[1];
    const int64_t taps = vertical.taps * horizontal.taps;
    const int64_t step = horizontal.stride;
    const ConvolutionShape& s = shape_;
    const T* a = Input<T>(args, 0);
    const T* b = Input<T>(args, 1);
    T* result = Output<T>(args, 0);
    switch (pass_) {
      case ConvolutionPass::kResult:
        ForEachUnit(s.n * s.groups * s.o, s.c * taps * y_plane, [&](int64_t unit) {
          const int64_t image = unit / (s.groups * s.o);
          const int64_t out = unit % (s.groups * s.o);
          T* y = result + unit * y_plane;
          std::fill(y, y + y_plane, T{0});
          for (int64_t c = 0; c < s.c; ++c) {
            const T* x = a + ((image * s.groups + out / s.o) * s.c + c) * x_plane;
            const T* w = b + (out * s.c + c) * taps;
            ForEachRow(s, [&](int64_t at, int64_t tap, int64_t to, int64_t count) {
              for (int64_t i = 0; i < count; ++i) y[to + i] += w[tap] * x[at + i * step];
            });
          }
        });
        break;
      case ConvolutionPass::kInputGradient:
        ForEachUnit(s.n * s.groups * s.c, s.o * taps * y_plane, [&](int64_t unit) {
          const int64_t group = unit / s.c;  // of all images
          T* dx = result + unit * x_plane;
          std::fill(dx, dx + x_plane, T{0});
          for (int64_t o = 0; o < s.o; ++o) {
            const T* w = a + ((group % s.groups * s.o + o) * s.c + unit % s.c) * taps;
            const T* dy = b + (group * s.o + o) * y_plane;
            ForEachRow(s, [&](int64_t at, int64_t tap, int64_t from, int64_t count) {
              for (int64_t i = 0; i < count; ++i) dx[at + i * step] += w[tap] * dy[from + i];
            });
          }
        });
        break;
      case ConvolutionPass::kWeightGradient:
        ForEachUnit(s.groups * s.o * s.c, s.n * taps * y_plane, [&](int64_t unit) {
          const int64_t out = unit / s.c;
          T* dw = result + unit * taps;
          if (!AddsToOutputs(args)) std::fill(dw, dw + taps, T{0});
          for (int64_t image = 0; image < s.n; ++image) {
            const T* x = a + ((image * s.groups + out / s.o) * s.c + unit % s.c) * x_plane;
            const T* dy = b + (image * s.groups * s.o + out) * y_plane;
            ForEachRow(s, [&](int64_t at, int64_t tap, int64_t from, int64_t count) {
              T sum = 0;
              for (int64_t i = 0; i < count; ++i) sum += x[at + i * step] * dy[from + i];
              dw[tap] += sum;
            });
          }
        });
        break;
    }
    return absl::OkStatus();
  }

 private:
  template <typename F>
  void ForEachUnit(int64_t count, int64_t work, F f) {
    pool_.ParallelFor(count, GrainRows(work), [&](int64_t begin, int64_t end, int) {
      for (int64_t unit = begin; unit < end; ++unit) f(unit);
    });
  }

  const ConvolutionPass pass_;
  const ConvolutionShape shape_;
};

// ---- f32 and bf16.

bool IsEmpty(const ConvolutionShape& s) {
  return s.x_size() == 0 || s.w_size() == 0 || s.y_size() == 0;
}

int NumPieces(const ConvolutionShape& shape, int num_threads) {
  return static_cast<int>(std::min<int64_t>(num_threads, shape.n));
}

// Part `piece` of the batch.
ConvolutionShape PieceOf(ConvolutionShape shape, int piece, int num_pieces) {
  shape.n = PartOf(shape.n, piece, num_pieces).size();
  return shape;
}

size_t F32Bytes(int64_t elements) {
  return (static_cast<size_t>(elements) * sizeof(float) + 63) / 64 * 64;
}

// Each thread computes a part of the batch; of the gradient of the weights, these are terms in f32
// that are then added up in order.
class BatchConvolution : public CpuKernel {
 public:
  static KernelOr Create(const KernelSpec& spec, Device& device, ConvolutionPass pass) {
    auto kernel = std::make_unique<BatchConvolution>(spec, device, pass);
    if (IsEmpty(kernel->shape_)) return kernel;
    const int count = NumPieces(kernel->shape_, kernel->pool_.size());
    for (int i = 0; i < count; ++i) {
      Piece& piece = kernel->pieces_.emplace_back();
      piece.shape = PieceOf(kernel->shape_, i, count);
      ASSIGN_OR_RETURN(piece.convolution,
                       OneDnnConvolution::Create(piece.shape, pass, MainDType(spec)));
    }
    return kernel;
  }

  // For any pool of up to `num_threads`.
  static size_t WorkspaceBytes(const KernelSpec& spec, ConvolutionPass pass, int num_threads) {
    const ConvolutionShape shape = ShapeOf(spec, pass);
    if (IsEmpty(shape)) return 0;
    std::map<int64_t, size_t> bytes_of;  // by the number of images
    size_t most = 0;
    for (int count = 1; count <= NumPieces(shape, num_threads); ++count) {
      size_t bytes = 0;
      for (int i = 0; i < count; ++i) {
        const ConvolutionShape piece = PieceOf(shape, i, count);
        const auto [at, is_new] = bytes_of.try_emplace(piece.n, 0);
        if (is_new) {
          const auto made = OneDnnConvolution::Create(piece, pass, MainDType(spec));
          if (made.ok()) at->second = (*made)->workspace_bytes();  // Create reports what is wrong
        }
        bytes += at->second;
        if (pass == ConvolutionPass::kWeightGradient) bytes += F32Bytes(shape.w_size());
      }
      most = std::max(most, bytes);
    }
    return most;
  }

  BatchConvolution(const KernelSpec& spec, Device& device, ConvolutionPass pass)
      : CpuKernel(spec, device), pass_(pass), shape_(ShapeOf(spec, pass)) {}

  absl::Status Run(const KernelArgs& args) override {
    if (pieces_.empty()) {
      if (AddsToOutputs(args)) return absl::OkStatus();
      std::fill_n(Output<float>(args, 0), spec_.outputs[0].num_elements(), 0.0F);
      return absl::OkStatus();
    }
    const auto* a = static_cast<const std::byte*>(args.inputs[0]);
    const auto* b = static_cast<const std::byte*>(args.inputs[1]);
    auto* result = static_cast<std::byte*>(args.outputs[0]);
    const auto element_bytes = static_cast<int64_t>(ByteSize(MainDType(spec_)));
    auto* workspace = static_cast<std::byte*>(args.workspace);
    for (Piece& piece : pieces_) {
      piece.workspace = workspace;
      workspace += piece.convolution->workspace_bytes();
      piece.a = a;
      piece.b = b;
      piece.result = result;
      switch (pass_) {
        case ConvolutionPass::kResult:
          a += piece.shape.x_size() * element_bytes;
          result += piece.shape.y_size() * element_bytes;
          break;
        case ConvolutionPass::kInputGradient:
          b += piece.shape.y_size() * element_bytes;
          result += piece.shape.x_size() * element_bytes;
          break;
        case ConvolutionPass::kWeightGradient:
          a += piece.shape.x_size() * element_bytes;
          b += piece.shape.y_size() * element_bytes;
          if (&piece == &pieces_[0] && !AddsToOutputs(args) && !rounds_sum_) break;
          piece.result = workspace;
          workspace += F32Bytes(shape_.w_size());
          break;
      }
    }
    pool_.ParallelFor(
        static_cast<int64_t>(pieces_.size()), 1, [&](int64_t begin, int64_t end, int) {
          for (int64_t i = begin; i < end; ++i) {
            Piece& piece = pieces_[static_cast<size_t>(i)];
            piece.status = piece.convolution->Run(piece.a, piece.b, piece.result, piece.workspace);
          }
        });
    for (const Piece& piece : pieces_) RETURN_IF_ERROR(piece.status);
    if (pass_ == ConvolutionPass::kWeightGradient) AddTerms(args);
    return absl::OkStatus();
  }

 private:
  struct Piece {
    ConvolutionShape shape;
    std::unique_ptr<OneDnnConvolution> convolution;
    // Of one run.
    const std::byte* a = nullptr;
    const std::byte* b = nullptr;
    std::byte* result = nullptr;
    std::byte* workspace = nullptr;
    absl::Status status;
  };

  void AddTerms(const KernelArgs& args) {
    void* result = rounds_sum_ ? pieces_[0].result : args.outputs[0];
    auto* sum = static_cast<float*>(result);
    pool_.ParallelFor(shape_.w_size(), kGrain, [&](int64_t begin, int64_t end, int) {
      for (const Piece& piece : pieces_) {
        if (piece.result == result) continue;
        const auto* term = reinterpret_cast<const float*>(piece.result);
        for (int64_t i = begin; i < end; ++i) sum[i] += term[i];
      }
      if (!rounds_sum_) return;
      auto* dw = Output<BFloat16>(args, 0) + begin;
      if (AddsToOutputs(args)) {
        Map(
            end - begin, [](auto a, auto b) { return a + b; }, dw, dw, sum + begin);
      } else {
        Map(
            end - begin, [](auto v) { return v; }, dw, sum + begin);
      }
    });
  }

  const ConvolutionPass pass_;
  const ConvolutionShape shape_;
  const bool rounds_sum_ =  // of the gradient of the weights
      pass_ == ConvolutionPass::kWeightGradient && spec_.outputs[0].dtype == DType::kBF16;
  std::vector<Piece> pieces_;  // none where there is nothing to compute
};

bool GoesThroughOneDnn(const KernelSpec& spec, ConvolutionPass pass) {
  const ConvolutionShape shape = ShapeOf(spec, pass);
  const DType dtype = MainDType(spec);
  return (dtype == DType::kF32 || !IsEmpty(shape)) && HasOneDnnConvolution(shape, pass, dtype);
}

}  // namespace

KernelDef ConvolutionDef(ConvolutionPass pass) {
  return {.workspace_bytes =
              [pass](const KernelSpec& spec, int num_threads) {
                if (!GoesThroughOneDnn(spec, pass)) return size_t{0};
                return BatchConvolution::WorkspaceBytes(spec, pass, num_threads);
              },
          .create = [pass](const KernelSpec& spec, Device& device, Stream& stream) -> KernelOr {
            if (!GoesThroughOneDnn(spec, pass)) {
              return CreateKernel<DirectConvolution, TypeList<float, double>>(spec, device, stream,
                                                                              pass);
            }
            RETURN_IF_ERROR(CheckDevice(spec, device));
            return BatchConvolution::Create(spec, device, pass);
          },
          .supports_accumulate = pass == ConvolutionPass::kWeightGradient};
}

}  // namespace penstock::kernels
