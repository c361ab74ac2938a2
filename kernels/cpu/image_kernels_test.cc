// Convolutions in f32 and bf16, which oneDNN computes, against those in f64, which loops compute;
// on several threads, in micro-batches and on tiles without elements. Poolings and batch
// normalization with the numbers that PyTorch 2 gives.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/half.h"
#include "base/random.h"
#include "base/strings.h"
#include "graph/op.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/onednn_matmul.h"
#include "tests/support/interpreter.h"

namespace penstock::testing {
namespace {

using graph::Attributes;
using graph::AttrValue;
using ::testing::DoubleNear;
using ::testing::ElementsAre;
using ::testing::Pointwise;

AttrValue Ints(const std::vector<int64_t>& values) { return AttrValue::Ints(values); }

Tensor Of(Shape shape, const std::vector<double>& values, DType dtype) {
  Tensor tensor({dtype, std::move(shape)});
  if (dtype == DType::kF32) {
    std::transform(values.begin(), values.end(), tensor.As<float>(),
                   [](double value) { return static_cast<float>(value); });
  } else {
    std::copy(values.begin(), values.end(), tensor.As<double>());
  }
  return tensor;
}

// For results of a few operations on numbers of about 1.
double Tolerance(DType dtype) { return dtype == DType::kF32 ? 1e-5 : 1e-13; }

std::vector<double> ValuesOf(const Tensor& tensor) {
  std::vector<double> values;
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    values.push_back(tensor.dtype() == DType::kBF16  ? ToFloat(tensor.As<BFloat16>()[i])
                     : tensor.dtype() == DType::kF32 ? tensor.As<float>()[i]
                                                     : tensor.As<double>()[i]);
  }
  return values;
}

// Small integers, which are exact in bf16 and which f32 adds up without rounding.
Tensor Draw(const Shape& shape, uint32_t stream, DType dtype) {
  Tensor tensor({dtype, shape});
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    const auto word = RandomWord({.seed = 5, .stream = stream}, static_cast<uint64_t>(i));
    const int value = static_cast<int>(word % 9) - 4;
    if (dtype == DType::kF32) {
      tensor.As<float>()[i] = static_cast<float>(value);
    } else if (dtype == DType::kBF16) {
      tensor.As<BFloat16>()[i] = ToBFloat16(static_cast<float>(value));
    } else {
      tensor.As<double>()[i] = value;
    }
  }
  return tensor;
}

class ImageKernelsTest : public ::testing::Test {
 protected:
  kernels::KernelSpec SpecOf(const std::string& op, const Attributes& attributes,
                             const std::vector<Tensor>& operands) const {
    kernels::KernelSpec spec;
    spec.op = op;
    spec.attributes = attributes;
    std::vector<TensorType> types;
    for (const Tensor& operand : operands) types.push_back(operand.type());
    const auto results = graph::InferResultTypes(*ops_.Find(op), attributes, types);
    EXPECT_TRUE(results.ok()) << results.status();
    for (const TensorType& type : types) spec.inputs.push_back(WholeTile(type));
    for (const TensorType& type : *results) spec.outputs.push_back(WholeTile(type));
    return spec;
  }

  std::vector<std::vector<double>> Run(const std::string& op, const Attributes& attributes,
                                       const std::vector<Tensor>& operands, int threads = 1) {
    const auto device = CreateCpuDevice(threads);
    const auto results = RunKernel(kernels_, *device, SpecOf(op, attributes, operands), operands);
    EXPECT_TRUE(results.ok()) << results.status();
    std::vector<std::vector<double>> values;
    for (const Tensor& result : *results) values.push_back(ValuesOf(result));
    return values;
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const kernels::KernelRegistry kernels_ = kernels::CpuKernels();
};

struct ConvolutionCase {
  Shape x;
  Shape w;
  Attributes attributes;
};

std::vector<ConvolutionCase> ConvolutionCases() {
  return {
      {{5, 3, 9, 8}, {16, 3, 3, 3}, {{"padding", Ints({1, 1})}}},
      {{4, 32, 8, 8}, {48, 32, 3, 3}, {{"strides", Ints({2, 2})}, {"padding", Ints({1, 1})}}},
      {{3, 16, 7, 6}, {24, 16, 1, 1}, {{"strides", Ints({2, 2})}}},
      {{2, 3, 20, 20}, {16, 3, 7, 7}, {{"strides", Ints({2, 2})}, {"padding", Ints({3, 3})}}},
      {{4, 5, 9, 7}, {7, 5, 3, 2}, {{"dilation", Ints({2, 3})}, {"padding", Ints({0, 2, 1, 3})}}},
      {{3, 8, 6, 6}, {12, 2, 3, 3}, {{"groups", 4}, {"padding", Ints({1, 1})}}},
      {{3, 32, 6, 6}, {32, 1, 3, 3}, {{"groups", 32}, {"padding", Ints({1, 1})}}},
      // More images than are computed at once.
      {{11, 16, 48, 48}, {16, 16, 3, 3}, {{"padding", Ints({1, 1})}}},
      {{1, 1, 5, 5}, {1, 1, 5, 5}, {{"padding", Ints({6, 6})}}},
      // More channels than are added up at once.
      {{2, 600, 5, 5}, {32, 600, 1, 1}, {}},
      {{2, 24, 6, 6}, {600, 24, 3, 3}, {{"padding", Ints({1, 1})}}},
  };
}

// In bf16, a result is the exact one, rounded once.
TEST_F(ImageKernelsTest, ConvolutionsInOneDnnAreExactOnIntegers) {
  const auto in_bf16 = [](std::vector<std::vector<double>> results) {
    for (double& value : results[0]) value = ToFloat(ToBFloat16(static_cast<float>(value)));
    return results;
  };
  for (const ConvolutionCase& test : ConvolutionCases()) {
    SCOPED_TRACE(penstock::ToString(test.x) + " " + penstock::ToString(test.w));
    const auto draw = [&](DType dtype) {
      return std::vector<Tensor>{Draw(test.x, 1, dtype), Draw(test.w, 2, dtype)};
    };
    const Shape y = SpecOf("conv2d", test.attributes, draw(DType::kF64)).outputs[0].shape;
    Attributes of_input = test.attributes;
    of_input.Set("plane", Ints({test.x[2], test.x[3]}));
    Attributes of_weight = test.attributes;
    of_weight.Set("kernel", Ints({test.w[2], test.w[3]}));
    Attributes of_weight_in_f32 = of_weight;
    of_weight_in_f32.Set("dtype", DType::kF32);
    const auto forward = [&](DType dtype, int threads) {
      return Run("conv2d", test.attributes, draw(dtype), threads);
    };
    const auto input_grad = [&](DType dtype, int threads) {
      return Run("conv2d_input_grad", of_input, {draw(dtype)[1], Draw(y, 3, dtype)}, threads);
    };
    const auto weight_grad = [&](const Attributes& attributes, DType dtype, int threads) {
      return Run("conv2d_weight_grad", attributes, {draw(dtype)[0], Draw(y, 3, dtype)}, threads);
    };
    const auto exact_y = forward(DType::kF64, 1);
    const auto exact_dx = input_grad(DType::kF64, 1);
    const auto exact_dw = weight_grad(of_weight, DType::kF64, 1);
    for (const int threads : {1, 2, 3}) {
      EXPECT_EQ(forward(DType::kF32, threads), exact_y);
      EXPECT_EQ(input_grad(DType::kF32, threads), exact_dx);
      EXPECT_EQ(weight_grad(of_weight, DType::kF32, threads), exact_dw);
      EXPECT_EQ(forward(DType::kBF16, threads), in_bf16(exact_y));
      EXPECT_EQ(input_grad(DType::kBF16, threads), in_bf16(exact_dx));
      EXPECT_EQ(weight_grad(of_weight, DType::kBF16, threads), in_bf16(exact_dw));
      EXPECT_EQ(weight_grad(of_weight_in_f32, DType::kBF16, threads), exact_dw);
    }
  }
}

// Where the processor computes in bf16, operands are not converted to f32 in the workspace.
TEST_F(ImageKernelsTest, ConvolutionsInBFloat16ConvertNothing) {
  if (kernels::OneDnnBf16Unit() == kernels::Bf16Unit::kNone) {
    GTEST_SKIP() << "no oneDNN, or a processor without bf16";
  }
  const Shape x = {8, 64, 28, 28};
  const Attributes padded = {{"padding", Ints({1, 1})}};
  Attributes of_input = padded;
  of_input.Set("plane", Ints({28, 28}));
  Attributes of_weight = padded;
  of_weight.Set("kernel", Ints({3, 3}));
  of_weight.Set("dtype", DType::kF32);
  const auto expect_less = [&](const std::string& op, const Attributes& attributes, const Shape& a,
                               const Shape& b) {
    const auto bytes = [&](DType dtype) {
      return kernels_.Find(op)->workspace_bytes(
          SpecOf(op, attributes, {Draw(a, 1, dtype), Draw(b, 2, dtype)}), 1);
    };
    const size_t x_in_f32 = 8 * 64 * 28 * 28 * sizeof(float);
    EXPECT_LT(bytes(DType::kBF16), bytes(DType::kF32) + x_in_f32) << op;
  };
  expect_less("conv2d", padded, x, {64, 64, 3, 3});
  expect_less("conv2d_input_grad", of_input, {64, 64, 3, 3}, x);
  expect_less("conv2d_weight_grad", of_weight, x, x);
}

TEST_F(ImageKernelsTest, ConvolutionsInBFloat16AreRepeatable) {
  Tensor x({DType::kBF16, {5, 19, 9, 10}});
  Tensor w({DType::kBF16, {24, 19, 3, 3}});
  for (Tensor* tensor : {&x, &w}) {
    for (int64_t i = 0; i < tensor->num_elements(); ++i) {
      tensor->As<BFloat16>()[i] =
          ToBFloat16(static_cast<float>(RandomUniform({.seed = 7}, static_cast<uint64_t>(i))));
    }
  }
  Tensor dy({DType::kBF16, {5, 24, 7, 8}});
  std::copy_n(x.As<BFloat16>(), dy.num_elements(), dy.As<BFloat16>());
  const Attributes of_weight = {{"kernel", Ints({3, 3})}, {"dtype", DType::kF32}};
  for (const int threads : {1, 3}) {
    const auto run_all = [&] {
      return std::vector{Run("conv2d", {}, {x, w}, threads),
                         Run("conv2d_input_grad", {{"plane", Ints({9, 10})}}, {w, dy}, threads),
                         Run("conv2d_weight_grad", of_weight, {x, dy}, threads)};
    };
    EXPECT_EQ(run_all(), run_all());
  }
}

TEST_F(ImageKernelsTest, WeightGradientsAddUpOverMicrobatches) {
  struct Case {
    DType operands;
    DType sum;
  };
  for (const auto& [dtype, sum_dtype] :
       {Case{DType::kF32, DType::kF32}, Case{DType::kF64, DType::kF64},
        Case{DType::kBF16, DType::kF32}, Case{DType::kBF16, DType::kBF16}}) {
    const std::vector<Tensor> operands = {Draw({3, 4, 5, 5}, 1, dtype),
                                          Draw({3, 6, 3, 3}, 2, dtype)};
    Attributes attributes = {{"kernel", Ints({3, 3})}};
    if (sum_dtype != dtype) attributes.Set("dtype", sum_dtype);
    kernels::KernelSpec spec = SpecOf("conv2d_weight_grad", attributes, operands);
    spec.accumulate = true;
    const auto device = CreateCpuDevice(2);
    const kernels::KernelDef& def = *kernels_.Find(spec.op);
    const auto stream = device->CreateStream();
    auto kernel = def.create(spec, *device, *stream);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    std::vector<double> workspace(def.workspace_bytes(spec, 2) / sizeof(double) + 16);
    auto aligned = (reinterpret_cast<uintptr_t>(workspace.data()) + 63) / 64 * 64;
    Tensor sum({sum_dtype, spec.outputs[0].shape});
    void* inputs[] = {const_cast<void*>(operands[0].data()), const_cast<void*>(operands[1].data())};
    void* outputs[] = {sum.data()};
    kernels::KernelArgs args;
    args.inputs = inputs;
    args.outputs = outputs;
    args.workspace = reinterpret_cast<void*>(aligned);
    for (args.microbatch = 0; args.microbatch < 2; ++args.microbatch) {
      ASSERT_TRUE((*kernel)->Run(args).ok());
    }
    std::vector<double> twice = Run(spec.op, spec.attributes, operands)[0];
    for (double& value : twice) value *= 2;
    EXPECT_EQ(ValuesOf(sum), twice);
  }
}

// The part of a device that has nothing of a dimension that is split unevenly.
TEST_F(ImageKernelsTest, TilesWithoutElementsGiveZeros) {
  for (const DType dtype : {DType::kF32, DType::kF64, DType::kBF16}) {
    const std::vector<Tensor> no_images = {Draw({0, 2, 4, 4}, 1, dtype),
                                           Draw({0, 3, 3, 3}, 2, dtype)};
    EXPECT_EQ(Run("conv2d_weight_grad", {{"kernel", Ints({2, 2})}}, no_images)[0],
              std::vector<double>(3 * 2 * 2 * 2, 0.0));
    EXPECT_EQ(Run("conv2d", {}, {Draw({2, 0, 4, 4}, 1, dtype), Draw({3, 0, 2, 2}, 2, dtype)})[0],
              std::vector<double>(2 * 3 * 3 * 3, 0.0));
  }
}

TEST_F(ImageKernelsTest, ConvolutionsFollowPyTorch) {
  Tensor x({DType::kF64, {1, 2, 4, 5}});
  for (int i = 0; i < 40; ++i) x.As<double>()[i] = i * 7 % 11 - 5;
  Tensor w({DType::kF64, {3, 2, 3, 2}});
  for (int i = 0; i < 36; ++i) w.As<double>()[i] = i * 5 % 7 - 3;
  Tensor dy({DType::kF64, {1, 3, 2, 7}});
  for (int i = 0; i < 42; ++i) dy.As<double>()[i] = i * 3 % 5 - 2;
  Attributes attributes = {
      {"strides", Ints({2, 1})}, {"padding", Ints({1, 2})}, {"dilation", Ints({1, 2})}};
  EXPECT_THAT(Run("conv2d", attributes, {x, w})[0],
              ElementsAre(22, 3, -18, 6, -3, -16, 5, -24, 27, 15, -51, 15, 4, -25, -13, -1, 33, 9,
                          7, -9, -1, 16, -16, 11, 48, -3, 13, -6, -13, 2, 14, -37, -11, 19, -14,
                          -14, -3, 0, -14, -28, -6, 13));
  attributes.Set("plane", Ints({4, 5}));
  EXPECT_THAT(
      Run("conv2d_input_grad", attributes, {w, dy})[0],
      ElementsAre(-3, -2, -1, -5, 11, 0, 18, -14, 4, -8, -1, -5, 11, -3, -2, -4, -6, -3, 5, 8, -7,
                  14, -10, 6, -3, 8, -11, 5, 11, -13, -10, 6, -3, -7, 14, 8, 5, -3, -6, -4));
  attributes.Erase("plane");
  attributes.Set("kernel", Ints({3, 2}));
  EXPECT_THAT(
      Run("conv2d_weight_grad", attributes, {x, dy})[0],
      ElementsAre(2, 22, 24, 24, 24, -9, -9, -11, -9, 24, -9, 24, -13, -13, -26, -11, -15, 22, 20,
                  -2, -15, -22, -15, -22, 22, 2, 24, -11, -9, -22, -11, 2, 24, 22, 24, 22));
}

TEST_F(ImageKernelsTest, PoolingsFollowPyTorch) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    SCOPED_TRACE(Name(dtype));
    const Tensor x = Of({1, 1, 4, 4}, {1, 3, 3, 0, 3, 2, 1, 5, 0, 0, 5, 5, 1, 0, 2, 4}, dtype);
    Attributes attributes = {
        {"window", Ints({3, 3})}, {"strides", Ints({2, 2})}, {"padding", Ints({1, 1})}};
    EXPECT_THAT(Run("max_pool2d", attributes, {x})[0], ElementsAre(3, 5, 3, 5));
    EXPECT_THAT(Run("max_pool2d_grad", attributes, {x, Of({1, 1, 2, 2}, {1, 2, 3, 4}, dtype)})[0],
                ElementsAre(0, 1, 0, 0, 3, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0));
    EXPECT_THAT(Run("avg_pool2d", attributes, {x})[0],
                Pointwise(DoubleNear(Tolerance(dtype)), {1.0, 14.0 / 9, 6.0 / 9, 24.0 / 9}));
    attributes.Set("plane", Ints({4, 4}));
    EXPECT_THAT(
        Run("avg_pool2d_grad", attributes, {Of({1, 1, 2, 2}, {9, 18, 27, 36}, dtype)})[0],
        Pointwise(DoubleNear(Tolerance(dtype)), {1, 3, 2, 2, 4, 10, 6, 6, 3, 7, 4, 4, 3, 7, 4, 4}));
  }
}

// Against windows that are looked at one by one. There are ties, and, where oneDNN would miss the
// maximum, a NaN, which is the largest, and a window of -inf alone.
TEST_F(ImageKernelsTest, PoolingsTakeEachWindow) {
  constexpr int64_t kPlanes = 3;
  constexpr int64_t kHeight = 5;
  for (const auto& [plane_width, is_special] : std::vector<std::pair<int64_t, bool>>{
           {5, false}, {5, true}, {18, false}, {18, true}, {150, false}, {150, true}}) {
    const Shape planes = {1, kPlanes, kHeight, plane_width};
    const int64_t plane_size = kHeight * plane_width;
    std::vector<double> values = ValuesOf(Draw(planes, 1, DType::kF64));
    for (int64_t row = 0; row < kHeight; ++row) {
      for (int64_t column = plane_width / 8; column < plane_width / 8 + plane_width / 5 + 2;
           ++column) {
        values[row * plane_width + column] =
            is_special ? -std::numeric_limits<double>::infinity() : -65536;
      }
    }
    if (is_special) {
      values[plane_size + 2 * plane_width + plane_width / 2] =
          std::numeric_limits<double>::quiet_NaN();
    }
    const std::vector<double> plain = ValuesOf(Draw(planes, 3, DType::kF64));
    for (const auto& [taps, stride] :
         std::vector<std::pair<int64_t, int64_t>>{{3, 1}, {3, 2}, {3, 3}, {2, 1}, {2, 4}, {4, 3}}) {
      SCOPED_TRACE(StrCat(plane_width, " wide, ", taps, " taps, stride ", stride));
      const int64_t height = (kHeight + 2 - taps) / stride + 1;
      const int64_t width = (plane_width + 2 - taps) / stride + 1;
      const Shape results = {1, kPlanes, height, width};
      const std::vector<double> dy = ValuesOf(Draw(results, 2, DType::kF64));
      std::vector<double> largest;
      std::vector<double> means;
      std::vector<double> largest_grads(kPlanes * plane_size);
      std::vector<double> mean_grads(kPlanes * plane_size);
      for (int64_t i = 0; i < kPlanes * height * width; ++i) {
        const int64_t plane = i / (height * width);
        int64_t best = -1;
        double sum = 0;
        for (int64_t t = 0; t < taps * taps; ++t) {
          const int64_t row = i / width % height * stride - 1 + t / taps;
          const int64_t column = i % width * stride - 1 + t % taps;
          if (row < 0 || row >= kHeight || column < 0 || column >= plane_width) continue;
          const int64_t at = plane * plane_size + row * plane_width + column;
          const bool is_larger = best < 0 || values[at] > values[best] ||
                                 (std::isnan(values[at]) && !std::isnan(values[best]));
          if (is_larger) best = at;
          sum += plain[at];
          mean_grads[at] += dy[i] / static_cast<double>(taps * taps);
        }
        largest.push_back(values[best]);
        largest_grads[best] += dy[i];
        means.push_back(sum / static_cast<double>(taps * taps));
      }
      for (const DType dtype : {DType::kF32, DType::kF64}) {
        SCOPED_TRACE(Name(dtype));
        const Tensor x = Of(planes, values, dtype);
        const Tensor gradient = Of(results, dy, dtype);
        Attributes attributes = {{"window", Ints({taps, taps})},
                                 {"strides", Ints({stride, stride})},
                                 {"padding", Ints({1, 1})}};
        EXPECT_THAT(Run("max_pool2d", attributes, {x})[0],
                    Pointwise(::testing::NanSensitiveDoubleEq(), largest));
        EXPECT_EQ(Run("max_pool2d_grad", attributes, {x, gradient})[0], largest_grads);
        EXPECT_THAT(Run("avg_pool2d", attributes, {Of(planes, plain, dtype)})[0],
                    Pointwise(DoubleNear(Tolerance(dtype)), means));
        attributes.Set("plane", Ints({kHeight, plane_width}));
        EXPECT_THAT(Run("avg_pool2d_grad", attributes, {gradient})[0],
                    Pointwise(DoubleNear(Tolerance(dtype)), mean_grads));
      }
    }
  }
}

// f32 is computed some planes at a time, which are the most that a thread takes, or fewer at the
// end; f64 is computed a plane at a time. A plane has an element that oneDNN's maximum would miss.
TEST_F(ImageKernelsTest, PoolingsOfManyPlanesAreThoseOfEach) {
  const Shape planes = {9, 57, 40, 50};
  const Shape results = {9, 57, 20, 25};
  std::vector<double> values = ValuesOf(Draw(planes, 1, DType::kF32));
  values[250 * 40 * 50 + 77] = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> plain = ValuesOf(Draw(planes, 3, DType::kF32));
  const std::vector<double> dy = ValuesOf(Draw(results, 2, DType::kF32));
  const Attributes attributes = {
      {"window", Ints({3, 3})}, {"strides", Ints({2, 2})}, {"padding", Ints({1, 1})}};
  Attributes of_mean_gradient = attributes;
  of_mean_gradient.Set("plane", Ints({40, 50}));
  const auto run = [&](DType dtype) {
    const Tensor x = Of(planes, values, dtype);
    const Tensor gradient = Of(results, dy, dtype);
    return std::vector<std::vector<double>>{
        Run("max_pool2d", attributes, {x})[0], Run("max_pool2d_grad", attributes, {x, gradient})[0],
        Run("avg_pool2d", attributes, {Of(planes, plain, dtype)})[0],
        Run("avg_pool2d_grad", of_mean_gradient, {gradient})[0]};
  };
  const auto got = run(DType::kF32);
  const auto expected = run(DType::kF64);
  EXPECT_THAT(got[0], Pointwise(::testing::NanSensitiveDoubleEq(), expected[0]));
  for (const int i : {1, 2, 3}) {
    EXPECT_THAT(got[i], Pointwise(DoubleNear(1e-5), expected[i])) << i;
  }
}

TEST_F(ImageKernelsTest, BatchNormFollowsPyTorch) {
  for (const DType dtype : {DType::kF32, DType::kF64}) {
    SCOPED_TRACE(Name(dtype));
    const auto near = DoubleNear(Tolerance(dtype));
    const Tensor x = Of({2, 2, 3}, {0, 5, 3, 1, 6, 4, 2, 0, 5, 3, 1, 6}, dtype);
    const Tensor dy = Of({2, 2, 3}, {-1, 0, 1, 2, -1, 0, 1, 2, -1, 0, 1, 2}, dtype);
    const Tensor scale = Of({2}, {2, -1}, dtype);
    const Attributes attributes = {{"epsilon", 0.5}};
    const auto forward = Run("batch_norm", attributes, {x, scale, Of({2}, {0.5, 1}, dtype)});
    EXPECT_THAT(forward[0],
                Pointwise(near, {-1.7941573387056176, 2.7941573387056176, 0.9588314677411234,
                                 2.1470786693528088, -0.14707866935280856, 0.7705842661294384,
                                 0.0411685322588764, -1.7941573387056176, 2.7941573387056176,
                                 1.229415733870562, 2.1470786693528088, -0.14707866935280856}));
    const Tensor mean = Of({2}, forward[1], dtype);
    const Tensor variance = Of({2}, forward[2], dtype);
    const auto weights = Run("batch_norm_weight_grad", attributes, {dy, x, mean, variance});
    EXPECT_THAT(weights[0], Pointwise(near, {-2.2941573387056176, -2.2941573387056176}));
    EXPECT_THAT(weights[1], ElementsAre(2, 4));
    EXPECT_THAT(Run("batch_norm_grad", attributes,
                    {dy, x, scale, mean, variance, Of({2}, weights[0], dtype),
                     Of({2}, weights[1], dtype)})[0],
                Pointwise(near, {-1.6260343242755604, 0.09659609847181547, 0.692272039048011,
                                 -0.4105334185052158, 0.5634772410855902, 0.26563927079749255,
                                 0.5312785415949851, 1.1269544821711805, -0.8210668370104314,
                                 0.3461360195240054, 0.048298049235907706, -0.8130171621377803}));
  }
}

// The tensor in bf16, or as it was in f32 and rounded to bf16.
Tensor Rounded(const Tensor& x, DType dtype) {
  Tensor rounded({dtype, x.shape()});
  for (int64_t i = 0; i < x.num_elements(); ++i) {
    const BFloat16 element = ToBFloat16(x.As<float>()[i]);
    if (dtype == DType::kBF16) {
      rounded.As<BFloat16>()[i] = element;
    } else {
      rounded.As<float>()[i] = ToFloat(element);
    }
  }
  return rounded;
}

// The kernels for f32 with loads and stores that convert: nothing is converted in the workspace.
TEST_F(ImageKernelsTest, BatchNormInBFloat16RoundsWhatF32Gives) {
  struct Case {
    const char* op;
    std::vector<Shape> operands;
    size_t num_f32;  // of the operands, the last ones
    std::vector<DType> results;
  };
  const DType bf16 = DType::kBF16;
  const DType f32 = DType::kF32;
  const std::vector<Case> cases = {
      {"batch_norm", {{5, 3, 7, 9}, {3}, {3}}, 0, {bf16, f32, f32}},
      {"batch_norm", {{5, 3}, {3}, {3}}, 0, {bf16, f32, f32}},
      {"batch_norm_inference", {{5, 3, 7, 9}, {3}, {3}, {3}, {3}}, 2, {bf16}},
      {"batch_norm_grad", {{5, 3, 7, 9}, {5, 3, 7, 9}, {3}, {3}, {3}, {3}, {3}}, 4, {bf16}},
      {"batch_norm_weight_grad", {{5, 3, 7, 9}, {5, 3, 7, 9}, {3}, {3}}, 2, {f32, f32}},
      {"channel_variance", {{5, 3, 7, 9}, {3}}, 1, {f32}},
  };
  for (const Case& test : cases) {
    SCOPED_TRACE(test.op);
    const size_t num_halves = test.operands.size() - test.num_f32;
    std::vector<Tensor> halves;
    std::vector<Tensor> floats;
    for (size_t i = 0; i < test.operands.size(); ++i) {
      Tensor operand({f32, test.operands[i]});
      for (int64_t e = 0; e < operand.num_elements(); ++e) {
        // Above 0, as a variance is.
        const RandomKey key{.seed = 5, .stream = static_cast<uint32_t>(i)};
        operand.As<float>()[e] = 0.5f + static_cast<float>(RandomUniform(key, e));
      }
      halves.push_back(i < num_halves ? Rounded(operand, bf16) : operand);
      floats.push_back(i < num_halves ? Rounded(operand, f32) : operand);
    }
    Attributes attributes;
    if (std::string_view(test.op) == "batch_norm_weight_grad") attributes.Set("dtype", f32);
    const kernels::KernelSpec spec = SpecOf(test.op, attributes, halves);
    const kernels::KernelDef& def = *kernels_.Find(test.op);
    EXPECT_EQ(def.workspace_bytes(spec, 1), 0u);
    const auto device = CreateCpuDevice(2);
    const auto actual = RunKernel(kernels_, *device, spec, halves);
    const auto expected = RunKernel(kernels_, *device, SpecOf(test.op, attributes, floats), floats);
    ASSERT_TRUE(actual.ok()) << actual.status();
    ASSERT_TRUE(expected.ok()) << expected.status();
    ASSERT_EQ(actual->size(), test.results.size());
    for (size_t r = 0; r < actual->size(); ++r) {
      ASSERT_EQ((*actual)[r].dtype(), test.results[r]) << "result " << r;
      const Tensor wanted =
          test.results[r] == f32 ? (*expected)[r] : Rounded((*expected)[r], test.results[r]);
      EXPECT_EQ(std::memcmp((*actual)[r].data(), wanted.data(), wanted.num_bytes()), 0)
          << "result " << r;
    }
  }
}

}  // namespace
}  // namespace penstock::testing
