// Elementwise operators, softmax and what shares their arithmetic on values far from 1: NaNs of
// every kind, infinities, zeros of both signs, and all magnitudes.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/device.h"
#include "graph/op.h"
#include "kernels/kernel.h"
#include "tests/support/interpreter.h"

namespace penstock::kernels {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <typename T>
constexpr DType kDTypeOf = sizeof(T) == 4 ? DType::kF32 : DType::kF64;

// Quiet and signalling, of both signs, with payloads in the high and the low bits.
template <typename T>
std::vector<T> Nans() {
  std::vector<T> nans;
  if constexpr (sizeof(T) == 4) {
    for (uint32_t bits : {0x7fc00000u, 0x7fc00001u, 0x7f800001u, 0x7fffffffu, 0x7fc001ffu,
                          0x7fbfffffu, 0xffc00000u, 0xffc00001u, 0xff800001u, 0xffffffffu}) {
      nans.push_back(std::bit_cast<T>(bits));
    }
  } else {
    for (uint64_t bits :
         {0x7ff8000000000000u, 0x7ff8000000000001u, 0x7ff0000000000001u, 0x7fffffffffffffffu,
          0x7ff8000000000fffu, 0xfff8000000000000u, 0xfff0000000000001u, 0xffffffffffffffffu}) {
      nans.push_back(std::bit_cast<T>(bits));
    }
  }
  return nans;
}

template <typename T>
Tensor TensorOf(const Shape& shape, const std::vector<T>& values) {
  Tensor tensor(TensorType{kDTypeOf<T>, shape});
  std::memcpy(tensor.data(), values.data(), tensor.num_bytes());
  return tensor;
}
template <typename T>
Tensor Filled(const Shape& shape, T value) {
  return TensorOf<T>(shape, std::vector<T>(NumElements(shape), value));
}

class ElementwiseTest : public ::testing::Test {
 protected:
  std::vector<Tensor> Run(const std::string& op, const std::vector<Tensor>& inputs,
                          const graph::Attributes& attributes = {}) {
    std::vector<TensorType> types;
    for (const Tensor& input : inputs) types.push_back(input.type());
    const auto results = ops_.Find(op)->InferTypes({attributes, types, {}});
    EXPECT_TRUE(results.ok()) << results.status();
    KernelSpec spec;
    spec.op = op;
    spec.attributes = attributes;
    for (const TensorType& type : types) spec.inputs.push_back(testing::WholeTile(type));
    for (const TensorType& type : *results) spec.outputs.push_back(testing::WholeTile(type));
    auto outputs = testing::RunKernel(kernels_, *device_, spec, inputs);
    EXPECT_TRUE(outputs.ok()) << op << ": " << outputs.status();
    return *std::move(outputs);
  }

  const graph::OpRegistry ops_ = graph::BuiltinOps();
  const KernelRegistry kernels_ = CpuKernels();
  const std::unique_ptr<Device> device_ = CreateCpuDevice(1);
};

struct FloatOp {
  std::string op;
  int num_operands;
  graph::Attributes attributes = {};
};

// Every operator that gives a float for each element of its float operands.
std::vector<FloatOp> FloatOps() {
  std::vector<FloatOp> ops;
  for (const char* op : {"neg", "abs", "exp", "log", "tanh", "sqrt", "rsqrt", "sin", "cos", "relu",
                         "silu", "sigmoid", "square", "copy", "accumulate"}) {
    ops.push_back({op, 1});
  }
  for (const char* op : {"add", "sub", "mul", "div", "max", "min", "bias_add"}) {
    ops.push_back({op, 2});
  }
  for (const char* approximate : {"tanh", "none"}) {
    const graph::Attributes attributes = {{"approximate", approximate}};
    ops.push_back({"gelu", 1, attributes});
    ops.push_back({"gelu_grad", 2, attributes});
    ops.push_back({"bias_gelu", 2, attributes});
    ops.push_back({"bias_gelu_grad", 3, attributes});
  }
  ops.push_back({"dropout", 1, {{"rate", 0.5}, {"stream", 1}}});
  for (DType dtype : {DType::kF32, DType::kF64}) ops.push_back({"cast", 1, {{"dtype", dtype}}});
  return ops;
}

template <typename T>
class NanTest : public ElementwiseTest {};
using FloatTypes = ::testing::Types<float, double>;
TYPED_TEST_SUITE(NanTest, FloatTypes);

bool IsNan(const Tensor& tensor, int64_t i) {
  return tensor.dtype() == DType::kF32 ? std::isnan(tensor.As<float>()[i])
                                       : std::isnan(tensor.As<double>()[i]);
}

// In a vector of its own, in a tail, and in every lane.
TYPED_TEST(NanTest, StayNanElementByElement) {
  using T = TypeParam;
  for (const FloatOp& test : FloatOps()) {
    for (T nan : Nans<T>()) {
      for (int64_t count : {1, 3, 16, 19, 40}) {
        for (int operand = 0; operand < test.num_operands; ++operand) {
          std::vector<Tensor> inputs;
          for (int i = 0; i < test.num_operands; ++i) {
            inputs.push_back(Filled<T>({count}, i == operand ? nan : T(0.5)));
          }
          const Tensor result = this->Run(test.op, inputs, test.attributes)[0];
          for (int64_t i = 0; i < count; ++i) {
            ASSERT_TRUE(IsNan(result, i))
                << test.op << " of " << nan << ", operand " << operand << ", element " << i;
          }
        }
      }
    }
  }
}

TYPED_TEST(NanTest, MakeTheirRowOfSoftmaxNanAndNoOther) {
  using T = TypeParam;
  for (T nan : Nans<T>()) {
    for (int64_t n : {1, 5, 16, 35, 600}) {
      for (int64_t at : {int64_t{0}, n / 2, n - 1}) {
        // Row 1 of rows, column 1 of columns.
        std::vector<T> rows(3 * n, T(0.5));
        rows[n + at] = nan;
        std::vector<T> columns(3 * n, T(0.5));
        columns[3 * at + 1] = nan;
        const auto check = [&](const Tensor& result, bool is_column, const char* what) {
          const int64_t width = result.num_elements() / 3;
          for (int64_t i = 0; i < result.num_elements(); ++i) {
            const int64_t row = is_column ? i % 3 : i / width;
            ASSERT_EQ(IsNan(result, i), row == 1) << what << " with n = " << n << ", element " << i;
          }
        };
        const Tensor x = TensorOf<T>({3, n}, rows);
        const Tensor y = TensorOf<T>({n, 3}, columns);
        const Tensor half = Filled<T>({3, n}, T(0.5));
        const Tensor half_columns = Filled<T>({n, 3}, T(0.5));
        const Tensor ones = Filled<T>({3}, T(1));
        Tensor labels(TensorType{DType::kI64, {3}});
        for (int i = 0; i < 3; ++i) labels.As<int64_t>()[i] = 0;

        check(this->Run("softmax", {x})[0], false, "softmax");
        check(this->Run("softmax", {y}, {{"axis", 0}})[0], true, "softmax of columns");
        check(this->Run("softmax_grad", {x, half})[0], false, "softmax_grad of y");
        check(this->Run("softmax_grad", {half, x})[0], false, "softmax_grad of dy");
        check(this->Run("softmax_grad", {y, half_columns}, {{"axis", 0}})[0], true,
              "softmax_grad of columns");
        check(this->Run("sum_exp", {x, ones})[0], false, "sum_exp");
        const std::vector<Tensor> loss = this->Run("cross_entropy", {x, labels});
        check(loss[0], false, "cross_entropy");
        check(this->Run("cross_entropy_grad", {x, labels, loss[1], loss[2], ones})[0], false,
              "cross_entropy_grad");
        check(this->Run("reduce_max", {x}, {{"axes", graph::AttrValue::Ints({1})}})[0], false,
              "reduce_max");
        check(this->Run("reduce_max", {y}, {{"axes", graph::AttrValue::Ints({0})}})[0], true,
              "reduce_max of columns");
        check(this->Run("reduce_sum", {x}, {{"axes", graph::AttrValue::Ints({1})}})[0], false,
              "reduce_sum");
        check(this->Run("reduce_sum", {y}, {{"axes", graph::AttrValue::Ints({0})}})[0], true,
              "reduce_sum of columns");
      }
    }
  }
}

// A query or a key that is NaN, in the first block of keys and in a later one.
TYPED_TEST(NanTest, ReachWhatAttendsToThem) {
  using T = TypeParam;
  const int64_t width = 4;
  for (T nan : Nans<T>()) {
    for (int64_t keys : {1, 20, 300}) {
      const Tensor query = Filled<T>({1, 1, 2, width}, T(0.5));
      const Tensor value = Filled<T>({1, 1, keys, width}, T(0.5));
      std::vector<T> with_nan(keys * width, T(0.5));
      with_nan[keys * width - 1] = nan;
      const Tensor key = TensorOf<T>({1, 1, keys, width}, with_nan);
      std::vector<T> one_query(2 * width, T(0.5));
      one_query[width] = nan;
      const Tensor query_with_nan = TensorOf<T>({1, 1, 2, width}, one_query);

      const std::vector<Tensor> by_key = this->Run("attention", {query, key, value});
      for (int64_t i = 0; i < 2 * width; ++i) EXPECT_TRUE(IsNan(by_key[0], i)) << keys;
      const std::vector<Tensor> by_query = this->Run("attention", {query_with_nan, value, value});
      for (int64_t i = 0; i < 2 * width; ++i) {
        EXPECT_EQ(IsNan(by_query[0], i), i >= width) << keys << " keys, element " << i;
      }
      EXPECT_FALSE(IsNan(by_query[1], 0));
      EXPECT_TRUE(IsNan(by_query[1], 1));
      const std::vector<Tensor> grads = this->Run(
          "attention_grad",
          {query_with_nan, value, value, by_query[0], by_query[1], Filled<T>(query.shape(), 1)});
      for (int64_t i = 0; i < 2 * width; ++i) EXPECT_EQ(IsNan(grads[0], i), i >= width) << keys;
      for (int64_t i = 0; i < keys * width; ++i) {
        EXPECT_TRUE(IsNan(grads[1], i)) << "dk, element " << i;
        EXPECT_TRUE(IsNan(grads[2], i)) << "dv, element " << i;
      }
    }
  }
}

// ---- Magnitudes.

using Real = long double;

Real GeluValue(Real x) {
  const Real u = std::sqrt(2 / Real(M_PIl)) * (x + Real(0.044715) * x * x * x);
  return x / (1 + std::exp(-2 * u));
}
Real SlopeOfGelu(Real x) {
  if (std::isinf(x)) return x > 0 ? 1 : 0;
  const Real root = std::sqrt(2 / Real(M_PIl));
  const Real u = root * (x + Real(0.044715) * x * x * x);
  const Real s = 1 / (1 + std::exp(-2 * u));
  const Real rest = 1 / (1 + std::exp(2 * u));
  const Real product =
      s * rest == 0 ? 0 : x * 2 * root * (1 + 3 * Real(0.044715) * x * x) * s * rest;
  return s + product;
}
Real ExactGeluValue(Real x) { return x * std::erfc(-x / std::sqrt(Real(2))) / 2; }
Real ExactSlopeOfGelu(Real x) {
  if (std::isinf(x)) return x > 0 ? 1 : 0;
  return std::erfc(-x / std::sqrt(Real(2))) / 2 +
         x * std::exp(-x * x / 2) / std::sqrt(2 * Real(M_PIl));
}

struct UnaryReference {
  std::string op;
  std::function<Real(Real)> f;
  graph::Attributes attributes = {};
  int num_ones = 0;         // further operands, all 1 (a dy)
  int num_zeros = 0;        // operands between, all 0 (a bias)
  double tolerance = 4e-7;  // relative, in f32
};

std::vector<UnaryReference> UnaryReferences() {
  std::vector<UnaryReference> references = {
      {"neg", [](Real x) { return -x; }},
      {"abs", [](Real x) { return std::abs(x); }},
      {"exp", [](Real x) { return std::exp(x); }},
      {"log", [](Real x) { return std::log(x); }},
      {"tanh", [](Real x) { return std::tanh(x); }},
      {"sqrt", [](Real x) { return std::sqrt(x); }},
      {"rsqrt", [](Real x) { return 1 / std::sqrt(x); }},
      {"sin", [](Real x) { return std::sin(x); }},
      {"cos", [](Real x) { return std::cos(x); }},
      {"relu", [](Real x) { return x < 0 ? 0 : x; }},
      {"silu", [](Real x) { return x / (1 + std::exp(-x)); }},
      {"sigmoid", [](Real x) { return 1 / (1 + std::exp(-x)); }},
      {"square", [](Real x) { return x * x; }}};
  for (const auto& [approximate, value, slope] :
       {std::tuple{"tanh", &GeluValue, &SlopeOfGelu},
        std::tuple{"none", &ExactGeluValue, &ExactSlopeOfGelu}}) {
    const graph::Attributes attributes = {{"approximate", approximate}};
    // The exponents of the tails are some 100, and so are their roundings.
    references.push_back({"gelu", value, attributes, 0, 0, 3e-5});
    references.push_back({"bias_gelu", value, attributes, 0, 1, 3e-5});
    references.push_back({"gelu_grad", slope, attributes, 1, 0, 3e-5});
    references.push_back({"bias_gelu_grad", slope, attributes, 1, 1, 3e-5});
  }
  return references;
}

template <typename T>
std::vector<T> Magnitudes() {
  std::vector<T> values = {0, 1, 2, 3, 5, 8, 10, 12, 20, 40, 80, 87, 88, 89, 100, 700, 709, 710};
  for (int exponent = -38; exponent <= 38; ++exponent) {
    values.push_back(static_cast<T>(std::pow(Real(10), exponent)));
    values.push_back(static_cast<T>(3 * std::pow(Real(10), exponent)));
  }
  if constexpr (sizeof(T) == 8) {
    for (int exponent : {-307, -200, -100, 100, 200, 308}) {
      values.push_back(static_cast<T>(std::pow(Real(10), exponent)));
    }
  }
  values.push_back(std::numeric_limits<T>::max());
  values.push_back(std::numeric_limits<T>::infinity());
  const size_t count = values.size();
  for (size_t i = 0; i < count; ++i) values.push_back(-values[i]);
  return values;
}

// Equal up to `tolerance` and `factor` times the smallest normal number: what is below may be 0.
template <typename T>
::testing::AssertionResult IsNear(T actual, Real expected, double tolerance, Real factor = 1) {
  const auto fail = [&] {
    return ::testing::AssertionFailure()
           << actual << " instead of " << static_cast<double>(expected);
  };
  if (std::isnan(expected)) return std::isnan(actual) ? ::testing::AssertionSuccess() : fail();
  const T rounded = static_cast<T>(expected);
  if (std::isinf(rounded)) return actual == rounded ? ::testing::AssertionSuccess() : fail();
  const Real error = std::abs(static_cast<Real>(actual) - expected);
  return error <= tolerance * std::abs(expected) + factor * std::numeric_limits<T>::min()
             ? ::testing::AssertionSuccess()
             : fail();
}

template <typename T>
class MagnitudeTest : public ElementwiseTest {};
TYPED_TEST_SUITE(MagnitudeTest, FloatTypes);

TYPED_TEST(MagnitudeTest, FunctionsOfOneNumber) {
  using T = TypeParam;
  const std::vector<T> values = Magnitudes<T>();
  const Shape shape = {static_cast<int64_t>(values.size())};
  for (const UnaryReference& test : UnaryReferences()) {
    std::vector<Tensor> inputs = {TensorOf<T>(shape, values)};
    for (int i = 0; i < test.num_zeros; ++i) inputs.push_back(Filled<T>(shape, 0));
    for (int i = 0; i < test.num_ones; ++i) inputs.push_back(Filled<T>(shape, 1));
    const Tensor result = this->Run(test.op, inputs, test.attributes)[0];
    for (size_t i = 0; i < values.size(); ++i) {
      const Real expected = test.f(static_cast<Real>(values[i]));
      const T actual = result.As<T>()[i];
      // silu and gelu multiply x and a sigmoid that may be below the normal numbers.
      const Real factor = std::max(Real(1), std::abs(static_cast<Real>(values[i])));
      EXPECT_TRUE(IsNear(actual, expected, test.tolerance * (sizeof(T) == 8 ? 1e-8 : 1), factor))
          << test.op << " of " << values[i];
      // bias_* add +0 first, and so lose the sign of a zero.
      if (values[i] == 0 && expected == 0 && test.num_zeros == 0) {
        EXPECT_EQ(std::signbit(actual), std::signbit(expected)) << test.op << " of " << values[i];
      }
    }
  }
}

TYPED_TEST(MagnitudeTest, FunctionsOfTwoNumbers) {
  using T = TypeParam;
  using Function = Real (*)(Real, Real);
  const std::vector<std::pair<std::string, Function>> references = {
      {"add", [](Real x, Real y) { return x + y; }},
      {"bias_add", [](Real x, Real y) { return x + y; }},
      {"sub", [](Real x, Real y) { return x - y; }},
      {"mul", [](Real x, Real y) { return x * y; }},
      {"div", [](Real x, Real y) { return x / y; }},
      {"max", [](Real x, Real y) { return x > y ? x : y; }},
      {"min", [](Real x, Real y) { return x < y ? x : y; }}};
  std::vector<T> x;
  std::vector<T> y;
  for (T first : Magnitudes<T>()) {
    for (T second : Magnitudes<T>()) {
      x.push_back(first);
      y.push_back(second);
    }
  }
  const Shape shape = {static_cast<int64_t>(x.size())};
  for (const auto& [op, f] : references) {
    const Tensor result = this->Run(op, {TensorOf<T>(shape, x), TensorOf<T>(shape, y)})[0];
    for (size_t i = 0; i < x.size(); ++i) {
      ASSERT_TRUE(IsNear(result.As<T>()[i], f(x[i], y[i]), sizeof(T) == 4 ? 1e-7 : 1e-15))
          << op << " of " << x[i] << " and " << y[i];
    }
  }
}

// docs/OPERATORS.md, "Numerical conventions".
TEST_F(ElementwiseTest, ExpOfWhatIsBelowTheNormalNumbersIsZero) {
  const Tensor x =
      TensorOf<float>({4}, {-87.33f, -87.34f, -100.0f, -std::numeric_limits<float>::infinity()});
  const Tensor y = Run("exp", {x})[0];
  EXPECT_GE(y.As<float>()[0], std::numeric_limits<float>::min());
  for (int i : {1, 2, 3}) EXPECT_EQ(y.As<float>()[i], 0.0f) << i;
  // Denormal operands count: e^x - 1 = x here, and products may be denormal.
  const float tiny = 1e-40f;
  const Tensor small = Filled<float>({1}, tiny);
  EXPECT_EQ(Run("tanh", {small})[0].As<float>()[0], tiny);
  EXPECT_EQ(Run("mul", {small, Filled<float>({1}, 0.5f)})[0].As<float>()[0], tiny * 0.5f);
  EXPECT_EQ(Run("add", {small, small})[0].As<float>()[0], tiny * 2);
}

// Every float near the largest x whose exponential is finite: the sum of a power of two and a
// mantissa that is rounded up to 1 would be a NaN.
TEST_F(ElementwiseTest, TheLastFiniteExponentialIsFollowedByInfinity) {
  const auto floats = [](float first, float last) {
    std::vector<float> values;
    for (float x = first; x < last; x = std::nextafter(x, last)) values.push_back(x);
    return TensorOf<float>({static_cast<int64_t>(values.size())}, values);
  };
  const Tensor large = floats(88.7f, 88.75f);
  const Tensor exponentials = Run("exp", {large})[0];
  for (int64_t i = 0; i < large.num_elements(); ++i) {
    ASSERT_TRUE(IsNear(exponentials.As<float>()[i],
                       std::exp(static_cast<Real>(large.As<float>()[i])), 4e-7))
        << "exp of " << large.As<float>()[i];
  }
  for (const auto& [op, x] :
       {std::pair{"sigmoid", floats(-88.75f, -88.7f)}, std::pair{"silu", floats(-88.75f, -88.7f)},
        std::pair{"gelu", floats(-10.07f, -10.05f)}}) {
    const Tensor y = Run(op, {x})[0];
    for (int64_t i = 0; i < x.num_elements(); ++i) {
      ASSERT_TRUE(std::abs(y.As<float>()[i]) < 1e-36f) << op << " of " << x.As<float>()[i];
    }
  }
}

TEST_F(ElementwiseTest, CastsToIntegersSaturate) {
  const Tensor x =
      TensorOf<float>({7}, {-1e30f, -200.9f, -1.9f, 1.9f, 200.9f, 1e30f, std::nanf("")});
  const auto cast = [&](DType dtype) { return Run("cast", {x}, {{"dtype", dtype}})[0]; };
  const auto check = [&](const Tensor& actual, std::vector<int64_t> expected) {
    for (size_t i = 0; i < expected.size(); ++i) {
      const int64_t value = actual.dtype() == DType::kI8    ? actual.As<int8_t>()[i]
                            : actual.dtype() == DType::kU8  ? actual.As<uint8_t>()[i]
                            : actual.dtype() == DType::kI32 ? actual.As<int32_t>()[i]
                                                            : actual.As<int64_t>()[i];
      EXPECT_EQ(value, expected[i]) << x.As<float>()[i];
    }
  };
  constexpr int64_t kMin64 = std::numeric_limits<int64_t>::min();
  constexpr int64_t kMax64 = std::numeric_limits<int64_t>::max();
  check(cast(DType::kI8), {-128, -128, -1, 1, 127, 127, 0});
  check(cast(DType::kU8), {0, 0, 0, 1, 200, 255, 0});
  check(cast(DType::kI32), {INT32_MIN, -200, -1, 1, 200, INT32_MAX, 0});
  check(cast(DType::kI64), {kMin64, -200, -1, 1, 200, kMax64, 0});
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(cast(DType::kBool).As<bool>()[i]) << x.As<float>()[i];
  Tensor wide(TensorType{DType::kI32, {1}});
  wide.As<int32_t>()[0] = 300;
  EXPECT_EQ(Run("cast", {wide}, {{"dtype", DType::kI8}})[0].As<int8_t>()[0], 44);
}

TEST_F(ElementwiseTest, ComparisonsWithNanAreFalse) {
  const Tensor nan = Filled<float>({3}, std::nanf(""));
  for (const char* op : {"equal", "less", "greater"}) {
    for (const Tensor& y : {nan, Filled<float>({3}, 1)}) {
      EXPECT_FALSE(Run(op, {nan, y})[0].As<bool>()[0]) << op;
      EXPECT_FALSE(Run(op, {y, nan})[0].As<bool>()[0]) << op;
    }
  }
}

TEST_F(ElementwiseTest, ReductionsOfNothing) {
  const Tensor none(TensorType{DType::kF32, {2, 0}});
  const Tensor no_rows(TensorType{DType::kF32, {0, 2}});
  const Tensor no_integers(TensorType{DType::kI32, {2, 0}});
  const auto over = [](int64_t axis) {
    return graph::Attributes{{"axes", graph::AttrValue::Ints({axis})}};
  };
  for (const auto& [x, axis] : {std::pair{none, 1}, std::pair{no_rows, 0}}) {
    for (int i : {0, 1}) {
      EXPECT_EQ(Run("reduce_sum", {x}, over(axis))[0].As<float>()[i], 0);
      EXPECT_TRUE(std::isnan(Run("reduce_mean", {x}, over(axis))[0].As<float>()[i]));
      EXPECT_EQ(Run("reduce_max", {x}, over(axis))[0].As<float>()[i], -kInfinity);
    }
  }
  EXPECT_EQ(Run("reduce_max", {no_integers}, over(1))[0].As<int32_t>()[0], INT32_MIN);
}

}  // namespace
}  // namespace penstock::kernels
