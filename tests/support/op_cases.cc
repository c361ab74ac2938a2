#include "tests/support/op_cases.h"

#include <cmath>

#include "base/random.h"
#include "base/strings.h"
#include "graph/text.h"
#include "tests/support/tested_plugin.h"

namespace penstock::testing {
namespace {

using graph::AttrValue;

OperandCase F(Shape shape, double low = -2, double high = 2) {
  return {{DType::kF64, std::move(shape)}, low, high};
}
OperandCase I(Shape shape, double low, double high) {
  return {{DType::kI64, std::move(shape)}, low, high};
}
OperandCase B(Shape shape) { return {{DType::kBool, std::move(shape)}, 0, 2}; }

AttrValue Ints(std::vector<int64_t> values) { return AttrValue::Ints(values); }

}  // namespace

std::vector<OpCase> OpCases() {
  if (HasPluginUnderTest()) return PluginOpCases();
  return {
      // Elementwise.
      {"add", {}, {F({2, 3}), F({2, 3})}},
      {"add", {}, {F({2, 3}), F({})}},
      {"sub", {}, {F({2, 3}), F({2, 3})}},
      {"sub", {}, {F({}), F({4})}},
      {"mul", {}, {F({2, 3}), F({2, 3})}},
      {"mul", {}, {F({2, 3}), F({})}},
      {"div", {}, {F({2, 3}), F({2, 3}, 0.5, 2)}},
      {"div", {}, {F({}), F({4}, 0.5, 2)}},
      {"div", {}, {F({4}), F({}, 0.5, 2)}},
      {"max", {}, {F({4, 5}), F({4, 5})}},
      {"max", {}, {F({4, 5}), F({})}},
      {"min", {}, {F({4, 5}), F({4, 5})}},
      {"min", {}, {F({}), F({4, 5})}},
      {"equal", {}, {I({4, 5}, 0, 3), I({4, 5}, 0, 3)}},
      {"less", {}, {F({4, 5}), F({4, 5})}},
      {"greater", {}, {F({4, 5}), F({})}},
      {"where", {}, {B({4, 5}), F({4, 5}), F({4, 5})}},
      {"where", {}, {B({4, 5}), F({}), F({4, 5})}},
      {"where", {}, {B({}), F({4, 5}), F({})}},
      {"where", {}, {B({4, 5}), F({}), F({})}},
      {"neg", {}, {F({2, 3})}},
      {"abs", {}, {F({4, 5})}},
      {"exp", {}, {F({2, 3})}},
      {"log", {}, {F({2, 3}, 0.5, 4)}},
      {"tanh", {}, {F({2, 3})}},
      {"sqrt", {}, {F({2, 3}, 0.5, 4)}},
      {"square", {}, {F({2, 3})}},
      {"rsqrt", {}, {F({2, 3}, 0.5, 4)}},
      {"sin", {}, {F({2, 3})}},
      {"cos", {}, {F({2, 3})}},
      {"relu", {}, {F({4, 5})}},
      {"silu", {}, {F({4, 5})}},
      {"sigmoid", {}, {F({2, 3})}},
      {"gelu", {}, {F({4, 5})}},
      {"gelu", {{"approximate", "none"}}, {F({4, 5})}},
      {"gelu_grad", {}, {F({4, 5}), F({4, 5})}},
      {"cast", {{"dtype", DType::kF64}}, {F({2, 3})}},
      {"bias_add", {}, {F({2, 3, 4}), F({4})}},
      {"bias_add", {}, {F({4}), F({4})}},
      {"bias_add", {}, {F({2, 3, 2, 4}), F({2, 4})}},
      {"bias_gelu", {}, {F({2, 3, 4}), F({4})}},
      {"bias_gelu", {{"approximate", "none"}}, {F({3, 4}), F({4})}},
      {"bias_gelu_grad", {}, {F({4, 5}), F({5}), F({4, 5})}},
      // Shape.
      {"reshape", {{"shape", Ints({2, 4})}}, {F({8})}},
      {"reshape", {{"shape", Ints({4, 2, 3})}}, {F({2, 12})}},
      {"reshape", {{"shape", Ints({8, 3})}}, {F({6, 4})}},
      {"reshape", {{"shape", Ints({})}}, {F({1, 1})}},
      {"transpose", {{"permutation", Ints({2, 0, 1})}}, {F({2, 3, 4})}},
      {"broadcast", {{"shape", Ints({4, 3})}, {"axes", Ints({1})}}, {F({3})}},
      {"broadcast", {{"shape", Ints({4, 3, 2})}, {"axes", Ints({2, 0})}}, {F({2, 4})}},
      {"broadcast", {{"shape", Ints({2, 3})}, {"axes", Ints({})}}, {F({})}},
      {"slice", {{"start", Ints({1, 0})}, {"limit", Ints({3, 4})}}, {F({5, 4})}},
      {"slice",
       {{"start", Ints({1, 0})}, {"limit", Ints({5, 6})}, {"stride", Ints({2, 4})}},
       {F({5, 6})}},
      {"slice", {{"start", Ints({1})}, {"limit", Ints({9})}, {"stride", Ints({3})}}, {F({11})}},
      {"concat", {{"axis", 1}}, {F({2, 3}), F({2, 1}), F({2, 2})}},
      {"concat", {{"axis", 0}}, {F({2, 3})}},
      {"pad", {{"low", Ints({1, 0})}, {"high", Ints({2, 0})}}, {F({2, 3})}},
      {"roll", {{"axis", 1}, {"shift", 2}}, {F({2, 6, 2})}},
      {"roll", {{"axis", -1}, {"shift", -1}}, {F({2, 4})}},
      {"roll", {{"axis", 0}, {"shift", 8}}, {F({4, 3})}},
      {"split", {{"axis", 0}, {"parts", 2}}, {F({4, 3})}},
      {"split", {{"axis", -1}, {"parts", 3}}, {F({2, 6})}},
      {"dynamic_slice", {{"sizes", Ints({2, 4})}}, {F({5, 4}), I({2}, -1, 5)}},
      {"dynamic_update_slice", {}, {F({5, 4}), F({2, 4}), I({2}, -1, 5)}},
      // Contractions.
      {"matmul", {}, {F({4, 3}), F({3, 2})}},
      {"matmul", {{"transpose_a", true}}, {F({3, 4}), F({3, 2})}},
      {"matmul", {{"transpose_b", true}}, {F({4, 3}), F({2, 3})}},
      {"matmul", {{"transpose_a", true}, {"transpose_b", true}}, {F({3, 4}), F({2, 3})}},
      {"matmul", {}, {F({2, 4, 3}), F({2, 3, 2})}},
      {"matmul", {{"transpose_a", true}, {"transpose_b", true}}, {F({2, 3, 4}), F({2, 2, 3})}},
      {"matmul", {}, {F({2, 2, 4, 3}), F({3, 2})}},
      {"matmul", {{"transpose_b", true}}, {F({2, 4, 3}), F({2, 3})}},
      {"matmul", {{"transpose_a", true}}, {F({2, 3, 4}), F({3, 2})}},
      {"matmul", {{"transpose_a", true}, {"transpose_b", true}}, {F({2, 3, 4}), F({2, 3})}},
      {"einsum", {{"equation", "bmk,bkn->bmn"}}, {F({2, 3, 4}), F({2, 4, 2})}},
      {"einsum", {{"equation", "abc,cd->bad"}}, {F({2, 3, 4}), F({4, 2})}},
      {"einsum", {{"equation", "ij,k->ki"}}, {F({2, 3}), F({4})}},
      {"einsum", {{"equation", "i,i->"}}, {F({4}), F({4})}},
      {"einsum", {{"equation", "ijk->ki"}}, {F({2, 3, 4})}},
      {"einsum_bias", {{"equation", "bsd,dhk->bshk"}}, {F({2, 3, 4}), F({4, 2, 3}), F({2, 3})}},
      {"einsum_bias", {{"equation", "mk,nk->mn"}}, {F({4, 3}), F({2, 3}), F({2})}},
      {"einsum_bias", {{"equation", "mk,kn->mn"}}, {F({4, 3}), F({3, 2}), F({4, 2})}},
      {"einsum_bias",
       {{"equation", "bmk,kn->bmn"}},
       {F({2, 3, 4}), F({4, 2}), F({2}), F({2, 3, 2})}},
      {"einsum_bias_gelu", {{"equation", "bmk,kn->bmn"}}, {F({2, 3, 4}), F({4, 5}), F({5})}},
      {"einsum_bias_gelu", {{"equation", "mk,kpq->mpq"}}, {F({4, 3}), F({3, 2, 2}), F({2, 2})}},
      {"einsum_gelu_grad", {{"equation", "bmn,kn->bmk"}}, {F({2, 3, 4}), F({5, 4}), F({2, 3, 5})}},
      // Reductions.
      {"reduce_sum", {{"axes", Ints({1})}}, {F({2, 3, 4})}},
      {"reduce_sum", {{"axes", Ints({-1, 0})}, {"keepdims", true}}, {F({2, 3, 4})}},
      {"reduce_mean", {{"axes", Ints({0, 2})}}, {F({2, 3, 4})}},
      {"reduce_mean", {{"axes", Ints({1})}, {"keepdims", true}}, {F({2, 3})}},
      {"reduce_max", {{"axes", Ints({1})}}, {F({3, 4})}},
      {"reduce_max", {{"axes", Ints({0})}, {"keepdims", true}}, {F({3, 4})}},
      {"sum_squares", {}, {F({3, 4})}},
      {"sum_exp", {}, {F({3, 4}), F({3})}},
      {"pick", {}, {F({3, 4}), I({3}, 0, 4)}},
      // Neural networks.
      {"softmax", {}, {F({3, 4})}},
      {"softmax", {{"axis", 0}}, {F({3, 4})}},
      {"softmax_grad", {}, {F({3, 4}, 0, 1), F({3, 4})}},
      {"layer_norm", {}, {F({2, 3, 4}), F({4}), F({4})}},
      {"layer_norm_grad", {}, {F({4, 4}), F({4, 4}), F({4}), F({4}), F({4}, 0.5, 2)}},
      {"layer_norm_grad", {}, {F({4, 4}), F({4, 4}), F({4}), F({4}), F({4}, 0.5, 2), F({4, 4})}},
      {"layer_norm_weight_grad", {}, {F({3, 4}), F({3, 4}), F({3}), F({3}, 0.5, 2)}},
      {"rms_norm", {}, {F({4, 4}), F({4})}},
      {"rms_norm_grad", {}, {F({3, 4}), F({3, 4}), F({4}), F({3}, 0.5, 2)}},
      {"rms_norm_grad", {}, {F({3, 4}), F({3, 4}), F({4}), F({3}, 0.5, 2), F({3, 4})}},
      {"rms_norm_weight_grad", {}, {F({3, 4}), F({3, 4}), F({3}, 0.5, 2)}},
      {"rotary", {}, {F({2, 3, 2, 4})}},
      {"rotary", {{"base", 100.0}, {"inverse", true}}, {F({2, 3, 4}), I({2}, 0, 9)}},
      {"rotary", {{"scaling", "linear"}, {"factor", 2.5}}, {F({2, 3, 4})}},
      {"rotary",
       {{"base", 100.0}, {"scaling", "llama3"}, {"factor", 8.0}, {"context", 40}},
       {F({2, 3, 6}), I({2}, 0, 9)}},
      {"embedding", {}, {F({6, 3}), I({2, 4}, 0, 6)}},
      {"embedding_grad", {{"rows", 6}}, {F({2, 4, 3}), I({2, 4}, 0, 6)}},
      {"attention", {}, {F({2, 2, 3, 4}), F({2, 2, 5, 4}), F({2, 2, 5, 4})}},
      {"attention", {{"causal", true}}, {F({2, 2, 4, 2}), F({2, 2, 4, 2}), F({2, 2, 4, 2})}},
      // Two heads of queries for each of the keys, and one of the keys for all.
      {"attention", {}, {F({2, 4, 3, 4}), F({2, 2, 5, 4}), F({2, 2, 5, 4})}},
      {"attention", {{"causal", true}}, {F({2, 3, 4, 2}), F({2, 1, 4, 2}), F({2, 1, 4, 2})}},
      // Of a width that libraries take.
      {"attention", {{"causal", true}}, {F({2, 4, 8, 8}), F({2, 2, 8, 8}), F({2, 2, 8, 8})}},
      {"attention", {}, {F({1, 2, 4, 16}), F({1, 2, 6, 16}), F({1, 2, 6, 16})}},
      {"attention_parts", {{"parts", 2}}, {F({1, 4, 3, 2}), F({1, 2, 4, 2}), F({1, 2, 4, 2})}},
      {"attention_parts", {{"parts", 2}}, {F({2, 2, 3, 4}), F({2, 2, 8, 4}), F({2, 2, 8, 4})}},
      {"attention_parts", {{"parts", 3}}, {F({1, 2, 3, 4}), F({1, 2, 7, 4}), F({1, 2, 7, 4})}},
      {"attention_parts",
       {{"causal", true}, {"parts", 4}},
       {F({2, 2, 3, 2}), F({2, 2, 4, 2}), F({2, 2, 4, 2})}},
      {"attention_grad",
       {{"causal", true}},
       {F({1, 2, 4, 2}), F({1, 2, 4, 2}), F({1, 2, 4, 2}), F({1, 2, 4, 2}), F({1, 2, 4}, 2, 4),
        F({1, 2, 4, 2})}},
      {"attention_grad",
       {{"causal", true}},
       {F({1, 4, 4, 2}), F({1, 2, 4, 2}), F({1, 2, 4, 2}), F({1, 4, 4, 2}), F({1, 4, 4}, 2, 4),
        F({1, 4, 4, 2})}},
      {"attention_grad",
       {{"causal", true}},
       {F({2, 4, 8, 8}), F({2, 2, 8, 8}), F({2, 2, 8, 8}), F({2, 4, 8, 8}), F({2, 4, 8}, 4, 6),
        F({2, 4, 8, 8})}},
      {"block_attention", {{"block", 2}}, {F({2, 4, 4, 2}), F({2, 4, 2, 2, 2})}},
      {"block_attention_grad",
       {{"block", 2}, {"shift", 1}},
       {F({1, 4, 4, 2}), F({1, 4, 2, 2, 2}), F({1, 4, 4, 2}), F({1, 4, 4}, 2, 4), F({1, 4, 4, 2})}},
      {"block_attention", {{"block", 3}}, {F({2, 4, 2, 3}), F({2, 6, 2, 2, 3})}},
      {"block_attention",
       {{"block", 2}, {"shift", 1}},
       {F({1, 6, 2, 2}), F({1, 4, 2, 2, 2}), F({1, 6, 2, 2}), F({1, 2, 6})}},
      {"block_attention", {{"block", 4}, {"causal", true}}, {F({2, 8, 2, 2}), F({2, 8, 2, 2, 2})}},
      {"block_attention",
       {{"block", 2}, {"shift", 2}, {"causal", true}},
       {F({2, 6, 2, 2}), F({2, 6, 2, 2, 2}), F({2, 6, 2, 2}), F({2, 2, 6})}},
      {"block_attention_grad",
       {{"block", 3}, {"shift", 1}},
       {F({1, 4, 2, 2}), F({1, 6, 2, 2, 2}), F({1, 4, 2, 2}), F({1, 2, 4}, 2, 4), F({1, 4, 2, 2})}},
      {"block_attention_grad",
       {{"block", 2}, {"shift", 1}, {"causal", true}},
       {F({2, 4, 2, 2}), F({2, 4, 2, 2, 2}), F({2, 4, 2, 2}), F({2, 2, 4}, 2, 4), F({2, 4, 2, 2})}},
      {"qkv_attention", {}, {F({2, 4, 3, 2, 2})}},
      {"qkv_attention", {{"causal", true}}, {F({2, 4, 3, 2, 2})}},
      {"qkv_attention_grad",
       {},
       {F({2, 4, 3, 2, 2}), F({2, 4, 2, 2}), F({2, 2, 4}, 2, 4), F({2, 4, 2, 2})}},
      {"qkv_attention", {{"causal", true}}, {F({2, 8, 3, 2, 8})}},
      {"qkv_attention_grad",
       {{"causal", true}},
       {F({2, 8, 3, 2, 8}), F({2, 8, 2, 8}), F({2, 2, 8}, 4, 6), F({2, 8, 2, 8})}},
      {"cached_attention", {}, {F({2, 2, 3, 2, 2}), F({2, 6, 2, 2, 2}), I({2}, 0, 7)}},
      {"cached_attention", {}, {F({4, 1, 3, 2, 2}), F({4, 5, 2, 2, 2}), I({4}, 0, 6)}},
      {"cached_attention",
       {},
       {F({2, 2, 4, 2}), F({2, 6, 2, 2, 2}), I({2}, 0, 7), F({2, 2, 2, 2}), F({2, 2, 2, 2})}},
      {"cached_attention",
       {},
       {F({4, 1, 2, 2}), F({4, 5, 2, 1, 2}), I({4}, 0, 6), F({4, 1, 1, 2}), F({4, 1, 1, 2})}},
      {"cross_entropy", {}, {F({2, 3, 5}), I({2, 3}, 0, 5)}},
      {"cross_entropy_grad", {}, {F({4, 5}), I({4}, 0, 5), F({4}, 1, 2), F({4}), F({4})}},
      {"top_k", {{"k", 2}}, {F({3, 5})}},
      {"top_k", {{"k", 1}}, {F({4})}},
      {"expert_slots", {{"experts", 3}, {"capacity", 2}}, {I({2, 4, 2}, 0, 3)}},
      {"dispatch", {{"experts", 3}, {"capacity", 2}}, {F({2, 4, 3}), I({2, 4, 2}, 0, 6)}},
      {"dispatch", {{"experts", 4}, {"capacity", 2}}, {F({4, 3}), I({4, 2}, -1, 8), F({4, 2})}},
      {"combine", {}, {F({3, 2, 2, 4}), I({2, 5, 2}, 0, 6)}},
      {"combine", {}, {F({4, 2, 3}), I({5, 2}, -1, 8), F({5, 2})}},
      {"combine_weight_grad", {}, {F({2, 5, 4}), F({3, 2, 2, 4}), I({2, 5, 2}, -1, 6)}},
      // Images.
      {"conv2d", {}, {F({2, 3, 4, 5}), F({4, 3, 3, 2})}},
      {"conv2d",
       {{"strides", Ints({2, 1})}, {"padding", Ints({1, 2})}, {"dilation", Ints({1, 2})}},
       {F({2, 2, 5, 4}), F({2, 2, 3, 2})}},
      {"conv2d",
       {{"padding", Ints({0, 2, 1, 0})}, {"strides", Ints({3, 2})}, {"groups", 2}},
       {F({2, 4, 4, 6}), F({4, 2, 3, 3})}},
      {"conv2d", {{"groups", 4}}, {F({1, 4, 3, 3}), F({4, 1, 2, 2})}},
      {"conv2d", {{"strides", Ints({2, 2})}}, {F({2, 4, 4, 4}), F({2, 4, 1, 1})}},
      {"conv2d_input_grad",
       {{"plane", Ints({5, 4})}, {"strides", Ints({2, 1})}, {"padding", Ints({1, 0})}},
       {F({4, 2, 3, 2}), F({2, 4, 3, 3})}},
      {"conv2d_input_grad",
       {{"plane", Ints({4, 4})}, {"groups", 2}},
       {F({4, 2, 3, 3}), F({2, 4, 2, 2})}},
      {"conv2d_weight_grad",
       {{"kernel", Ints({3, 2})}, {"strides", Ints({2, 1})}, {"padding", Ints({1, 0})}},
       {F({2, 2, 5, 4}), F({2, 4, 3, 3})}},
      {"conv2d_weight_grad",
       {{"kernel", Ints({3, 3})}, {"groups", 2}},
       {F({2, 4, 4, 4}), F({2, 4, 2, 2})}},
      {"max_pool2d", {{"window", Ints({2, 2})}}, {F({2, 2, 4, 5})}},
      {"max_pool2d",
       {{"window", Ints({3, 3})}, {"strides", Ints({2, 2})}, {"padding", Ints({1, 1})}},
       {F({2, 2, 5, 4})}},
      {"max_pool2d_grad",
       {{"window", Ints({3, 2})}, {"strides", Ints({1, 2})}, {"padding", Ints({1, 0})}},
       {F({2, 2, 4, 4}), F({2, 2, 4, 2})}},
      {"avg_pool2d", {{"window", Ints({2, 2})}}, {F({2, 2, 4, 5})}},
      {"avg_pool2d", {}, {F({2, 3, 3, 4})}},
      {"avg_pool2d",
       {{"window", Ints({3, 2})}, {"strides", Ints({2, 1})}, {"padding", Ints({1, 0, 1, 1})}},
       {F({2, 2, 4, 4})}},
      {"avg_pool2d_grad",
       {{"plane", Ints({4, 4})}, {"window", Ints({3, 3})}, {"strides", Ints({1, 1})}},
       {F({2, 2, 2, 2})}},
      {"batch_norm", {}, {F({4, 3, 2, 2}), F({3}), F({3})}},
      {"batch_norm", {{"epsilon", 0.01}}, {F({6, 4}), F({4}), F({4})}},
      {"batch_norm_inference", {}, {F({2, 3, 2, 2}), F({3}), F({3}), F({3}), F({3}, 0.5, 2)}},
      {"batch_norm_weight_grad", {}, {F({4, 3, 2}), F({4, 3, 2}), F({3}), F({3}, 0.5, 2)}},
      {"batch_norm_grad",
       {},
       {F({2, 4, 2, 2}), F({2, 4, 2, 2}), F({4}), F({4}), F({4}, 0.5, 2), F({4}), F({4})}},
      {"channel_variance", {}, {F({4, 3, 2, 2}), F({3})}},
      // Random numbers and sources.
      {"dropout", {{"rate", 0.3}, {"stream", 5}}, {F({4, 5})}},
      {"random_uniform", {{"shape", Ints({4, 5})}, {"stream", 1}, {"dtype", DType::kF64}}, {}},
      {"random_normal", {{"shape", Ints({4, 5})}, {"stream", 2}, {"dtype", DType::kF64}}, {}},
      {"iota", {{"axis", 1}, {"shape", Ints({4, 5})}, {"dtype", DType::kI64}}, {}},
      {"constant", {{"value", 1.5}, {"shape", Ints({4, 5})}, {"dtype", DType::kF64}}, {}},
      // Optimizers.
      {"adamw",
       {{"weight_decay", 0.1}},
       {F({4, 5}), F({4, 5}), F({4, 5}), F({4, 5}, 0.5, 2), I({}, 3, 4), F({}), F({}, 0.5, 2)}},
      {"sgd", {{"weight_decay", 0.1}}, {F({4, 5}), F({4, 5}), F({}), F({}, 0.5, 2)}},
      {"sgd",
       {{"momentum", 0.9}, {"nesterov", true}},
       {F({4, 5}), F({4, 5}), F({}), F({}, 0.5, 2), F({4, 5})}},
      // With gradients of no use.
      {"adamw",
       {{"weight_decay", 0.1}},
       {F({4, 5}), F({4, 5}), F({4, 5}), F({4, 5}, 0.5, 2), I({}, 3, 4), F({}), F({}, -2, -1)}},
      {"sgd", {{"momentum", 0.9}}, {F({4, 5}), F({4, 5}), F({}), F({}, -2, -1), F({4, 5})}},
      // One device's part of what the planner makes.
      {"reshard", {}, {F({2, 3})}},
      {"copy", {}, {F({2, 3})}},
      {"to_host", {}, {F({2, 3})}},
      {"to_device", {}, {F({2, 3})}},
  };
}

std::string ToString(const OpCase& test) {
  std::vector<std::string> types;
  for (const OperandCase& operand : test.operands) types.push_back(ToString(operand.type));
  return StrCat(test.op, " ", graph::PrintAttributes(test.attributes), " (", StrJoin(types, ", "),
                ")");
}

void PrintTo(const OpCase& test, std::ostream* out) { *out << ToString(test); }

Tensor DrawOperand(const OperandCase& operand, uint32_t index) {
  Tensor tensor(operand.type);
  for (int64_t i = 0; i < tensor.num_elements(); ++i) {
    const RandomKey key{.seed = 17, .stream = index};
    const double value = operand.low + (operand.high - operand.low) * RandomUniform(key, i);
    switch (tensor.dtype()) {
      case DType::kF64:
        tensor.As<double>()[i] = value;
        break;
      case DType::kI64:
        tensor.As<int64_t>()[i] = static_cast<int64_t>(std::floor(value));
        break;
      default:
        tensor.As<bool>()[i] = value >= 1;
    }
  }
  return tensor;
}

}  // namespace penstock::testing
