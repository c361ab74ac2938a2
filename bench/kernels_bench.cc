#include "bench/kernels_bench.h"

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "benchmark/benchmark.h"
#include "fmt/format.h"

#include "bench/kernel_timing.h"
#include "kernels/kernel.h"

namespace penstock::bench {
namespace {

using kernels::KernelSpec;
using kernels::TileDesc;

TileDesc Whole(Shape shape, DType dtype = DType::kF32) {
  return WholeTile(std::move(shape), dtype);
}

// Runs one kernel on one thread.
void RunKernel(benchmark::State& state, const KernelSpec& spec, double flops) {
  absl::StatusOr<PreparedKernel> kernel = PreparedKernel::Create(spec);
  if (!kernel.ok()) {
    state.SkipWithError(std::string(kernel.status().message()).c_str());
    return;
  }
  for (auto _ : state) {
    const absl::Status status = kernel->Run();
    if (!status.ok()) state.SkipWithError(std::string(status.message()).c_str());
  }
  using benchmark::Counter;
  const double runs = static_cast<double>(state.iterations());
  if (flops > 0) state.counters["GFLOP/s"] = Counter(runs * flops * 1e-9, Counter::kIsRate);
  state.counters["GB/s"] =
      Counter(runs * static_cast<double>(kernel->num_bytes()) * 1e-9, Counter::kIsRate);
}

void Register(const std::string& name, std::string op, graph::Attributes attributes,
              std::vector<TileDesc> inputs, std::vector<TileDesc> outputs, double flops = 0) {
  KernelSpec spec =
      MakeKernelSpec(std::move(op), std::move(attributes), std::move(inputs), std::move(outputs));
  benchmark::RegisterBenchmark(
      ("kernels/" + name).c_str(),
      [spec = std::move(spec), flops](benchmark::State& state) { RunKernel(state, spec, flops); });
}

// What the names of benchmarks in other types than f32 end with.
std::string SuffixOf(DType dtype) {
  return dtype == DType::kF32 ? std::string() : fmt::format("_{}", penstock::Name(dtype));
}

// Gradients of weights are f32, whatever the operands are.
void RegisterProducts(int64_t tokens, int64_t width, DType dtype) {
  struct Product {
    int64_t m, n, k;
  };
  const std::string suffix = SuffixOf(dtype);
  graph::Attributes weight_grad = {{"transpose_a", true}};
  if (dtype != DType::kF32) weight_grad.Set("dtype", DType::kF32);
  for (const auto& [m, n, k] :
       {Product{tokens, 3 * width, width}, Product{tokens, 4 * width, width},
        Product{tokens, width, 4 * width}}) {
    const double flops = 2.0 * static_cast<double>(m * n * k);
    const TileDesc x = Whole({m, k}, dtype);
    const TileDesc w = Whole({k, n}, dtype);
    const TileDesc y = Whole({m, n}, dtype);
    const auto name = [&](const char* what) {
      return fmt::format("{}{}/{}x{}x{}", what, suffix, m, n, k);
    };
    Register(name("matmul"), "matmul", {}, {x, w}, {y}, flops);
    Register(name("matmul_input_grad"), "matmul", {{"transpose_b", true}}, {y, w}, {x}, flops);
    Register(name("matmul_weight_grad"), "matmul", weight_grad, {x, y}, {Whole({k, n})}, flops);
  }
}

void RegisterF64Product(int64_t tokens, int64_t n) {
  Register(fmt::format("matmul_f64/{}x{}x{}", tokens, n, n), "matmul", {},
           {Whole({tokens, n}, DType::kF64), Whole({n, n}, DType::kF64)},
           {Whole({tokens, n}, DType::kF64)}, 2.0 * static_cast<double>(tokens * n * n));
}

// Flops count the visible half of the scores only: 4 s^2/2 d a head forward, 10 backward.
void RegisterAttention(int64_t batch, int64_t sequence, int64_t heads, int64_t head_width) {
  const double scores = static_cast<double>(batch * heads * head_width) *
                        static_cast<double>(sequence * (sequence + 1)) / 2;
  const TileDesc qkv = Whole({batch, sequence, 3, heads, head_width});
  const TileDesc o = Whole({batch, sequence, heads, head_width});
  const TileDesc lse = Whole({batch, heads, sequence});
  const std::string sizes = fmt::format("{}x{}x{}x{}", batch, sequence, heads, head_width);
  Register("qkv_attention/" + sizes, "qkv_attention", {{"causal", true}}, {qkv}, {o, lse},
           4 * scores);
  Register("qkv_attention_grad/" + sizes, "qkv_attention_grad", {{"causal", true}},
           {qkv, o, lse, o}, {qkv}, 10 * scores);
}

void RegisterRows(int64_t tokens, int64_t width) {
  const TileDesc x = Whole({tokens, width});
  const TileDesc hidden = Whole({tokens, 4 * width});
  const TileDesc vector = Whole({width});
  const TileDesc column = Whole({tokens});
  const TileDesc scalar = Whole({});
  const TileDesc count = Whole({}, DType::kI64);
  const TileDesc bias = Whole({4 * width});
  const auto name = [&](const char* op) { return fmt::format("{}/{}x{}", op, tokens, width); };
  Register(name("add"), "add", {}, {x, x}, {x});
  Register(name("gelu"), "gelu", {}, {hidden}, {hidden});
  Register(name("bias_gelu"), "bias_gelu", {}, {hidden, bias}, {hidden});
  Register(name("bias_gelu_grad"), "bias_gelu_grad", {}, {hidden, bias, hidden}, {hidden});
  Register(name("layer_norm"), "layer_norm", {}, {x, vector, vector}, {x, column, column});
  Register(name("layer_norm_grad"), "layer_norm_grad", {}, {x, x, vector, column, column}, {x});
  Register(name("layer_norm_weight_grad"), "layer_norm_weight_grad", {}, {x, x, column, column},
           {vector, vector});
  Register(name("rms_norm"), "rms_norm", {}, {x, vector}, {x, column});
  Register(name("rms_norm_grad"), "rms_norm_grad", {}, {x, x, vector, column}, {x});
  Register(name("rms_norm_weight_grad"), "rms_norm_weight_grad", {}, {x, x, column}, {vector});
  const auto axes = [](const Shape& values) {
    return graph::Attributes{{"axes", graph::AttrValue::Ints(values)}};
  };
  Register(name("reduce_sum_columns"), "reduce_sum", axes({0}), {x}, {vector});
  Register(name("reduce_sum_rows"), "reduce_sum", axes({1}), {x}, {column});
  Register(name("reduce_sum_all"), "reduce_sum", axes({0, 1}), {x}, {scalar});
  const TileDesc heads = Whole({16, tokens / 16, 4, width / 4});
  Register(name("reduce_sum_middle"), "reduce_sum", axes({1}), {heads},
           {Whole({16, 4, width / 4})});
  Register(name("reduce_sum_alternate"), "reduce_sum", axes({0, 2}), {heads},
           {Whole({tokens / 16, width / 4})});
  Register(name("embedding_grad"), "embedding_grad", {{"rows", tokens}},
           {x, Whole({tokens}, DType::kI64)}, {Whole({tokens, width})});
  Register(name("transpose"), "transpose", {{"permutation", graph::AttrValue::Ints({1, 0})}}, {x},
           {Whole({width, tokens})});
  Register(name("dropout"), "dropout", {{"rate", 0.1}, {"stream", 1}}, {x}, {x});
  Register(name("softmax"), "softmax", {}, {x}, {x});
  Register(name("softmax_grad"), "softmax_grad", {}, {x, x}, {x});
  Register(name("softmax_columns"), "softmax", {{"axis", 0}}, {x}, {x});
  Register(name("softmax_grad_columns"), "softmax_grad", {{"axis", 0}}, {x, x}, {x});
  Register(name("cross_entropy"), "cross_entropy", {}, {x, Whole({tokens}, DType::kI64)},
           {column, column, column});
  Register(name("cross_entropy_grad"), "cross_entropy_grad", {},
           {x, Whole({tokens}, DType::kI64), column, column, column}, {x});
  Register(name("sum_exp"), "sum_exp", {}, {x, column}, {column});
  Register(name("sum_squares"), "sum_squares", {}, {hidden}, {scalar});
  const TileDesc weights = Whole({12 * width, width});
  Register(name("adamw"), "adamw", {{"weight_decay", 0.1}},
           {weights, weights, weights, weights, count, scalar, scalar},
           {weights, weights, weights});
}

// Many rows of few columns: bias gradients of a convolution's channels, long vectors.
void RegisterNarrow() {
  const graph::Attributes first = {{"axes", graph::AttrValue::Ints({0})}};
  for (int64_t width : {3, 16, 40}) {
    const int64_t rows = (1 << 20) / width;
    Register(fmt::format("reduce_sum_columns/{}x{}", rows, width), "reduce_sum", first,
             {Whole({rows, width})}, {Whole({width})});
  }
  Register("reduce_sum/1048576", "reduce_sum", first, {Whole({1 << 20})}, {Whole({})});
}

// A convolution and its gradients, of square images that are padded by half a kernel.
void RegisterConvolution(DType dtype, int64_t batch, int64_t from, int64_t image, int64_t to,
                         int64_t kernel, int64_t stride) {
  const int64_t size = (image - 1) / stride + 1;
  const double flops = 2.0 * static_cast<double>(batch * to * size * size * from * kernel * kernel);
  const graph::Attributes attributes = {
      {"strides", graph::AttrValue::Ints({stride, stride})},
      {"padding", graph::AttrValue::Ints({kernel / 2, kernel / 2})}};
  graph::Attributes of_input = attributes;
  of_input.Set("plane", graph::AttrValue::Ints({image, image}));
  graph::Attributes of_weight = attributes;
  of_weight.Set("kernel", graph::AttrValue::Ints({kernel, kernel}));
  if (dtype != DType::kF32) of_weight.Set("dtype", DType::kF32);
  const TileDesc x = Whole({batch, from, image, image}, dtype);
  const TileDesc w = Whole({to, from, kernel, kernel}, dtype);
  const TileDesc dw = Whole(w.shape);
  const TileDesc y = Whole({batch, to, size, size}, dtype);
  const auto name = [&](const char* op) {
    return fmt::format("{}{}/{}x{}x{}x{}_to_{}_{}x{}_by_{}", op, SuffixOf(dtype), batch, from,
                       image, image, to, kernel, kernel, stride);
  };
  Register(name("conv2d"), "conv2d", attributes, {x, w}, {y}, flops);
  Register(name("conv2d_input_grad"), "conv2d_input_grad", of_input, {w, y}, {x}, flops);
  Register(name("conv2d_weight_grad"), "conv2d_weight_grad", of_weight, {x, y}, {dw}, flops);
}

// What else a step of resnet18 spends its time on.
void RegisterImages(int64_t batch, int64_t channels, int64_t image) {
  const TileDesc x = Whole({batch, channels, image, image});
  const TileDesc pooled = Whole({batch, channels, (image + 1) / 2, (image + 1) / 2});
  const TileDesc vector = Whole({channels});
  graph::Attributes window = {{"window", graph::AttrValue::Ints({3, 3})},
                              {"strides", graph::AttrValue::Ints({2, 2})},
                              {"padding", graph::AttrValue::Ints({1, 1})}};
  graph::Attributes of_plane = window;
  of_plane.Set("plane", graph::AttrValue::Ints({image, image}));
  const auto name = [&](const char* op) {
    return fmt::format("{}/{}x{}x{}x{}", op, batch, channels, image, image);
  };
  Register(name("max_pool2d"), "max_pool2d", window, {x}, {pooled});
  Register(name("max_pool2d_grad"), "max_pool2d_grad", window, {x, pooled}, {x});
  Register(name("avg_pool2d"), "avg_pool2d", window, {x}, {pooled});
  Register(name("avg_pool2d_grad"), "avg_pool2d_grad", of_plane, {pooled}, {x});
  Register(name("batch_norm"), "batch_norm", {}, {x, vector, vector}, {x, vector, vector});
  Register(name("batch_norm_grad"), "batch_norm_grad", {},
           {x, x, vector, vector, vector, vector, vector}, {x});
  Register(name("batch_norm_weight_grad"), "batch_norm_weight_grad", {}, {x, x, vector, vector},
           {vector, vector});
  Register(name("relu"), "relu", {}, {x}, {x});
}

// The layers of resnet18, each size once.
void RegisterResnet18(int64_t batch) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    RegisterConvolution(dtype, batch, 3, 224, 64, 7, 2);
    for (int64_t channels = 64, image = 56; channels <= 512; channels *= 2, image /= 2) {
      RegisterConvolution(dtype, batch, channels, image, channels, 3, 1);
      if (channels == 512) break;
      RegisterConvolution(dtype, batch, channels, image, 2 * channels, 3, 2);
      RegisterConvolution(dtype, batch, channels, image, 2 * channels, 1, 2);
    }
  }
  RegisterImages(batch, 64, 112);
  for (int64_t channels = 64, image = 56; channels <= 512; channels *= 2, image /= 2) {
    RegisterImages(batch, channels, image);
  }
}

}  // namespace

void RegisterKernelBenchmarks() {
  const int64_t tokens = 2048;
  for (int64_t width : {256, 768}) {
    RegisterProducts(tokens, width, DType::kF32);
    RegisterProducts(tokens, width, DType::kBF16);
    RegisterF64Product(tokens, width);
    RegisterRows(tokens, width);
    RegisterRows(128, width);  // few rows: sums in blocks may not cost more
  }
  RegisterNarrow();
  RegisterAttention(16, 128, 8, 32);
  RegisterAttention(16, 128, 12, 64);
  RegisterAttention(2, 1024, 12, 64);
  RegisterAttention(2, 1024, 6, 128);
  RegisterResnet18(8);
}

}  // namespace penstock::bench
