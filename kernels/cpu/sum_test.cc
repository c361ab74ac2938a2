// Every reduction of a million elements, in f32 against f64, and the order of sums.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "base/device.h"
#include "base/strings.h"
#include "graph/op.h"
#include "kernels/kernel.h"
#include "tests/support/interpreter.h"
#include "tests/support/kernel_case.h"

namespace penstock::kernels {
namespace {

using graph::AttrValue;

constexpr int64_t kMany = 1'000'000;

// 1024 u: docs/OPERATORS.md.
constexpr double kAttentionTolerance = 1024 * 0x1p-24;

AttrValue SumInts(std::vector<int64_t> values) { return AttrValue::Ints(values); }

struct SumOperand {
  Shape shape;
  double low = 0;
  double high = 1;
  bool is_index = false;
};

struct SumCase {
  std::string op;
  graph::Attributes attributes;
  std::vector<SumOperand> operands;
  // Of a result's largest element. All roundings of equal terms go one way.
  double tolerance = 1e-6;
  double tolerance_of_equal = 1e-6;
};

std::vector<SumCase> SumCases() {
  const auto axes = [](std::vector<int64_t> values) {
    return graph::Attributes{{"axes", SumInts(std::move(values))}};
  };
  std::vector<SumCase> cases;
  for (const char* op : {"reduce_sum", "reduce_mean"}) {
    cases.push_back({op, axes({0}), {{{kMany}}}});
    cases.push_back({op, axes({0}), {{{kMany, 1}}}});
    for (int64_t width : {2, 3, 16, 40, 70}) {
      cases.push_back({op, axes({0}), {{{kMany, width}}}});
    }
    cases.push_back({op, axes({1}), {{{3, kMany}}}});
    cases.push_back({op, axes({1}), {{{2, kMany, 3}}}});
    cases.push_back({op, axes({0, 2}), {{{kMany / 4, 2, 4}}}});
    cases.push_back({op, axes({0, 2}), {{{1000, 2, 1000}}}});
    cases.push_back({op, axes({0, 2}), {{{1000, 2, 1000, 3}}}});
    cases.push_back({op, axes({0, 1, 2}), {{{10, 100, 1000}}}});
  }
  cases.push_back({"sum_squares", {}, {{{kMany}}}});
  cases.push_back({"sum_exp", {}, {{{2, kMany}}, {{2}}}});
  cases.push_back({"softmax", {}, {{{2, kMany}}}});
  cases.push_back({"softmax", {{"axis", 0}}, {{{kMany, 3}}}});
  cases.push_back({"softmax_grad", {}, {{{2, kMany}, 0, 1e-6}, {{2, kMany}}}});
  cases.push_back({"softmax_grad", {{"axis", 0}}, {{{kMany, 3}, 0, 1e-6}, {{kMany, 3}}}});
  cases.push_back({"cross_entropy", {}, {{{2, kMany}}, {{2}, 0, kMany, true}}});
  // Of equal elements the result is the rounding of the mean times 1 / sqrt(epsilon).
  cases.push_back({"layer_norm", {}, {{{2, kMany}}, {{kMany}}, {{kMany}}}, 1e-6, 3e-5});
  cases.push_back({"layer_norm_grad",
                   {},
                   {{{2, kMany}}, {{2, kMany}}, {{kMany}}, {{2}, 0.4, 0.6}, {{2}, 1, 2}}});
  cases.push_back({"rms_norm", {}, {{{2, kMany}}, {{kMany}}}});
  cases.push_back({"rms_norm_grad", {}, {{{2, kMany}}, {{2, kMany}}, {{kMany}}, {{2}, 1, 2}}});
  for (int64_t width : {3, 16, 70}) {
    const SumOperand x = {{kMany, width}};
    const SumOperand column = {{kMany}, 1, 2};
    cases.push_back({"layer_norm_weight_grad", {}, {x, x, {{kMany}, -1, 0}, column}});
    cases.push_back({"rms_norm_weight_grad", {}, {x, x, column}});
    cases.push_back({"embedding_grad", {{"rows", 3}}, {x, {{kMany}, 1, 2, true}}});
    cases.push_back({"embedding_grad", {{"rows", 3}}, {x, {{kMany}, 0, 3, true}}});
  }
  // Wide rows, which are read in pieces.
  for (const char* op : {"layer_norm_weight_grad", "rms_norm_weight_grad"}) {
    const SumOperand x = {{700, 1500}};
    std::vector<SumOperand> operands = {x, x, {{700}, 1, 2}};
    if (std::string_view(op) == "layer_norm_weight_grad") {
      operands.insert(operands.begin() + 2, {{700}, -1, 0});
    }
    cases.push_back({op, {}, std::move(operands)});
  }
  // Contractions: one product, with a or b transposed; strides that oneDNN does not take; a sum
  // over indices that do not join; a single operand.
  const auto matmul = [&](const char* transpose, const Shape& a, const Shape& b) {
    graph::Attributes attributes;
    if (*transpose != 0) attributes = {{transpose, true}};
    cases.push_back({"matmul", attributes, {{a}, {b}}, 1e-6, 1e-5});
  };
  matmul("", {2, kMany}, {kMany, 3});
  matmul("transpose_a", {kMany, 2}, {kMany, 3});
  matmul("transpose_b", {2, kMany}, {3, kMany});
  matmul("transpose_a", {kMany / 10, 70}, {kMany / 10, 60});
  matmul("transpose_b", {300, kMany / 100}, {2, kMany / 100});
  // The longest running sums.
  cases.push_back({"matmul", {}, {{{65, 4096}}, {{4096, 64}}}, 1e-6, 4096 * 0x1p-24});
  const auto einsum = [&](const char* equation, std::vector<SumOperand> operands) {
    cases.push_back({"einsum", {{"equation", equation}}, std::move(operands), 1e-6, 1e-5});
  };
  einsum("i,i->", {{{kMany}}, {{kMany}}});
  einsum("ij->j", {{{kMany, 3}}});
  einsum("imj,jni->mn", {{{1000, 2, 1000}}, {{1000, 3, 1000}}});
  einsum("imj,jni->mn", {{{kMany / 4, 2, 4}}, {{4, 3, kMany / 4}}});
  einsum("kbm,kbn->bmn", {{{kMany, 2, 2}}, {{kMany, 2, 3}}});
  einsum("kmb,knb->bmn", {{{kMany, 2, 3}}, {{kMany, 3, 3}}});
  const SumOperand one = {{1, 1, 1, 4}};
  const SumOperand many = {{1, 1, kMany, 4}};
  cases.push_back({"attention", {}, {one, many, many}, 1e-6, 1e-5});
  // (q, k, v, o, lse, do): dq over the keys, then dk and dv over the queries. With o < 0 all terms
  // are of one sign.
  const auto attention_grad = [&](const Shape& q, const Shape& k) {
    const SumOperand lse = {{1, 1, q[2]}};
    cases.push_back(
        {"attention_grad", {}, {{q}, {k}, {k}, {q, -1, 0}, lse, {q}}, 1e-6, kAttentionTolerance});
  };
  attention_grad({1, 1, 1, 4}, {1, 1, kMany, 4});
  attention_grad({1, 1, kMany, 4}, {1, 1, 1, 4});
  // As many queries as keys: a million of each would be 10^12 terms.
  constexpr int64_t kSquare = 1 << 14;
  const SumOperand heads = {{1, kSquare, 1, 4}};
  cases.push_back({"qkv_attention_grad",
                   {{"causal", true}},
                   {{{1, kSquare, 3, 1, 4}}, {heads.shape, -1, 0}, {{1, 1, kSquare}}, heads},
                   2e-7,
                   kAttentionTolerance});
  return cases;
}

// The case's operands in `dtype`: uniform numbers or, all the same, a tenth of the way from low to
// high, whose sums err to one side.
std::vector<Tensor> Draw(const SumCase& test, DType dtype, bool is_constant) {
  std::vector<Tensor> tensors;
  uint64_t state = 1;
  for (const SumOperand& operand : test.operands) {
    Tensor tensor(TensorType{operand.is_index ? DType::kI64 : dtype, operand.shape});
    for (int64_t i = 0; i < tensor.num_elements(); ++i) {
      // Knuth's linear congruential generator: millions of draws, soon made.
      state = state * 6364136223846793005u + 1442695040888963407u;
      const double draw = static_cast<double>(state >> 11) * 0x1p-53;
      const double share = is_constant && !operand.is_index ? 0.1 : draw;
      const double value = operand.low + (operand.high - operand.low) * share;
      if (operand.is_index) {
        tensor.As<int64_t>()[i] = static_cast<int64_t>(value);
      } else if (dtype == DType::kF32) {
        tensor.As<float>()[i] = static_cast<float>(value);
      } else {
        tensor.As<double>()[i] = static_cast<float>(value);
      }
    }
    tensors.push_back(std::move(tensor));
  }
  return tensors;
}

std::vector<Tensor> RunCase(const SumCase& test, DType dtype, bool is_constant, int num_threads) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  const KernelRegistry kernels = CpuKernels();
  const std::unique_ptr<Device> device = CreateCpuDevice(num_threads);
  const std::vector<Tensor> inputs = Draw(test, dtype, is_constant);
  std::vector<TensorType> types;
  for (const Tensor& input : inputs) types.push_back(input.type());
  const auto results = ops.Find(test.op)->InferTypes({test.attributes, types, {}});
  EXPECT_TRUE(results.ok()) << results.status();
  if (!results.ok()) return {};
  KernelSpec spec;
  spec.op = test.op;
  spec.attributes = test.attributes;
  for (const TensorType& type : types) spec.inputs.push_back(testing::WholeTile(type));
  for (const TensorType& type : *results) spec.outputs.push_back(testing::WholeTile(type));
  auto outputs = testing::RunKernel(kernels, *device, spec, inputs);
  EXPECT_TRUE(outputs.ok()) << outputs.status();
  return outputs.ok() ? *std::move(outputs) : std::vector<Tensor>();
}

class SumCaseTest : public ::testing::TestWithParam<SumCase> {};

TEST_P(SumCaseTest, AMillionTermsAreAsAccurateAsAFew) {
  const SumCase& test = GetParam();
  for (bool is_constant : {false, true}) {
    const std::vector<Tensor> actual = RunCase(test, DType::kF32, is_constant, 2);
    const std::vector<Tensor> expected = RunCase(test, DType::kF64, is_constant, 2);
    ASSERT_EQ(actual.size(), expected.size());
    for (size_t r = 0; r < actual.size(); ++r) {
      double largest = 0;
      double error = 0;
      for (int64_t i = 0; i < actual[r].num_elements(); ++i) {
        const double value = expected[r].As<double>()[i];
        largest = std::max(largest, std::abs(value));
        error = std::max(error, std::abs(actual[r].As<float>()[i] - value));
      }
      EXPECT_LE(error, (is_constant ? test.tolerance_of_equal : test.tolerance) * largest)
          << "result " << r << (is_constant ? " of equal elements" : " of random elements")
          << ": relative error " << error / largest;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, SumCaseTest, ::testing::ValuesIn(SumCases()),
                         [](const ::testing::TestParamInfo<SumCase>& info) {
                           return info.param.op + "_" + std::to_string(info.index);
                         });

// The f64 sums that others are measured by, against what they are.
TEST(SumTest, DoublesAreExactToTheirDigits) {
  for (const Shape& shape : {Shape{kMany}, Shape{kMany, 3}}) {
    const SumCase test = {"reduce_sum", {{"axes", SumInts({0})}}, {{shape}}};
    const std::vector<Tensor> sums = RunCase(test, DType::kF64, /*is_constant=*/true, 1);
    ASSERT_EQ(sums.size(), 1);
    const double expected = static_cast<double>(0.1f) * static_cast<double>(kMany);
    for (int64_t i = 0; i < sums[0].num_elements(); ++i) {
      EXPECT_NEAR(sums[0].As<double>()[i], expected, 1e-10 * expected);
    }
  }
}

// docs/OPERATORS.md: M micro-batches err by (M - 1) u at most, and do err: the sum is kept in f32.
TEST(SumTest, MicrobatchesAddUpInTheResultsType) {
  constexpr int64_t kMicrobatches = 1000;
  const TileDesc tile = testing::WholeTile({DType::kF32, {20}});
  for (const char* op : {"accumulate", "reduce_sum"}) {
    KernelSpec spec;
    spec.op = op;
    const bool is_reduction = spec.op == "reduce_sum";
    const TileDesc rows = testing::WholeTile({DType::kF32, {1, 20}});
    if (is_reduction) spec.attributes = {{"axes", SumInts({0})}};
    spec.inputs = {is_reduction ? rows : tile};
    spec.outputs = {tile};
    spec.accumulate = true;
    testing::KernelRunner runner(1);
    auto kernel = runner.Create(spec);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    Tensor x(TensorType{DType::kF32, spec.inputs[0].shape});
    std::fill_n(x.As<float>(), 20, 0.1f);
    Tensor sum(TensorType{DType::kF32, {20}});
    float expected = 0;
    for (int64_t m = 0; m < kMicrobatches; ++m) {
      ASSERT_TRUE(runner.Run(**kernel, {x}, {sum}, m).ok());
      expected += 0.1f;
    }
    const double exact = static_cast<double>(0.1f) * kMicrobatches;
    for (int64_t i = 0; i < 20; ++i) {
      EXPECT_EQ(sum.As<float>()[i], expected) << op;
      EXPECT_LE(std::abs(sum.As<float>()[i] - exact), (kMicrobatches - 1) * 0x1p-24 * exact) << op;
    }
  }
}

// Every length about those of vectors and blocks, and every element once: small integers, whose
// sums are exact.
TEST(SumTest, RowsAndColumnsOfAnyLength) {
  const KernelRegistry kernels = CpuKernels();
  const std::unique_ptr<Device> device = CreateCpuDevice(1);
  const auto check = [&](int64_t rows, int64_t columns, int64_t axis) {
    const TensorType type{DType::kF32, {rows, columns}};
    const TensorType result{DType::kF32, {axis == 0 ? columns : rows}};
    Tensor x(type);
    std::vector<float> expected(result.shape[0], 0.0f);
    for (int64_t i = 0; i < rows * columns; ++i) {
      x.As<float>()[i] = static_cast<float>(i % 61);
      expected[axis == 0 ? i % columns : i / columns] += static_cast<float>(i % 61);
    }
    KernelSpec spec;
    spec.op = "reduce_sum";
    spec.attributes = {{"axes", SumInts({axis})}};
    spec.inputs = {testing::WholeTile(type)};
    spec.outputs = {testing::WholeTile(result)};
    const auto sums = testing::RunKernel(kernels, *device, spec, {&x, 1});
    ASSERT_TRUE(sums.ok()) << sums.status();
    for (int64_t i = 0; i < result.shape[0]; ++i) {
      ASSERT_EQ((*sums)[0].As<float>()[i], expected[i])
          << rows << " x " << columns << " over axis " << axis << ", sum " << i;
    }
  };
  for (int64_t count = 0; count < 2200; ++count) check(2, count, 1);
  for (int64_t columns : {1, 2, 3, 15, 16, 17, 40, 63, 64, 65, 127, 129, 1030}) {
    for (int64_t rows : {0, 1, 2, 7, 8, 9, 15, 16, 17, 63, 64, 65, 72, 73, 515}) {
      check(rows, columns, 0);
    }
  }
}

// Row i of the table has i sources, in turns with the others.
TEST(SumTest, EmbeddingGradSumsAnyNumberOfSources) {
  constexpr int64_t kRows = 20;
  std::vector<int64_t> ids;
  for (int64_t turn = 1; turn < kRows; ++turn) {
    for (int64_t row = turn; row < kRows; ++row) ids.push_back(row);
  }
  const int64_t count = static_cast<int64_t>(ids.size());
  Tensor index(TensorType{DType::kI64, {count}});
  std::copy(ids.begin(), ids.end(), index.As<int64_t>());
  for (int64_t width : {1, 15, 16, 37, 1030}) {
    Tensor dy(TensorType{DType::kF32, {count, width}});
    std::vector<float> sums(kRows * width, 0.0f);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = 0; j < width; ++j) {
        const float value = static_cast<float>((i * width + j) % 61);
        dy.As<float>()[i * width + j] = value;
        sums[ids[i] * width + j] += value;
      }
    }
    KernelSpec spec;
    spec.op = "embedding_grad";
    spec.attributes = {{"rows", kRows}};
    spec.inputs = {testing::WholeTile(dy.type()), testing::WholeTile(index.type())};
    spec.outputs = {testing::WholeTile({DType::kF32, {kRows, width}})};
    spec.accumulate = true;
    testing::KernelRunner runner(1);
    auto kernel = runner.Create(spec);
    ASSERT_TRUE(kernel.ok()) << kernel.status();
    Tensor table(TensorType{DType::kF32, {kRows, width}});
    for (int64_t microbatch = 0; microbatch < 2; ++microbatch) {
      ASSERT_TRUE(runner.Run(**kernel, {dy, index}, {table}, microbatch).ok());
      for (int64_t i = 0; i < kRows * width; ++i) {
        ASSERT_EQ(table.As<float>()[i], static_cast<float>(microbatch + 1) * sums[i])
            << "row " << i / width << " of width " << width << ", micro-batch " << microbatch;
      }
    }
  }
}

TEST(SumTest, ThreadsDoNotChangeABit) {
  const std::vector<SumCase> cases = {
      {"reduce_sum", {{"axes", SumInts({0})}}, {{{3001, 300}}}},
      {"reduce_sum", {{"axes", SumInts({0})}}, {{{30011, 3}}}},
      {"reduce_mean", {{"axes", SumInts({0, 2})}}, {{{301, 5, 7}}}},
      {"softmax", {{"axis", 0}}, {{{301, 300}}}},
      {"softmax_grad", {{"axis", 0}}, {{{301, 300}}, {{301, 300}}}},
      {"layer_norm_weight_grad", {}, {{{301, 300}}, {{301, 300}}, {{301}}, {{301}}}},
      {"rms_norm_weight_grad", {}, {{{301, 300}}, {{301, 300}}, {{301}}}},
      {"layer_norm_weight_grad", {}, {{{301, 2100}}, {{301, 2100}}, {{301}}, {{301}}}},
      {"softmax_grad", {{"axis", 0}}, {{{301, 2100}}, {{301, 2100}}}},
      {"embedding_grad", {{"rows", 11}}, {{{3001, 300}}, {{3001}, 0, 11, true}}},
      {"embedding_grad", {{"rows", 1000}}, {{{3001, 300}}, {{3001}, 0, 1000, true}}},
      {"sum_squares", {}, {{{100'001}}}}};
  for (const SumCase& test : cases) {
    const std::vector<Tensor> expected = RunCase(test, DType::kF32, false, 1);
    for (int num_threads : {2, 5}) {
      const std::vector<Tensor> actual = RunCase(test, DType::kF32, false, num_threads);
      ASSERT_EQ(actual.size(), expected.size());
      for (size_t r = 0; r < actual.size(); ++r) {
        EXPECT_EQ(std::memcmp(actual[r].data(), expected[r].data(), actual[r].num_bytes()), 0)
            << test.op << " on " << num_threads << " threads, result " << r;
      }
    }
  }
}

// The library that multiplies adds up a tile's terms in an order that, on processors without
// AVX-512, depends on how many rows a thread has. Each number of threads has its own bits.
TEST(SumTest, ProductsAreRepeatableOnAnyNumberOfThreads) {
  const std::vector<SumCase> cases = {
      {"matmul", {{"transpose_a", true}}, {{{20'011, 70}}, {{20'011, 90}}}},
      {"einsum", {{"equation", "kmb,knb->bmn"}}, {{{20'011, 2, 3}}, {{20'011, 3, 3}}}}};
  for (const SumCase& test : cases) {
    const Tensor exact = RunCase(test, DType::kF64, false, 1)[0];
    for (const int num_threads : {1, 2, 5}) {
      SCOPED_TRACE(StrCat(test.op, " on ", num_threads, " threads"));
      const Tensor first = RunCase(test, DType::kF32, false, num_threads)[0];
      const Tensor second = RunCase(test, DType::kF32, false, num_threads)[0];
      EXPECT_EQ(std::memcmp(first.data(), second.data(), first.num_bytes()), 0);
      double largest = 0;
      for (int64_t i = 0; i < exact.num_elements(); ++i) {
        largest = std::max(largest, std::abs(exact.As<double>()[i]));
      }
      for (int64_t i = 0; i < exact.num_elements(); ++i) {
        EXPECT_NEAR(first.As<float>()[i], exact.As<double>()[i], 2e-6 * largest) << i;
      }
    }
  }
}

}  // namespace
}  // namespace penstock::kernels
