// What the operators cost, against a table of its own: one entry for every operator. And what holds
// of all of them: a split operator does the work of the whole.

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/op.h"
#include "tests/support/op_cases.h"

namespace penstock::graph {
namespace {

// An operator at some types, all of its results bound.
struct Case {
  std::string op;
  Attributes attributes;
  std::vector<TensorType> operands;
  std::vector<TensorType> results;

  double operand(int i) const { return static_cast<double>(operands[i].num_elements()); }
  double result(int i = 0) const { return static_cast<double>(results[i].num_elements()); }
  double operand_bytes(int i) const { return operand(i) * ElementBytes(operands[i]); }
  double result_bytes(int i = 0) const { return result(i) * ElementBytes(results[i]); }
  double AllBytes() const {
    double bytes = 0;
    for (size_t i = 0; i < operands.size(); ++i) bytes += operand_bytes(static_cast<int>(i));
    for (size_t i = 0; i < results.size(); ++i) bytes += result_bytes(static_cast<int>(i));
    return bytes;
  }
  static double ElementBytes(const TensorType& type) {
    return static_cast<double>(ByteSize(type.dtype));
  }
};

using Count = std::function<double(const Case&)>;

struct Expectation {
  Count flops;
  Count bytes = [](const Case& c) { return c.AllBytes(); };
};

// `flops` an element of the first result, or of an operand.
Expectation EachResult(double flops) {
  return {[flops](const Case& c) { return flops * c.result(); }};
}
Expectation EachOperand(double flops, int i = 0) {
  return {[flops, i](const Case& c) { return flops * c.operand(i); }};
}
Expectation Nothing() {
  return {[](const Case&) { return 0.0; }, [](const Case&) { return 0.0; }};
}
Expectation Moves() {
  return {[](const Case&) { return 0.0; }};
}
Expectation MovesBytes(Count bytes) {
  return {[](const Case&) { return 0.0; }, std::move(bytes)};
}

// Query and key pairs that `batch` times `heads` heads see.
double Pairs(double heads, int64_t queries, int64_t keys, bool is_causal) {
  double pairs = 0;
  for (int64_t query = 0; query < queries; ++query) {
    for (int64_t key = 0; key < keys; ++key) {
      if (!is_causal || key <= query + keys - queries) pairs += heads;
    }
  }
  return pairs;
}

// `products` products of the head's size for every pair.
Expectation Attention(double products) {
  return {[products](const Case& c) {
    const Shape& q = c.operands[0].shape;
    return products * 2.0 * static_cast<double>(q[3]) *
           Pairs(static_cast<double>(q[0] * q[1]), q[2], c.operands[1].shape[2],
                 c.attributes.GetBool("causal", false));
  }};
}
Expectation QkvAttention(double products) {
  return {[products](const Case& c) {
    const Shape& qkv = c.operands[0].shape;
    return products * 2.0 * static_cast<double>(qkv[4]) *
           Pairs(static_cast<double>(qkv[0] * qkv[3]), qkv[1], qkv[1],
                 c.attributes.GetBool("causal", false));
  }};
}

// Of one step of ring attention every part of the queries sees a part of the keys, on the diagonal
// half of it.
Expectation BlockAttention(double products) {
  return {[products](const Case& c) {
    const auto block = static_cast<double>(c.attributes.GetInt("block", 0));
    const bool is_half =
        c.attributes.GetBool("causal", false) && c.attributes.GetInt("shift", 0) == 0;
    return products * 2.0 * c.operand(0) * (is_half ? (block + 1) / 2 : block);
  }};
}

// A multiplication and an addition for each element of y and each weight of its channel, of the
// weights in operand `w`.
Expectation Convolution(int w, Count y) {
  return {[w, y](const Case& c) {
    const Shape& weights = c.operands[w].shape;
    return 2.0 * static_cast<double>(weights[1] * weights[2] * weights[3]) * y(c);
  }};
}

// An operation for each element of each window, of the whole image where there is none.
Expectation Pooling(Count y) {
  return {[y](const Case& c) {
    const Shape window = c.attributes.GetInts("window");
    const Shape& image = c.operands[0].shape;
    return y(c) * static_cast<double>(window.empty() ? image[2] * image[3] : window[0] * window[1]);
  }};
}

double EinsumFlops(const Case& c) {
  static const std::map<std::string, double> flops = {
      {"bmk,bkn->bmn", 2 * (2 * 3 * 4 * 2)},
      {"abc,cd->bad", 2 * (2 * 3 * 4 * 2)},
      {"ij,k->ki", 2 * (2 * 3 * 4)},  // j is summed over
      {"i,i->", 2 * 4},
      {"i,j->ij", 2 * 3},
      {"ijk->ki", 2 * 3 * 4},
      {"ij->ji", 0},
  };
  return flops.at(c.attributes.GetString("equation", ""));
}

double SgdFlops(const Case& c) {
  const bool is_nesterov = c.attributes.GetBool("nesterov", false);
  return c.operand(0) * (c.operands.size() == 4 ? 5 : is_nesterov ? 12 : 7);
}

const std::map<std::string, Expectation, std::less<>>& Expectations() {
  static const std::map<std::string, Expectation, std::less<>> expectations = {
      {"add", EachResult(1)},
      {"sub", EachResult(1)},
      {"mul", EachResult(1)},
      {"div", EachResult(4)},
      {"max", EachResult(1)},
      {"min", EachResult(1)},
      {"equal", EachResult(1)},
      {"less", EachResult(1)},
      {"greater", EachResult(1)},
      {"where", EachResult(1)},
      {"neg", EachResult(1)},
      {"abs", EachResult(1)},
      {"exp", EachResult(8)},
      {"log", EachResult(8)},
      {"tanh", EachResult(10)},
      {"sqrt", EachResult(4)},
      {"square", EachResult(1)},
      {"rsqrt", EachResult(5)},
      {"sin", EachResult(10)},
      {"cos", EachResult(10)},
      {"relu", EachResult(1)},
      {"silu", EachResult(10)},
      {"sigmoid", EachResult(9)},
      {"gelu", EachResult(15)},
      {"gelu_grad", EachResult(20)},
      {"cast", EachResult(1)},
      {"bias_add", EachResult(1)},
      {"bias_gelu", EachResult(16)},
      {"bias_gelu_grad", EachResult(21)},

      {"reshape", Moves()},
      {"transpose", Moves()},
      {"broadcast", Moves()},
      {"slice", MovesBytes([](const Case& c) { return 2 * c.result_bytes(); })},
      {"concat", Moves()},
      {"pad", Moves()},
      {"roll", Moves()},
      {"split", Moves()},
      {"dynamic_slice",
       MovesBytes([](const Case& c) { return 2 * c.result_bytes() + c.operand_bytes(1); })},
      {"dynamic_update_slice", Moves()},

      {"matmul", {[](const Case& c) {
         return 2 * c.operand(0) * static_cast<double>(c.results[0].shape.back());
       }}},
      {"einsum", {EinsumFlops}},
      // Operand 0 has a row for each sum, operand 1 all columns of the product. What is added has
      // an element for each of the result.
      {"einsum_bias", {[](const Case& c) {
         const auto terms = static_cast<double>(c.operands[0].shape.back());
         return 2 * c.operand(0) * c.operand(1) / terms +
                static_cast<double>(c.operands.size() - 2) * c.result();
       }}},
      // The bias has the columns of the product.
      {"einsum_bias_gelu",
       {[](const Case& c) { return 2 * c.operand(0) * c.operand(2) + 16 * c.result(); }}},
      {"einsum_gelu_grad", {[](const Case& c) {
         const auto columns = static_cast<double>(c.results[0].shape.back());
         return 2 * c.operand(0) * columns + 20 * c.result();
       }}},
      {"reduce_sum", EachOperand(1)},
      {"reduce_mean", EachOperand(1)},
      {"reduce_max", EachOperand(1)},
      {"sum_squares", EachOperand(2)},
      {"sum_exp", EachOperand(8 + 2)},
      {"pick", MovesBytes([](const Case& c) { return 2 * c.result_bytes() + c.operand_bytes(1); })},

      {"softmax", EachOperand(1 + 1 + 8 + 1 + 1)},  // max, minus it, exp, sum, scale
      {"softmax_grad", EachOperand(4)},
      {"layer_norm", EachOperand(1 + 3 + 4)},   // mean, variance, result
      {"layer_norm_grad", {[](const Case& c) {  // mean(g), mean(g z), result, addend
         return (2 + 5 + 7 + (c.operands.size() > 5 ? 1 : 0)) * c.operand(0);
       }}},
      {"layer_norm_weight_grad", EachOperand(4 + 1)},  // scale, bias
      {"rms_norm", EachOperand(2 + 2)},                // mean square, result
      {"rms_norm_grad", {[](const Case& c) {           // mean(g z), result, addend
         return (4 + 5 + (c.operands.size() > 4 ? 1 : 0)) * c.operand(0);
       }}},
      {"rms_norm_weight_grad", EachOperand(3)},
      {"rotary", EachResult(3)},
      {"embedding",
       MovesBytes([](const Case& c) { return 2 * c.result_bytes() + c.operand_bytes(1); })},
      {"embedding_grad", EachOperand(1)},
      {"attention", Attention(2)},  // q k and p v
      {"attention_parts", Attention(2)},
      {"attention_grad", Attention(5)},  // q k again, dv, dp, dq, dk
      {"block_attention", BlockAttention(2)},
      {"block_attention_grad", BlockAttention(5)},
      {"qkv_attention", QkvAttention(2)},
      {"qkv_attention_grad", QkvAttention(5)},
      // Each query sees half of the cache, of which half is read; the new keys are read and
      // written.
      {"cached_attention",
       {[](const Case& c) {
          return 2 * 2.0 * c.result(1) * 0.5 * static_cast<double>(c.operands[1].shape[1]);
        },
        [](const Case& c) {
          double bytes = 0.5 * c.operand_bytes(1) + 2 * c.operand_bytes(0);
          for (int i = 3; i < static_cast<int>(c.operands.size()); ++i) {
            bytes += 2 * c.operand_bytes(i);
          }
          return bytes;
        }}},
      {"cross_entropy", EachOperand(1 + 1 + 8 + 1)},  // max, minus it, exp, sum
      {"cross_entropy_grad", EachOperand(1 + 8 + 1)},

      {"conv2d", Convolution(1, [](const Case& c) { return c.result(); })},
      {"conv2d_input_grad", Convolution(0, [](const Case& c) { return c.operand(1); })},
      {"conv2d_weight_grad", {[](const Case& c) {
         const Shape& w = c.results[0].shape;
         return 2.0 * static_cast<double>(w[1] * w[2] * w[3]) * c.operand(1);
       }}},
      {"max_pool2d", Pooling([](const Case& c) { return c.result(); })},
      {"max_pool2d_grad", Pooling([](const Case& c) { return c.operand(1); })},
      {"avg_pool2d", Pooling([](const Case& c) { return c.result(); })},
      {"avg_pool2d_grad", Pooling([](const Case& c) { return c.operand(0); })},
      {"batch_norm", EachOperand(1 + 3 + 4)},  // mean, variance, result
      {"batch_norm_inference", EachOperand(4)},
      {"batch_norm_weight_grad", EachOperand(4 + 1)},  // scale, bias
      {"batch_norm_grad", EachOperand(7)},
      {"channel_variance", EachOperand(3)},

      {"top_k", {[](const Case& c) {
         return c.operand(0) * static_cast<double>(c.attributes.GetInt("k", 0));
       }}},
      {"expert_slots", EachOperand(2)},
      {"dispatch", Moves()},
      {"combine", Moves()},
      {"combine_weight_grad", Moves()},

      {"dropout", EachResult(20 + 3)},
      {"random_uniform", EachResult(20 + 2)},
      {"random_normal", EachResult(20 + 20)},
      {"iota", Moves()},
      {"constant", Moves()},
      {"input", Nothing()},
      {"parameter", Nothing()},
      {"state", Nothing()},

      {"assign", Moves()},
      {"adamw", EachOperand(1 + 3 + 4 + 12)},  // scale, m, v, w
      {"sgd", {SgdFlops}},

      {"reshard", Moves()},
      {"receive", Moves()},
      {"local_slice", MovesBytes([](const Case& c) { return 2 * c.result_bytes(); })},
      {"all_gather", Moves()},
      {"all_to_all", Moves()},
      {"permute", Moves()},
      {"halo_exchange", Moves()},
      {"all_reduce", Moves()},
      {"reduce_scatter", Moves()},
      {"gather_microbatches", MovesBytes([](const Case& c) { return 2 * c.operand_bytes(0); })},
      {"accumulate",
       {[](const Case& c) { return c.result(); },
        [](const Case& c) { return c.operand_bytes(0) + 2 * c.result_bytes(); }}},
      {"join_sub_batches", Nothing()},
      {"copy", Moves()},
      {"to_host", Moves()},
      {"to_device", Moves()},
  };
  return expectations;
}

// What has no test case of its own, and what those leave out.
std::vector<Case> MoreCases() {
  const TensorType whole = {DType::kF32, {8, 6}};
  const TensorType part = {DType::kF32, {4, 6}};
  const TensorType scalar = {DType::kF32, {}};
  return {
      {"input", {}, {}, {whole}},
      {"parameter", {}, {}, {whole}},
      {"state", {}, {}, {whole}},
      {"assign", {}, {whole, whole}, {}},
      {"local_slice", {}, {whole}, {part}},
      {"all_gather", {}, {part}, {whole}},
      {"all_to_all", {}, {part}, {part}},
      {"receive", {}, {part}, {part}},
      {"permute", {}, {part}, {part}},
      {"halo_exchange", {}, {part}, {{DType::kF32, {5, 6}}}},
      {"all_reduce", {}, {whole}, {whole}},
      {"reduce_scatter", {}, {whole}, {part}},
      {"gather_microbatches", {}, {part}, {whole}},
      {"accumulate", {{"reduction", "sum"}}, {whole}, {whole}},
      {"join_sub_batches", {}, {whole, whole}, {whole}},
      {"einsum", {{"equation", "ij->ji"}}, {{DType::kF32, {2, 3}}}, {{DType::kF32, {3, 2}}}},
      {"einsum",
       {{"equation", "i,j->ij"}},
       {{DType::kF32, {2}}, {DType::kF32, {3}}},
       {{DType::kF32, {2, 3}}}},
      {"sgd", {{"momentum", 0.9}}, {whole, whole, scalar, scalar, whole}, {whole, whole}},
      {"matmul",
       {},
       {{DType::kF32, {5, 8, 16}}, {DType::kF32, {16, 32}}},
       {{DType::kF32, {5, 8, 32}}}},
      {"cast", {{"dtype", DType::kI8}}, {whole}, {{DType::kI8, {8, 6}}}},
  };
}

Case MakeCase(const OpRegistry& ops, const testing::OpCase& test) {
  Case made = {test.op, test.attributes, {}, {}};
  for (const testing::OperandCase& operand : test.operands) made.operands.push_back(operand.type);
  made.results = *InferResultTypes(*ops.Find(test.op), made.attributes, made.operands);
  return made;
}

OpCost CostOf(const OpRegistry& ops, const Case& c) {
  return ops.Find(c.op)->Cost({c.attributes, c.operands, c.results});
}

TEST(OpCostTest, EveryOperatorCostsWhatItsTableSays) {
  const OpRegistry ops = BuiltinOps();
  std::vector<Case> cases = MoreCases();
  for (const testing::OpCase& test : testing::OpCases()) cases.push_back(MakeCase(ops, test));
  std::map<std::string, int, std::less<>> seen;
  for (const Case& c : cases) {
    SCOPED_TRACE(StrCat(c.op, " ", seen[c.op]));
    ++seen[c.op];
    const auto expected = Expectations().find(c.op);
    ASSERT_NE(expected, Expectations().end()) << "the table lacks it";
    const OpCost cost = CostOf(ops, c);
    EXPECT_DOUBLE_EQ(cost.flops, expected->second.flops(c));
    EXPECT_DOUBLE_EQ(cost.bytes, expected->second.bytes(c));
    EXPECT_GE(cost.flops, 0);
    EXPECT_GE(cost.bytes, 0);
  }
  for (std::string_view name : ops.Names()) EXPECT_TRUE(seen.contains(name)) << name;
}

TEST(OpCostTest, CausalQueriesSeeTheKeysBeforeThem) {
  const OpRegistry ops = BuiltinOps();
  const TensorType q = {DType::kF32, {1, 1, 3, 8}};
  const TensorType k = {DType::kF32, {1, 1, 5, 8}};
  const Attributes causal = {{"causal", true}};
  // 3, 4 and 5 keys.
  EXPECT_EQ(CostOf(ops, {"attention", causal, {q, k, k}, {q}}).flops, 4 * 8 * (3 + 4 + 5));
  EXPECT_EQ(CostOf(ops, {"attention", {}, {q, k, k}, {q}}).flops, 4 * 8 * 3 * 5);
}

// ------------------------------------------------------------------------------ split operators

bool Follows(const TensorFactors& dims, int factor) {
  for (const DimFactors& dim : dims) {
    for (int f : dim) {
      if (f == factor) return true;
    }
  }
  return false;
}

// `c` with `size` elements of the factor instead of all.
Case Resized(const Case& c, const ShardingRule& rule, int factor, int64_t size) {
  Case resized = c;
  const auto resize = [&](TensorType& type, const TensorFactors& dims) {
    for (size_t d = 0; d < dims.size(); ++d) {
      for (int f : dims[d]) {
        if (f == factor) type.shape[d] = type.shape[d] / rule.factors[factor].size * size;
      }
    }
  };
  for (size_t i = 0; i < c.operands.size(); ++i) resize(resized.operands[i], rule.operands[i]);
  for (size_t i = 0; i < c.results.size(); ++i) resize(resized.results[i], rule.results[i]);
  return resized;
}

// Of causal attention on some of the queries or keys: later queries see more keys, later keys are
// seen by fewer queries.
bool DependsOnPlace(const Case& c, const ShardingRule& rule, int factor) {
  return c.op.starts_with("attention") && c.attributes.GetBool("causal", false) &&
         (rule.operands[0][2][0] == factor || rule.operands[1][2][0] == factor);
}

// Whether every dimension that follows the factor is a multiple of it.
bool IsEven(const Case& c, const ShardingRule& rule, int factor) {
  const auto is_even = [&](const TensorType& type, const TensorFactors& dims) {
    for (size_t d = 0; d < dims.size(); ++d) {
      for (int f : dims[d]) {
        if (f == factor && type.shape[d] % rule.factors[factor].size != 0) return false;
      }
    }
    return true;
  };
  bool all = true;
  for (size_t i = 0; i < c.operands.size(); ++i) all &= is_even(c.operands[i], rule.operands[i]);
  for (size_t i = 0; i < c.results.size(); ++i) all &= is_even(c.results[i], rule.results[i]);
  return all;
}

class SplitCostTest : public ::testing::TestWithParam<testing::OpCase> {};

TEST_P(SplitCostTest, PartsAddUpAndGrowInProportion) {
  const OpRegistry ops = BuiltinOps();
  const Case whole = MakeCase(ops, GetParam());
  const ShardingRule rule =
      ops.Find(whole.op)->Rule({whole.attributes, whole.operands, whole.results});
  const OpCost cost = CostOf(ops, whole);
  for (int f = 0; f < static_cast<int>(rule.factors.size()); ++f) {
    const Factor& factor = rule.factors[f];
    const bool is_splittable =
        factor.kind == FactorKind::kPassThrough || factor.kind == FactorKind::kReduction;
    if (!is_splittable || factor.size < 2 || !IsEven(whole, rule, f)) continue;
    SCOPED_TRACE(StrCat("factor ", f));
    const int64_t half = factor.size / 2;
    const auto cost_at = [&](int64_t size) { return CostOf(ops, Resized(whole, rule, f, size)); };
    const OpCost first = cost_at(half);
    const OpCost second = cost_at(factor.size - half);
    if (DependsOnPlace(whole, rule, f)) {
      // Never less than what it may come to.
      EXPECT_GE(first.flops + second.flops, cost.flops);
      continue;
    }
    EXPECT_DOUBLE_EQ(first.flops + second.flops, cost.flops);
    EXPECT_DOUBLE_EQ(cost_at(2 * factor.size).flops, 2 * cost.flops);

    // What does not follow the factor is read or written by every part.
    const double every_part = cost_at(0).bytes;
    EXPECT_DOUBLE_EQ(first.bytes + second.bytes, cost.bytes + every_part);
    EXPECT_DOUBLE_EQ(cost_at(2 * factor.size).bytes, 2 * cost.bytes - every_part);
    bool is_replicated = false;
    for (const TensorFactors& dims : rule.operands) is_replicated |= !Follows(dims, f);
    for (const TensorFactors& dims : rule.results) is_replicated |= !Follows(dims, f);
    EXPECT_TRUE(is_replicated || every_part == 0);
  }
}

INSTANTIATE_TEST_SUITE_P(Ops, SplitCostTest, ::testing::ValuesIn(testing::OpCases()),
                         [](const auto& info) {
                           return info.param.op + "_" + std::to_string(info.index);
                         });

}  // namespace
}  // namespace penstock::graph
