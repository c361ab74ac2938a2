// What the operators say of themselves, in tables: results and errors of type inference, and
// sharding rules in a notation of their own.

#include <limits>
#include <string>
#include <vector>

#include "gtest/gtest.h"

#include "base/strings.h"
#include "graph/op.h"

namespace penstock::graph {
namespace {

AttrValue Ints(std::vector<int64_t> values) { return AttrValue::Ints(values); }

TensorType F(Shape shape) { return {DType::kF32, std::move(shape)}; }
TensorType D(Shape shape) { return {DType::kF64, std::move(shape)}; }
TensorType H(Shape shape) { return {DType::kBF16, std::move(shape)}; }
TensorType I(Shape shape) { return {DType::kI64, std::move(shape)}; }

struct TypeCase {
  std::string op;
  Attributes attributes;
  std::vector<TensorType> operands;
  std::string expected;  // the result types, or the error
};

std::string InferToText(const OpRegistry& ops, const TypeCase& test) {
  const auto types = InferResultTypes(*ops.Find(test.op), test.attributes, test.operands);
  if (!types.ok()) return std::string(types.status().message());
  std::vector<std::string> texts;
  for (const TensorType& type : *types) texts.push_back(ToString(type));
  return StrJoin(texts, ", ");
}

TEST(OpsTest, InferTypes) {
  const OpRegistry ops = BuiltinOps();
  const std::vector<TypeCase> cases = {
      {"add", {}, {F({2, 3}), F({})}, "f32[2, 3]"},
      {"add",
       {},
       {F({}), I({})},
       "add: the element types differ: operand 0 f32[], operand 1 i64[]"},
      {"add",
       {},
       {F({2, 3}), F({3})},
       "add: the shapes differ: operand 0 f32[2, 3], operand 1 f32[3] (only a scalar is "
       "broadcast)"},
      {"add",
       {},
       {{DType::kBool, {2}}, {DType::kBool, {2}}},
       "add: operand 0 is bool[2]; expected a float or integer type"},
      {"less", {}, {I({2}), I({})}, "bool[2]"},
      {"where",
       {},
       {F({2}), F({2}), F({2})},
       "where: the condition is a bool, not operand 0 f32[2]"},
      {"exp", {}, {I({2})}, "exp: operand 0 is i64[2]; expected a float type"},
      {"relu", {}, {I({2})}, "i64[2]"},
      {"gelu",
       {{"approximate", "erf"}},
       {F({2})},
       "gelu: attribute 'approximate' is \"tanh\" or \"none\", not \"erf\""},
      {"cast", {{"dtype", DType::kBF16}}, {F({2})}, "bf16[2]"},
      {"bias_add",
       {},
       {F({2, 3}), F({2})},
       "bias_add: operand 1 f32[2] should have the shape [3], the last dimension of operand 0"},
      {"bias_add",
       {},
       {F({4, 2, 3}), F({4, 2})},
       "bias_add: operand 1 f32[4, 2] should have the shape [2, 3], the last dimensions of operand "
       "0"},
      {"reshape",
       {{"shape", Ints({3, 3})}},
       {F({8})},
       "reshape: operand 0 f32[8] has 8 elements, the shape [3, 3] has 9"},
      {"reshape", {{"shape", Ints({-1, 8})}}, {F({8})}, "reshape: extent -1 is negative"},
      {"transpose", {{"permutation", Ints({2, 0, 1})}}, {F({2, 3, 4})}, "f32[4, 2, 3]"},
      {"transpose",
       {{"permutation", Ints({0, 0})}},
       {F({2, 3})},
       "transpose: [0, 0] is not a permutation of 0 .. 1"},
      {"transpose",
       {{"permutation", Ints({0})}},
       {F({2, 3})},
       "transpose: attribute 'permutation' has 1 entries, operand 0 f32[2, 3] has rank 2"},
      {"broadcast",
       {{"shape", Ints({4, 8})}, {"axes", Ints({0})}},
       {F({8})},
       "broadcast: dimension 0 of operand 0 f32[8] becomes dimension 0 of [4, 8], which has "
       "another extent"},
      {"slice",
       {{"start", Ints({1, 0})}, {"limit", Ints({6, 3})}, {"stride", Ints({2, 1})}},
       {F({7, 3})},
       "f32[3, 3]"},
      {"slice",
       {{"start", Ints({1})}, {"limit", Ints({9})}},
       {F({8})},
       "slice: the range 1 .. 9 is not inside dimension 0 of operand 0 f32[8]"},
      {"concat", {{"axis", -1}}, {F({2, 3}), F({2, 4})}, "f32[2, 7]"},
      {"concat",
       {{"axis", 1}},
       {F({2, 3}), F({3, 3})},
       "concat: operand 1 f32[3, 3] should have the shape [2, 3], that of operand 0 but for axis "
       "1"},
      {"concat",
       {{"axis", 2}},
       {F({2, 3})},
       "concat: axis 2 is outside operand 0 f32[2, 3] of rank 2"},
      {"pad", {{"low", Ints({1})}, {"high", Ints({2})}}, {F({3})}, "f32[6]"},
      {"split", {{"axis", 0}, {"parts", 2}}, {F({4})}, "f32[2], f32[2]"},
      {"split",
       {{"axis", 0}, {"parts", 3}},
       {F({4})},
       "split: dimension 0 of operand 0 f32[4] does not split into 3 equal parts"},
      {"dynamic_slice", {{"sizes", Ints({2, 3})}}, {F({4, 3}), I({2})}, "f32[2, 3]"},
      {"dynamic_slice",
       {{"sizes", Ints({2})}},
       {F({4}), I({})},
       "dynamic_slice: operand 1 is i64[]; expected i64[1], where each dimension of operand 0 "
       "starts"},
      {"dynamic_update_slice",
       {},
       {F({4}), F({1, 4}), I({1})},
       "dynamic_update_slice: the update operand 1 f32[1, 4] does not fit operand 0 f32[4]"},
      {"matmul", {{"transpose_b", true}}, {F({5, 8, 16}), F({4, 16})}, "f32[5, 8, 4]"},
      {"matmul",
       {},
       {F({5, 8, 16}), F({4, 16, 2})},
       "matmul: the leading dimensions differ: operand 0 f32[5, 8, 16], operand 1 f32[4, 16, 2]"},
      {"matmul",
       {},
       {F({16}), F({16, 2})},
       "matmul: needs at least 2 dimensions, operand 0 f32[16] has 1"},
      {"matmul", {}, {I({2, 3}), I({3, 4})}, "i64[2, 4]"},
      {"matmul", {}, {{DType::kU8, {2, 3}}, {DType::kU8, {3, 4}}}, "u8[2, 4]"},
      {"matmul",
       {},
       {{DType::kBool, {2, 3}}, {DType::kBool, {3, 4}}},
       "matmul: operand 0 is bool[2, 3]; expected a float or integer type"},
      {"einsum", {{"equation", "ij->i"}}, {{DType::kI32, {2, 3}}}, "i32[2]"},
      {"square", {}, {I({2})}, "i64[2]"},
      {"bias_add", {}, {I({2, 3}), I({3})}, "i64[2, 3]"},
      {"pick", {}, {I({2, 3}), {DType::kU8, {2}}}, "i64[2]"},
      {"embedding", {}, {{DType::kI8, {6, 3}}, I({4})}, "i8[4, 3]"},
      {"einsum", {{"equation", "bmk, bkn -> bmn"}}, {F({2, 3, 4}), F({2, 4, 5})}, "f32[2, 3, 5]"},
      {"einsum",
       {{"equation", "mk,kn->mn"}},
       {F({3, 4}), F({5, 6})},
       "einsum: index 'k' has extent 4 in operand 0, 5 in operand 1 f32[5, 6]"},
      {"einsum", {{"equation", "mm->m"}}, {F({3, 3})}, "einsum: index 'm' stands twice in 'mm'"},
      {"einsum", {{"equation", "mk"}}, {F({3, 4})}, "einsum: the equation 'mk' has no '->'"},
      {"einsum",
       {{"equation", "m...->m"}},
       {F({3})},
       "einsum: '.' in the equation is not a letter"},
      {"einsum",
       {{"equation", "m->n"}},
       {F({3})},
       "einsum: index 'n' of the result is in no operand"},
      {"einsum",
       {{"equation", "m,n->mn"}},
       {F({3})},
       "einsum: the equation is for 2 operands, not 1"},
      {"einsum_bias",
       {{"equation", "bsd,dhk->bshk"}},
       {F({2, 3, 4}), F({4, 5, 6}), F({5, 6})},
       "f32[2, 3, 5, 6]"},
      {"einsum_bias",
       {{"equation", "mk,kn->mn"}},
       {F({3, 4}), F({4, 5}), F({4})},
       "einsum_bias: operand 2 f32[4] should have the shape [5], the last dimension of the "
       "product of operand 0 and operand 1"},
      {"einsum_bias", {{"equation", "mk,kn->mn"}}, {F({3, 4}), F({4, 5}), F({3, 5})}, "f32[3, 5]"},
      {"einsum_bias",
       {{"equation", "mk,kn->mn"}},
       {F({3, 4}), F({4, 5}), F({5}), F({5, 3})},
       "einsum_bias: operand 3 is f32[5, 3]; expected f32[3, 5], the type of the product of "
       "operand 0 and operand 1"},
      {"einsum_bias",
       {{"equation", "mk->km"}},
       {F({3, 4}), F({4, 5}), F({4})},
       "einsum_bias: the equation is for 1 operands, not 2"},
      {"einsum_bias",
       {{"equation", "k,k->"}},
       {F({4}), F({4}), F({})},
       "einsum_bias: the product is a scalar, which takes no bias"},
      {"einsum_bias_gelu",
       {{"equation", "mk,kn->mn"}},
       {F({3, 4}), F({4, 5}), F({5})},
       "f32[3, 5], f32[3, 5]"},
      {"einsum_gelu_grad",
       {{"equation", "mn,kn->mk"}},
       {F({3, 5}), F({4, 5}), F({3, 4})},
       "f32[3, 4]"},
      {"einsum_gelu_grad",
       {{"equation", "mn,kn->mk"}},
       {F({3, 5}), F({4, 5}), F({4, 3})},
       "einsum_gelu_grad: operand 2 is f32[4, 3]; expected f32[3, 4], the type of the product "
       "of operand 0 and operand 1"},
      {"reduce_sum", {{"axes", Ints({-1})}}, {F({2, 3})}, "f32[2]"},
      {"reduce_sum", {{"axes", Ints({1})}, {"keepdims", true}}, {F({2, 3})}, "f32[2, 1]"},
      {"reduce_sum", {{"axes", Ints({0, -2})}}, {F({2, 3})}, "reduce_sum: axis 0 is given twice"},
      {"sum_squares", {}, {F({2, 3})}, "f32[]"},
      {"pick", {}, {F({2, 3}), I({2})}, "f32[2]"},
      {"softmax",
       {{"axis", 2}},
       {F({2, 3})},
       "softmax: axis 2 is outside operand 0 f32[2, 3] of rank 2"},
      {"layer_norm", {}, {F({2, 3}), F({3}), F({3})}, "f32[2, 3], f32[2], f32[2]"},
      {"layer_norm",
       {},
       {{DType::kBF16, {2, 3}}, {DType::kBF16, {3}}, {DType::kBF16, {3}}},
       "bf16[2, 3], f32[2], f32[2]"},
      {"layer_norm",
       {},
       {F({2, 3}), F({2}), F({3})},
       "layer_norm: operand 1 f32[2] should have the shape [3], the last dimension of operand 0"},
      {"batch_norm", {}, {H({2, 3, 4}), H({3}), H({3})}, "bf16[2, 3, 4], f32[3], f32[3]"},
      {"batch_norm_weight_grad",
       {},
       {H({2, 3, 4}), H({2, 3, 4}), F({3}), F({3})},
       "bf16[3], bf16[3]"},
      {"batch_norm_weight_grad",
       {{"dtype", DType::kF32}},
       {H({2, 3, 4}), H({2, 3, 4}), F({3}), F({3})},
       "f32[3], f32[3]"},
      {"batch_norm_grad",
       {},
       {H({2, 3, 4}), H({2, 3, 4}), H({3}), F({3}), F({3}), F({3}), F({3})},
       "bf16[2, 3, 4]"},
      {"batch_norm_grad",
       {},
       {H({2, 3, 4}), H({2, 3, 4}), H({3}), F({3}), F({3}), H({3}), H({3})},
       "batch_norm_grad: operand 5 is bf16[3]; expected f32[3], a statistic of each channel of "
       "operand 0"},
      {"embedding", {}, {F({10, 4}), I({2, 3})}, "f32[2, 3, 4]"},
      {"embedding",
       {},
       {F({10, 4}), F({2})},
       "embedding: operand 1 is f32[2]; expected an integer type"},
      {"embedding_grad", {{"rows", 10}}, {F({2, 3, 4}), I({2, 3})}, "f32[10, 4]"},
      {"top_k", {{"k", 2}}, {F({3, 5})}, "f32[3, 2], i64[3, 2]"},
      {"top_k",
       {{"k", 6}},
       {F({3, 5})},
       "top_k: k = 6 should lie between 1 and the last extent of operand 0 f32[3, 5]"},
      {"expert_slots",
       {{"experts", 3}, {"capacity", 4}},
       {I({2, 5, 1})},
       "i64[2, 5, 1], i64[2, 3]"},
      {"expert_slots",
       {{"experts", 3}, {"capacity", 0}},
       {I({2, 5, 1})},
       "expert_slots: capacity = 0 should be at least 1"},
      {"dispatch",
       {{"experts", 3}, {"capacity", 4}},
       {F({2, 5, 8}), I({2, 5, 1})},
       "f32[3, 2, 4, 8]"},
      {"dispatch",
       {{"experts", 3}, {"capacity", 4}},
       {F({2, 5, 8}), I({2, 6, 1})},
       "dispatch: operand 1 i64[2, 6, 1] should have the shape [2, 5, 1], that of operand 0 but "
       "for the last axis"},
      {"combine", {}, {F({3, 2, 4, 8}), I({2, 5, 1}), F({2, 5, 1})}, "f32[2, 5, 8]"},
      {"combine",
       {},
       {F({3, 2, 4, 8}), I({5, 1})},
       "combine: operand 1 i64[5, 1] should have the shape [2, 5, 1], with the groups of operand "
       "0"},
      {"combine_weight_grad", {}, {F({5, 8}), F({3, 4, 8}), I({5, 2})}, "f32[5, 2]"},
      {"attention",
       {},
       {F({2, 4, 8, 16}), F({2, 4, 9, 16}), F({2, 4, 9, 16})},
       "f32[2, 4, 8, 16], f32[2, 4, 8]"},
      {"attention",
       {},
       {F({2, 4, 8, 16}), F({2, 2, 9, 16}), F({2, 2, 9, 16})},
       "f32[2, 4, 8, 16], f32[2, 4, 8]"},
      {"attention",
       {},
       {F({2, 4, 8, 16}), F({2, 4, 9, 8}), F({2, 4, 9, 8})},
       "attention: operand 1 f32[2, 4, 9, 8] should have the shape [2, 4, 9, 16], that of operand "
       "0 but for the heads and the sequence"},
      {"attention",
       {},
       {F({2, 4, 8, 16}), F({2, 3, 9, 16}), F({2, 3, 9, 16})},
       "attention: the 3 heads of operand 1 f32[2, 3, 9, 16] do not divide the 4 of operand 0 "
       "f32[2, 4, 8, 16]"},
      {"rotary", {}, {F({2, 4, 8, 6})}, "f32[2, 4, 8, 6]"},
      {"rotary",
       {},
       {F({2, 4, 5})},
       "rotary: the last dimension of operand 0 f32[2, 4, 5] is odd: it holds pairs"},
      {"rotary", {{"base", 0.0}}, {F({2, 4, 6})}, "rotary: base 0 is not positive"},
      {"rotary",
       {{"scaling", "yarn"}},
       {F({2, 4, 6})},
       "rotary: scaling = \"yarn\": expected \"none\", \"linear\", \"dynamic\" or \"llama3\""},
      {"rotary",
       {{"scaling", "dynamic"}},
       {F({2, 4, 6})},
       "rotary: scaling \"dynamic\" depends on more than the position; expected \"none\", "
       "\"linear\" or \"llama3\""},
      {"rotary",
       {{"scaling", "linear"}, {"factor", 0.5}},
       {F({2, 4, 6})},
       "rotary: factor = 0.5: must be at least 1"},
      {"rotary",
       {},
       {F({2, 4, 6}), I({4})},
       "rotary: operand 1 i64[4] should have the shape [2], one for each sequence of operand 0"},
      {"cached_attention",
       {},
       {F({2, 3, 4, 8}), F({2, 9, 2, 2, 8}), I({2}), F({2, 3, 2, 8}), F({2, 3, 2, 8})},
       "f32[2, 9, 2, 2, 8], f32[2, 3, 4, 8]"},
      {"cached_attention",
       {},
       {F({2, 3, 4, 8}), F({2, 9, 2, 2, 8}), I({2}), F({2, 3, 2, 8})},
       "cached_attention: k comes with v"},
      {"attention_parts",
       {{"parts", 2}},
       {{DType::kBF16, {2, 4, 8, 16}},
        {DType::kBF16, {2, 4, 9, 16}},
        {DType::kBF16, {2, 4, 9, 16}}},
       "f32[2, 2, 4, 8, 16], f32[2, 2, 4, 8]"},
      {"attention_parts",
       {{"parts", 0}},
       {F({2, 4, 8, 16}), F({2, 4, 9, 16}), F({2, 4, 9, 16})},
       "attention_parts: parts should be at least 1, not 0"},
      {"block_attention",
       {{"block", 3}},
       {F({2, 8, 4, 16}), F({2, 12, 2, 4, 16})},
       "f32[2, 8, 4, 16], f32[2, 4, 8]"},
      {"block_attention",
       {{"block", 5}},
       {F({2, 8, 4, 16}), F({2, 12, 2, 4, 16})},
       "block_attention: block = 5 does not divide the 12 keys of operand 1 f32[2, 12, 2, 4, 16]"},
      {"block_attention",
       {{"block", 4}},
       {F({2, 8, 4, 16}), F({2, 12, 2, 4, 16})},
       "block_attention: the 3 blocks of the keys do not divide the 8 queries of operand 0 f32[2, "
       "8, 4, 16]"},
      {"block_attention",
       {{"block", 3}, {"causal", true}},
       {F({2, 8, 4, 16}), F({2, 12, 2, 4, 16})},
       "block_attention: with causal, there are as many keys as queries: operand 0 f32[2, 8, 4, "
       "16], operand 1 f32[2, 12, 2, 4, 16]"},
      {"block_attention",
       {{"block", 3}},
       {F({2, 8, 4, 16}), F({2, 12, 2, 4, 16}), F({2, 8, 4, 16})},
       "block_attention: o comes with its log-sum-exp"},
      {"roll",
       {{"axis", 2}, {"shift", 1}},
       {F({2, 3})},
       "roll: axis 2 is outside operand 0 f32[2, 3] of rank 2"},
      {"qkv_attention",
       {},
       {F({2, 8, 4, 3, 16})},
       "qkv_attention: dimension 2 of operand 0 f32[2, 8, 4, 3, 16] holds q, k and v: it should be "
       "3"},
      {"cross_entropy", {}, {F({2, 8, 50}), I({2, 8})}, "f32[2, 8], f32[2, 8], f32[2, 8]"},
      {"dropout", {{"rate", 1.0}, {"stream", 1}}, {F({2})}, "dropout: rate 1 is outside [0, 1)"},
      {"constant", {{"value", 1.5}}, {}, "f32[]"},
      {"constant",
       {{"value", 1.5}, {"dtype", DType::kI64}},
       {},
       "constant: the value of i64[] must be an integer"},
      {"iota", {{"axis", 0}}, {}, "iota: axis 0 is outside a tensor of rank 0"},
      {"assign",
       {},
       {F({2}), F({3})},
       "assign: operand 1 is f32[3]; expected f32[2], the type of operand 0"},
      {"adamw",
       {},
       {F({2}), F({2}), F({2}), F({2}), F({}), F({}), F({})},
       "adamw: operand 4 (step) is f32[]; expected i64[], the number of the step"},
      {"adamw",
       {},
       {D({20}), F({20}), D({20}), D({20}), I({}), D({}), D({})},
       "adamw: operand 1 (g) is f32[20]; expected f64[20], the type of operand 0 (w)"},
      {"adamw",
       {},
       {D({20}), D({20}), F({20}), D({20}), I({}), D({}), D({})},
       "adamw: operand 2 (m) is f32[20]; expected f64[20], the type of operand 0 (w)"},
      {"adamw",
       {},
       {D({20}), D({20}), D({20}), D({2, 10}), I({}), D({}), D({})},
       "adamw: operand 3 (v) is f64[2, 10]; expected f64[20], the type of operand 0 (w)"},
      {"adamw",
       {},
       {D({20}), D({20}), D({20}), D({20}), I({}), H({}), D({})},
       "adamw: operand 5 (lr) is bf16[]; expected f32[] or f64[]"},
      {"adamw",
       {},
       {D({20}), D({20}), D({20}), D({20}), I({}), F({}), F({1})},
       "adamw: operand 6 (scale) is f32[1]; expected f32[] or f64[]"},
      {"adamw",
       {},
       {H({20}), H({20}), H({20}), H({20}), I({}), H({}), D({})},
       "bf16[20], bf16[20], bf16[20]"},
      {"sgd",
       {},
       {H({20}), H({20}), I({}), D({})},
       "sgd: operand 2 (lr) is i64[]; expected f32[], f64[] or bf16[]"},
      {"sgd",
       {},
       {D({20}), F({20}), D({}), D({})},
       "sgd: operand 1 (g) is f32[20]; expected f64[20], the type of operand 0 (w)"},
      {"sgd",
       {},
       {D({20}), D({20}), F({}), D({}), F({20})},
       "sgd: operand 4 (buffer) is f32[20]; expected f64[20], the type of operand 0 (w)"},
      {"slice",
       {{"start", Ints({1})},
        {"limit", Ints({9})},
        {"stride", Ints({std::numeric_limits<int64_t>::max()})}},
       {F({9})},
       "f32[1]"},
      {"layer_norm_grad",
       {},
       {F({2, 3}), F({2, 3}), F({3}), F({2}), F({2}), F({3})},
       "layer_norm_grad: operand 5 is f32[3]; expected f32[2, 3], the type of operand 0"},
      {"layer_norm_grad",
       {},
       {D({2, 3}), D({2, 3}), D({3}), F({2}), D({2})},
       "layer_norm_grad: operand 3 is f32[2]; expected f64[2], a statistic of each row of operand "
       "0"},
      {"cross_entropy_grad",
       {},
       {D({2, 3}), I({2}), F({2}), D({2}), D({2})},
       "cross_entropy_grad: operand 2 is f32[2]; expected f64[2], the largest logit of each row of "
       "operand 0"},
      {"sgd",
       {{"momentum", 0.9}},
       {F({2}), F({2}), F({}), F({})},
       "sgd: momentum needs a buffer as operand 4"},
      {"all_gather", {}, {F({2})}, "f32[2]"},
      {"receive", {}, {F({2})}, "f32[2]"},
      {"join_sub_batches", {}, {F({2}), F({2})}, "f32[2]"},
      {"join_sub_batches",
       {},
       {F({2}), F({3})},
       "join_sub_batches: operand 1 f32[3] should have the shape [2], that of operand 0"},
  };
  for (const TypeCase& test : cases) EXPECT_EQ(InferToText(ops, test), test.expected) << test.op;
}

// A rule as "ik kj -> ij | i=8 k=16+ j=32": letters in the order of the factors; "." a dimension
// without a factor, "-" a scalar, "(ab)" a compound one; "+" a sum, "^" a maximum, "!" a factor
// that needs replication, "~" a permutation.
std::string RuleToText(const ShardingRule& rule) {
  auto letter = [](int factor) { return std::string(1, static_cast<char>('a' + factor)); };
  auto tensor = [&](const TensorFactors& factors) {
    std::string text;
    for (const DimFactors& dim : factors) {
      std::string letters;
      for (int factor : dim) letters += letter(factor);
      text += dim.empty() ? "." : dim.size() == 1 ? letters : StrCat("(", letters, ")");
    }
    return text.empty() ? "-" : text;
  };
  std::vector<std::string> words;
  for (const TensorFactors& operand : rule.operands) words.push_back(tensor(operand));
  words.push_back("->");
  for (const TensorFactors& result : rule.results) words.push_back(tensor(result));
  words.push_back("|");
  for (size_t i = 0; i < rule.factors.size(); ++i) {
    const Factor& factor = rule.factors[i];
    std::string_view kind;
    if (factor.kind == FactorKind::kReduction) {
      kind = factor.reduction == Reduction::kMax ? "^" : "+";
    } else if (factor.kind == FactorKind::kNeedReplication) {
      kind = "!";
    } else if (factor.kind == FactorKind::kPermutation) {
      kind = "~";
    } else if (factor.kind == FactorKind::kRoll) {
      kind = "@";
    }
    words.push_back(StrCat(letter(static_cast<int>(i)), "=", factor.size, kind));
  }
  return StrJoin(words, " ");
}

TEST(OpsTest, ShardingRules) {
  const OpRegistry ops = BuiltinOps();
  const std::vector<TypeCase> cases = {
      {"add", {}, {F({2, 3}), F({})}, "ab - -> ab | a=2 b=3"},
      {"bias_add", {}, {F({2, 2}), F({2})}, "ab b -> ab | a=2 b=2"},
      // Reshape: split, merged, regrouped, and what does not fit.
      {"reshape", {{"shape", Ints({2, 4})}}, {F({8})}, "(ab) -> ab | a=2 b=4"},
      {"reshape", {{"shape", Ints({16})}}, {F({4, 4})}, "ab -> (ab) | a=4 b=4"},
      {"reshape", {{"shape", Ints({4, 2, 3})}}, {F({2, 12})}, "a(bcd) -> (ab)cd | a=2 b=2 c=2 d=3"},
      {"reshape",
       {{"shape", Ints({8, 3})}},
       {F({6, 4})},
       "(ab)c -> (ad)e | a=2 b=3! c=4! d=4! e=3!"},
      {"reshape",
       {{"shape", Ints({2, 3, 1, 5})}},
       {F({1, 2, 1, 15})},
       ".a.(bc) -> ab.c | a=2 b=3 c=5"},
      {"reshape",
       {{"shape", Ints({5, 3, 7})}},
       {F({3, 5, 7})},
       "abe -> cde | a=3! b=5! c=5! d=3! e=7"},
      {"reshape", {{"shape", Ints({})}}, {F({1, 1})}, ".. -> - |"},
      {"reshape", {{"shape", Ints({0, 3})}}, {F({2, 0})}, ".. -> .. |"},
      {"transpose", {{"permutation", Ints({2, 0, 1})}}, {F({2, 3, 4})}, "abc -> cab | a=2 b=3 c=4"},
      {"broadcast", {{"shape", Ints({4, 8})}, {"axes", Ints({1})}}, {F({8})}, "b -> ab | a=4 b=8"},
      {"slice",
       {{"start", Ints({1, 0})}, {"limit", Ints({3, 4})}},
       {F({5, 4})},
       "ab -> ab | a=5~ b=4"},
      {"concat", {{"axis", 0}}, {F({2, 3}), F({4, 3})}, "ab ab -> ab | a=6~ b=3"},
      {"pad", {{"low", Ints({0, 1})}, {"high", Ints({0, 0})}}, {F({2, 3})}, "ab -> ab | a=2 b=4~"},
      {"split", {{"axis", 1}, {"parts", 2}}, {F({2, 4})}, "ab -> ab ab | a=2 b=4~"},
      {"dynamic_slice",
       {{"sizes", Ints({1, 4})}},
       {F({5, 4}), I({2})},
       "ab c -> ab | a=5~ b=4 c=2!"},
      {"dynamic_update_slice", {}, {F({5, 4}), F({2, 4}), I({2})}, "ab ab c -> ab | a=5~ b=4 c=2!"},
      {"matmul", {}, {F({8, 16}), F({16, 32})}, "ac cb -> ab | a=8 b=32 c=16+"},
      {"matmul",
       {{"transpose_a", true}, {"transpose_b", true}},
       {F({2, 16, 8}), F({32, 16})},
       "adb cd -> abc | a=2 b=8 c=32 d=16+"},
      {"einsum",
       {{"equation", "bmk,bkn->bmn"}},
       {F({2, 3, 4}), F({2, 4, 5})},
       "acb abd -> acd | a=2 b=4+ c=3 d=5"},
      {"einsum_bias",
       {{"equation", "mk,kn->mn"}},
       {F({3, 4}), F({4, 5}), F({5})},
       "ba ac c -> bc | a=4! b=3 c=5"},
      {"einsum_bias",
       {{"equation", "mk,kn->mn"}},
       {F({3, 4}), F({4, 5}), F({5}), F({3, 5})},
       "ba ac c bc -> bc | a=4! b=3 c=5"},
      {"einsum_bias_gelu",
       {{"equation", "mk,kn->mn"}},
       {F({3, 4}), F({4, 5}), F({5})},
       "ba ac c -> bc bc | a=4! b=3 c=5"},
      {"einsum_gelu_grad",
       {{"equation", "mn,kn->mk"}},
       {F({3, 5}), F({4, 5}), F({3, 4})},
       "bc ac ba -> ba | a=4 b=3 c=5!"},
      {"reduce_sum", {{"axes", Ints({1})}, {"keepdims", true}}, {F({2, 3})}, "ab -> a. | a=2 b=3+"},
      {"reduce_mean", {{"axes", Ints({0})}}, {F({2, 3})}, "ab -> b | a=2+ b=3"},
      {"reduce_max", {{"axes", Ints({-1})}}, {F({2, 3})}, "ab -> a | a=2 b=3^"},
      {"sum_squares", {}, {F({2, 3})}, "ab -> - | a=2+ b=3+"},
      {"sum_exp", {}, {F({2, 3}), F({2})}, "ab a -> a | a=2 b=3+"},
      {"pick", {}, {F({2, 3}), I({2})}, "ab a -> a | a=2 b=3+"},
      {"softmax", {{"axis", 0}}, {F({2, 3})}, "ab -> ab | a=2! b=3"},
      {"layer_norm", {}, {F({3, 3}), F({3}), F({3})}, "ab b b -> ab a a | a=3 b=3!"},
      {"layer_norm_grad",
       {},
       {F({3, 3}), F({3, 3}), F({3}), F({3}), F({3})},
       "ab ab b a a -> ab | a=3 b=3!"},
      {"layer_norm_grad",
       {},
       {F({3, 3}), F({3, 3}), F({3}), F({3}), F({3}), F({3, 3})},
       "ab ab b a a ab -> ab | a=3 b=3!"},
      {"layer_norm_weight_grad",
       {},
       {F({3, 3}), F({3, 3}), F({3}), F({3})},
       "ab ab a a -> b b | a=3+ b=3"},
      {"embedding", {}, {F({10, 4}), I({2, 3})}, "ab cd -> cdb | a=10+ b=4 c=2 d=3"},
      {"embedding_grad",
       {{"rows", 10}},
       {F({2, 3, 4}), I({2, 3})},
       "cdb cd -> ab | a=10 b=4 c=2+ d=3+"},
      {"attention",
       {},
       {F({2, 4, 8, 16}), F({2, 4, 9, 16}), F({2, 4, 9, 16})},
       "abce abde abde -> abce abc | a=2 b=4 c=8 d=9! e=16!"},
      {"attention_grad",
       {},
       {F({2, 4, 8, 16}), F({2, 4, 9, 16}), F({2, 4, 9, 16}), F({2, 4, 8, 16}), F({2, 4, 8}),
        F({2, 4, 8, 16})},
       "abce abde abde abce abc abce -> abce abde abde | a=2 b=4 c=8+ d=9+ e=16!"},
      // Heads that share one of the keys add up in its gradient.
      {"attention",
       {},
       {F({2, 4, 8, 16}), F({2, 2, 9, 16}), F({2, 2, 9, 16})},
       "a(bf)ce abde abde -> a(bf)ce a(bf)c | a=2 b=2 c=8 d=9! e=16! f=2"},
      {"attention_grad",
       {},
       {F({2, 4, 8, 16}), F({2, 2, 9, 16}), F({2, 2, 9, 16}), F({2, 4, 8, 16}), F({2, 4, 8}),
        F({2, 4, 8, 16})},
       "a(bf)ce abde abde a(bf)ce a(bf)c a(bf)ce -> a(bf)ce abde abde | a=2 b=2 c=8+ d=9+ e=16! "
       "f=2+"},
      {"rotary", {}, {F({2, 8, 4, 16}), I({2})}, "abcd a -> abcd | a=2 b=8 c=4 d=16!"},
      {"attention_parts",
       {{"parts", 4}},
       {F({2, 4, 8, 16}), F({2, 4, 9, 16}), F({2, 4, 9, 16})},
       "abce ab(fd)e ab(fd)e -> fabce fabc | a=2 b=4 c=8 d=3! e=16! f=4"},
      {"block_attention",
       {{"block", 3}},
       {F({2, 8, 4, 16}), F({2, 12, 2, 4, 16}), F({2, 8, 4, 16}), F({2, 4, 8})},
       "a(bc)fg a(bd)efg a(bc)fg af(bc) -> a(bc)fg af(bc) | a=2 b=4 c=2 d=3! e=2! f=4 g=16!"},
      {"block_attention_grad",
       {{"block", 3}},
       {F({2, 8, 4, 16}), F({2, 12, 2, 4, 16}), F({2, 8, 4, 16}), F({2, 4, 8}), F({2, 8, 4, 16})},
       "a(bc)fg a(bd)efg a(bc)fg af(bc) a(bc)fg -> a(bc)fg a(bd)efg | a=2 b=4 c=2+ d=3! e=2! f=4 "
       "g=16!"},
      // A roll by whole parts, by one element, by nothing.
      {"roll", {{"axis", 1}, {"shift", 4}}, {F({2, 6})}, "a(bc) -> a(bc) | a=2 b=3@ c=2"},
      {"roll", {{"axis", 0}, {"shift", -1}}, {F({3})}, "(ab) -> (ab) | a=3@ b=1"},
      {"roll", {{"axis", 0}, {"shift", 6}}, {F({3})}, "a -> a | a=3"},
      {"qkv_attention", {}, {F({2, 8, 3, 4, 16})}, "abcde -> abde adb | a=2 b=8! c=3! d=4 e=16!"},
      {"cross_entropy", {}, {F({2, 50}), I({2})}, "ab a -> a a a | a=2 b=50!"},
      {"cross_entropy_grad",
       {},
       {F({2, 50}), I({2}), F({2}), F({2}), F({2})},
       "ab a a a a -> ab | a=2 b=50"},
      {"top_k", {{"k", 2}}, {F({3, 5})}, "ab -> ac ac | a=3 b=5! c=2!"},
      {"expert_slots",
       {{"experts", 3}, {"capacity", 4}},
       {I({2, 5, 1})},
       "abc -> abc ad | a=2 b=5! c=1! d=3!"},
      {"dispatch",
       {{"experts", 3}, {"capacity", 4}},
       {F({2, 5, 8}), I({2, 5, 7})},
       "abd abc -> eafd | a=2 b=5+ c=7+ d=8 e=3 f=4"},
      {"combine",
       {},
       {F({3, 2, 4, 8}), I({2, 5, 7}), F({2, 5, 7})},
       "eafd abc abc -> abd | a=2 b=5 c=7+ d=8 e=3+ f=4+"},
      {"combine_weight_grad",
       {},
       {F({2, 5, 8}), F({3, 2, 4, 8}), I({2, 5, 7})},
       "abd eafd abc -> abc | a=2 b=5 c=7 d=8+ e=3+ f=4+"},
      {"iota", {{"axis", 0}, {"shape", Ints({2, 3})}}, {}, "-> ab | a=2 b=3"},
      {"adamw",
       {},
       {F({2}), F({2}), F({2}), F({2}), I({}), F({}), F({})},
       "a a a a - - - -> a a a | a=2"},
      {"assign", {}, {F({2}), F({2})}, "a a -> | a=2"},
  };
  for (const TypeCase& test : cases) {
    const Op& op = *ops.Find(test.op);
    const auto types = InferResultTypes(op, test.attributes, test.operands);
    ASSERT_TRUE(types.ok()) << types.status();
    const ShardingRule rule = op.Rule({test.attributes, test.operands, *types});
    EXPECT_EQ(RuleToText(rule), test.expected) << test.op;
  }
}

TEST(OpsTest, RulesCoverBoundResultsOnly) {
  const OpRegistry ops = BuiltinOps();
  const std::vector<TensorType> operands = {F({2, 4, 8, 16}), F({2, 4, 8, 16}), F({2, 4, 8, 16})};
  const std::vector<TensorType> results = {F({2, 4, 8, 16})};
  EXPECT_EQ(ops.Find("attention")->Rule({{}, operands, results}).results.size(), 1);
}

TEST(OpsTest, StatementTypesCompleteAttributes) {
  const OpRegistry ops = BuiltinOps();
  Attributes attributes = {{"value", 0.5}};
  ops.Find("constant")->CompleteAttributes(F({2, 3}), attributes);
  EXPECT_EQ(attributes,
            (Attributes{{"value", 0.5}, {"shape", Ints({2, 3})}, {"dtype", DType::kF32}}));
  attributes = {{"shape", Ints({4})}, {"stream", 1}};
  ops.Find("random_normal")->CompleteAttributes({DType::kF64, {2}}, attributes);
  EXPECT_EQ(attributes.GetInts("shape"), Shape({4}));
  EXPECT_EQ(attributes.GetDType("dtype", DType::kF32), DType::kF64);
}

}  // namespace
}  // namespace penstock::graph
