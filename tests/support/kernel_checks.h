// Kernels of a GPU held against those of the CPU: one case or more for every kernel, on whole
// tensors and on tiles, run by the tests on the simulated device (simulated_kernels_test.cc) and on
// a real one (cuda_kernels_test.cc).
//
// Thread rule: one thread.

#ifndef PENSTOCK_TESTS_SUPPORT_KERNEL_CHECKS_H_
#define PENSTOCK_TESTS_SUPPORT_KERNEL_CHECKS_H_

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"

#include "base/device.h"
#include "base/half.h"
#include "base/random.h"
#include "base/tensor.h"
#include "graph/op.h"
#include "graph/text.h"
#include "kernels/kernel.h"
#include "tests/support/double_types.h"
#include "tests/support/half_types.h"
#include "tests/support/interpreter.h"
#include "tests/support/kernel_case.h"
#include "tests/support/op_cases.h"

namespace penstock::testing {

using graph::Attributes;
using kernels::Kernel;
using kernels::KernelArgs;
using kernels::KernelDef;
using kernels::KernelRegistry;
using kernels::KernelSpec;
using kernels::TileDesc;

struct KernelCheck {
  KernelSpec spec;
  std::vector<std::pair<double, double>> ranges;  // of each input's values
  std::vector<int64_t> microbatches = {0};        // run one after another
  // Relative to max(1, |expected|), of f32; of 16 bits it is that of their rounding, and of f64 it
  // is less by as much as f64 rounds less. 0: same bits.
  double tolerance = 2e-5;
  // Values that are put into operands: NaN, infinities, numbers that a range would not give.
  struct Planted {
    size_t input = 0;
    int64_t element = 0;
    double value = 0;
  };
  std::vector<Planted> planted = {};
  // What is planted does not count: results are those of the CPU without it.
  bool is_planted_unseen = false;
};

inline void PrintTo(const KernelCheck& check, std::ostream* out) {
  *out << check.spec.op << " " << graph::PrintAttributes(check.spec.attributes);
  for (const TileDesc& tile : check.spec.inputs) {
    *out << " " << penstock::ToString(TensorType{tile.dtype, tile.shape});
  }
}

// ---- The list.

inline TensorType F32(Shape shape) { return {DType::kF32, std::move(shape)}; }
inline TensorType I64(Shape shape) { return {DType::kI64, std::move(shape)}; }

// On whole tensors, whose results' types the operator knows.
inline KernelCheck Whole(const graph::OpRegistry& ops, const std::string& op, Attributes attributes,
                         std::vector<TensorType> types,
                         std::vector<std::pair<double, double>> ranges = {}) {
  KernelCheck check;
  check.spec.op = op;
  check.spec.attributes = std::move(attributes);
  for (const TensorType& type : types) check.spec.inputs.push_back(WholeTile(type));
  const auto results = graph::InferResultTypes(*ops.Find(op), check.spec.attributes, types);
  EXPECT_TRUE(results.ok()) << op << ": " << results.status();
  if (results.ok()) {
    for (const TensorType& type : *results) {
      check.spec.outputs.push_back(WholeTile(type));
    }
  }
  ranges.resize(types.size(), {-2, 2});
  check.ranges = std::move(ranges);
  return check;
}

// The tile of `shape` at `offset` of a tensor `global`.
inline TileDesc Tile(DType dtype, Shape shape, Shape global, Shape offset, Shape stride = {}) {
  if (stride.empty()) stride = Shape(shape.size(), 0);
  return {dtype, std::move(shape), std::move(global), std::move(offset), std::move(stride)};
}

inline KernelCheck OnTiles(const std::string& op, Attributes attributes,
                           std::vector<TileDesc> inputs, std::vector<TileDesc> outputs,
                           std::vector<std::pair<double, double>> ranges = {}) {
  KernelCheck check;
  check.spec.op = op;
  check.spec.attributes = std::move(attributes);
  check.spec.inputs = std::move(inputs);
  check.spec.outputs = std::move(outputs);
  ranges.resize(check.spec.inputs.size(), {-2, 2});
  check.ranges = std::move(ranges);
  return check;
}

inline graph::AttrValue Integers(const std::vector<int64_t>& values) {
  return graph::AttrValue::Ints(values);
}

// The cases of tests/support/op_cases.h, in f32.
inline void AddOpCases(const graph::OpRegistry& ops, const KernelRegistry& registry,
                       std::vector<KernelCheck>* checks) {
  for (const OpCase& test : OpCases()) {
    if (registry.Find(test.op) == nullptr || ops.Find(test.op) == nullptr) continue;
    Attributes attributes = test.attributes;
    if (const graph::AttrValue* dtype = attributes.Find("dtype");
        dtype != nullptr && test.op != "iota") {
      attributes.Set("dtype", DType::kF32);
    }
    if (test.op == "reshard") continue;  // made by the planner
    std::vector<TensorType> types;
    std::vector<std::pair<double, double>> ranges;
    for (const OperandCase& operand : test.operands) {
      types.push_back(operand.type);
      if (types.back().dtype == DType::kF64) types.back().dtype = DType::kF32;
      ranges.emplace_back(operand.low, operand.high);
    }
    checks->push_back(Whole(ops, test.op, attributes, types, ranges));
    KernelCheck& added = checks->back();
    if (registry.Find(test.op)->supports_accumulate) {
      checks->push_back(added);
      checks->back().spec.accumulate = true;
      checks->back().microbatches = {0, 1, 2};
    }
  }
}

// Large enough for several warps, tiles, vectors and parts.
inline void AddLargeCases(const graph::OpRegistry& ops, std::vector<KernelCheck>* checks) {
  const auto add = [&](const std::string& op, Attributes attributes, std::vector<TensorType> types,
                       std::vector<std::pair<double, double>> ranges = {}) -> KernelCheck& {
    checks->push_back(Whole(ops, op, std::move(attributes), std::move(types), std::move(ranges)));
    return checks->back();
  };
  add("add", {}, {F32({1027}), F32({1027})});
  add("mul", {}, {I64({301}), I64({301})}, {{-9, 9}, {-9, 9}});
  add("div", {}, {I64({301}), I64({301})}, {{-9, 9}, {-2, 2}});
  add("cast", {{"dtype", DType::kI32}}, {F32({64})}, {{-9, 9}});
  add("gelu", {}, {F32({512})}, {{-40, 40}});
  add("gelu_grad", {}, {F32({512}), F32({512})}, {{-40, 40}, {-2, 2}});
  add("bias_gelu", {}, {F32({9, 64}), F32({64})});
  add("bias_gelu_grad", {}, {F32({9, 63}), F32({63}), F32({9, 63})});
  add("softmax", {}, {F32({3, 700})});
  add("softmax", {{"axis", 1}}, {F32({3, 50, 7})});
  add("softmax_grad", {{"axis", 1}}, {F32({3, 50, 7}), F32({3, 50, 7})});
  add("layer_norm", {}, {F32({5, 1030}), F32({1030}), F32({1030})});
  add("layer_norm_grad", {}, {F32({5, 300}), F32({5, 300}), F32({300}), F32({5}), F32({5})},
      {{-2, 2}, {-2, 2}, {-2, 2}, {-1, 1}, {0.5, 2}});
  for (const int64_t size : {300, 1032}) {  // rows that a block works on
    const TensorType rows = F32({5, size});
    const TensorType row = F32({size});
    const TensorType each = F32({5});
    add("layer_norm_grad", {}, {rows, rows, row, each, each, rows},
        {{-2, 2}, {-2, 2}, {-2, 2}, {-1, 1}, {0.5, 2}, {-2, 2}});
    add("rms_norm_grad", {}, {rows, rows, row, each, rows},
        {{-2, 2}, {-2, 2}, {-2, 2}, {0.5, 2}, {-2, 2}});
  }
  add("layer_norm_weight_grad", {}, {F32({300, 70}), F32({300, 70}), F32({300}), F32({300})},
      {{-1, 1}, {-1, 1}, {-1, 1}, {0.5, 1}});
  add("layer_norm_weight_grad", {}, {F32({600, 200}), F32({600, 200}), F32({600}), F32({600})},
      {{-1, 1}, {-1, 1}, {-1, 1}, {0.5, 1}});
  // Rows that a warp holds in registers, also if its lanes have less than they could.
  for (const int64_t size : {8, 96, 264, 520, 768, 1024}) {
    const TensorType rows = F32({7, size});
    const TensorType row = F32({size});
    const TensorType each = F32({7});
    add("layer_norm", {}, {rows, row, row}, {{3, 4}, {-2, 2}, {-2, 2}});
    add("layer_norm_grad", {}, {rows, rows, row, each, each},
        {{-2, 2}, {-2, 2}, {-2, 2}, {-1, 1}, {0.5, 2}});
    add("rms_norm_grad", {}, {rows, rows, row, each}, {{-2, 2}, {-2, 2}, {-2, 2}, {0.5, 2}});
    add("layer_norm_grad", {}, {rows, rows, row, each, each, rows},
        {{-2, 2}, {-2, 2}, {-2, 2}, {-1, 1}, {0.5, 2}, {-2, 2}});
    add("rms_norm_grad", {}, {rows, rows, row, each, rows},
        {{-2, 2}, {-2, 2}, {-2, 2}, {0.5, 2}, {-2, 2}});
  }
  add("rms_norm", {}, {F32({5, 200}), F32({200})});
  add("rms_norm_weight_grad", {}, {F32({200, 33}), F32({200, 33}), F32({200})},
      {{-1, 1}, {-1, 1}, {0.5, 1}});
  add("cross_entropy", {}, {F32({6, 1500}), I64({6})}, {{-30, 30}, {0, 1500}});
  add("reduce_sum", {{"axes", Integers({0})}}, {F32({900, 5})});
  add("reduce_sum", {{"axes", Integers({0})}}, {F32({700, 200})});
  add("reduce_sum", {{"axes", Integers({0})}}, {I64({300, 66})}, {{-99, 99}});
  add("reduce_max", {{"axes", Integers({0})}}, {F32({400, 136})});
  add("reduce_sum", {{"axes", Integers({0, 1})}}, {F32({300, 70})}, {{0, 1}}).tolerance = 1e-6;
  add("reduce_sum", {{"axes", Integers({1})}}, {F32({5, 40, 6})});
  add("reduce_sum", {{"axes", Integers({0, 2})}}, {I64({5, 40, 6})}, {{-99, 99}});
  add("reduce_max", {{"axes", Integers({0, 1})}}, {F32({300, 70})});
  add("reduce_max", {{"axes", Integers({0})}}, {I64({30, 70})}, {{-99, 99}});
  add("reduce_mean", {{"axes", Integers({0})}}, {F32({800, 3})});
  add("sum_squares", {}, {F32({12000})}, {{0, 1}}).tolerance = 1e-6;
  add("sum_exp", {}, {F32({3, 500}), F32({3})}, {{-2, 2}, {2, 3}});
  add("transpose", {{"permutation", Integers({1, 0})}}, {F32({70, 45})});
  add("transpose", {{"permutation", Integers({0, 2, 1, 3})}}, {F32({2, 9, 5, 8})});
  add("transpose", {{"permutation", Integers({2, 0, 1})}}, {F32({9, 33, 40})});
  add("transpose", {{"permutation", Integers({2, 1, 0})}}, {I64({9, 3, 40})});
  add("concat", {{"axis", 1}}, {F32({4, 8}), F32({4, 12})});
  add("embedding", {}, {F32({50, 12}), I64({9, 7})}, {{-2, 2}, {0, 50}});
  add("embedding_grad", {{"rows", 20}}, {F32({9, 40, 70}), I64({9, 40})}, {{-1, 1}, {0, 20}});
  add("matmul", {}, {F32({37, 65}), F32({65, 43})});
  add("matmul", {{"transpose_b", true}}, {F32({3, 17, 20}), F32({3, 8, 20})});
  add("matmul", {}, {F32({8, 16}), F32({16, 12})});  // columns are multiples of 16 bytes
  add("matmul", {}, {I64({7, 5}), I64({5, 6})}, {{-9, 9}, {-9, 9}});
  add("einsum", {{"equation", "bshd,bthd->bhst"}}, {F32({2, 5, 3, 8}), F32({2, 6, 3, 8})});
  add("einsum", {{"equation", "bhst,bthd->bshd"}}, {F32({2, 3, 5, 6}), F32({2, 6, 3, 8})});
  // Matrices, vectors and distances of 16 bytes, as epilogues of the library need them.
  add("einsum_bias", {{"equation", "bsd,dchk->bschk"}},
      {F32({2, 9, 16}), F32({16, 3, 2, 8}), F32({3, 2, 8})});
  // A CPU rounds products in 16 bits before it adds to them, so they are small.
  const std::vector<std::pair<double, double>> small = {
      {-0.25, 0.25}, {-0.25, 0.25}, {-0.25, 0.25}, {-0.25, 0.25}};
  for (const int64_t size : {16, 64}) {
    const TensorType x = F32({2, 9, size});
    add("einsum_bias", {{"equation", "bmk,kn->bmn"}},
        {x, F32({size, 48}), F32({48}), F32({2, 9, 48})}, small);
    add("einsum_bias", {{"equation", "bmk,nk->bmn"}}, {x, F32({48, size}), F32({2, 9, 48})}, small);
  }
  add("einsum_bias", {{"equation", "mk,kn->nm"}}, {F32({8, 16}), F32({16, 24}), F32({24, 8})},
      small);
  add("einsum_bias_gelu", {{"equation", "bmk,kn->bmn"}},
      {F32({2, 9, 24}), F32({24, 32}), F32({32})});
  checks->push_back(KernelCheck(checks->back()));
  checks->back().spec.outputs.pop_back();  // without what the gradient reads
  // cuBLASLt has a slope of gelu of its own.
  add("einsum_gelu_grad", {{"equation", "bmn,kn->bmk"}},
      {F32({2, 9, 16}), F32({24, 16}), F32({2, 9, 24})})
      .tolerance = 1e-4;
  add("attention", {{"causal", true}},
      {F32({2, 2, 70, 40}), F32({2, 2, 70, 40}), F32({2, 2, 70, 40})});
  add("attention", {}, {F32({1, 4, 19, 72}), F32({1, 2, 45, 72}), F32({1, 2, 45, 72})});
  add("attention_grad", {{"causal", true}},
      {F32({1, 2, 40, 36}), F32({1, 1, 40, 36}), F32({1, 1, 40, 36}), F32({1, 2, 40, 36}),
       F32({1, 2, 40}), F32({1, 2, 40, 36})},
      {{-1, 1}, {-1, 1}, {-1, 1}, {-1, 1}, {4, 6}, {-1, 1}});
  add("qkv_attention", {{"causal", true}}, {F32({2, 35, 3, 2, 16})});
  // Several tiles of rows on both sides, of widths that tensor cores take.
  for (const int64_t width : {16, 64, 72, 128}) {
    const TensorType q = F32({1, 2, 150, width});
    const TensorType k = F32({1, 1, 150, width});
    const std::vector<std::pair<double, double>> ranges = {{-1, 1}, {-1, 1}, {-1, 1},
                                                           {-1, 1}, {4, 6},  {-1, 1}};
    for (const bool is_causal : {false, true}) {
      add("attention", {{"causal", is_causal}}, {q, k, k}, {{-1, 1}, {-1, 1}, {-1, 1}});
      add("attention_grad", {{"causal", is_causal}}, {q, k, k, q, F32({1, 2, 150}), q}, ranges);
    }
    const TensorType qkv = F32({2, 70, 3, 2, width});
    const TensorType o = F32({2, 70, 2, width});
    add("qkv_attention", {{"causal", true}}, {qkv});
    add("qkv_attention_grad", {{"causal", true}}, {qkv, o, F32({2, 2, 70}), o},
        {{-1, 1}, {-1, 1}, {4, 6}, {-1, 1}});
  }
  add("block_attention", {{"block", 80}, {"shift", 1}, {"causal", true}},
      {F32({1, 160, 2, 16}), F32({1, 160, 2, 2, 16}), F32({1, 160, 2, 16}), F32({1, 2, 160})});
  add("cached_attention", {}, {F32({2, 40, 3, 2, 16}), F32({2, 130, 2, 2, 16}), I64({2})},
      {{-1, 1}, {-1, 1}, {60, 130}});
  // All columns of the lanes, more shared memory than a kernel has without asking, and odd widths.
  for (const int64_t width : {33, 128, 200, 256}) {
    const TensorType q = F32({1, 2, 21, width});
    const TensorType k = F32({1, 1, 37, width});
    add("attention", {{"causal", true}}, {q, k, k}, {{-1, 1}, {-1, 1}, {-1, 1}});
    add("attention_grad", {{"causal", true}}, {q, k, k, q, F32({1, 2, 21}), q},
        {{-1, 1}, {-1, 1}, {-1, 1}, {-1, 1}, {4, 6}, {-1, 1}});
  }
  add("embedding_grad", {{"rows", 20}}, {F32({3600, 70}), I64({3600})}, {{-1, 1}, {0, 20}});
  // Tables of so many rows that a block takes several.
  add("embedding_grad", {{"rows", 20000}}, {F32({300, 1}), I64({300})}, {{-1, 1}, {19000, 20000}});
  add("embedding_grad", {{"rows", 9000}}, {F32({300, 35}), I64({300})}, {{-1, 1}, {0, 30}});
  add("embedding_grad", {{"rows", 1100}}, {F32({1100, 40}), I64({1100})}, {{-1, 1}, {0, 1100}});
  add("dispatch", {{"experts", 4}, {"capacity", 4200}},
      {F32({2, 30, 3}), I64({2, 30, 2}), F32({2, 30, 2})}, {{-1, 1}, {-3, 60}, {0, 1}});
  add("dropout", {{"rate", 0.3}, {"stream", 5}}, {F32({8, 64})}).tolerance = 0;
  add("dropout", {{"rate", 0.7}, {"stream", 5}}, {F32({333})}).tolerance = 0;
  add("adamw", {{"weight_decay", 0.1}},
      {F32({257}), F32({257}), F32({257}), F32({257}), I64({}), F32({}), F32({})},
      {{-2, 2}, {-2, 2}, {-2, 2}, {0.5, 2}, {3, 4}, {0, 1}, {0, 1}});
  // A negative scale: all is kept.
  add("adamw", {{"weight_decay", 0.1}},
      {F32({64}), F32({64}), F32({64}), F32({64}), I64({}), F32({}), F32({})},
      {{-2, 2}, {-2, 2}, {-2, 2}, {0.5, 2}, {3, 4}, {0, 1}, {-1, -0.5}})
      .tolerance = 0;
  add("sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}, {"nesterov", true}},
      {F32({4357}), F32({4357}), F32({}), F32({}), F32({4357})},
      {{-2, 2}, {-2, 2}, {0, 1}, {0, 1}, {-2, 2}});
  add("sgd", {{"momentum", 0.9}, {"weight_decay", 0.1}},
      {F32({37}), F32({37}), F32({}), F32({}), F32({37})},
      {{-2, 2}, {-2, 2}, {0, 1}, {-1, -0.5}, {-2, 2}})
      .tolerance = 0;
  add("rotary", {}, {F32({2, 7, 3, 16})});
  add("batch_norm", {}, {F32({5, 3, 9, 7}), F32({3}), F32({3})});
  add("top_k", {{"k", 3}}, {F32({40, 17})});
  add("dispatch", {{"experts", 5}, {"capacity", 8}},
      {F32({2, 60, 70}), I64({2, 60, 2}), F32({2, 60, 2})}, {{-1, 1}, {-3, 42}, {0, 1}});
  add("combine", {}, {F32({5, 2, 8, 70}), I64({2, 60, 2})}, {{-1, 1}, {-3, 42}});
  add("combine_weight_grad", {}, {F32({2, 60, 70}), F32({5, 2, 8, 70}), I64({2, 60, 2})},
      {{-1, 1}, {-1, 1}, {-3, 42}});
  add("conv2d_weight_grad", {{"kernel", Integers({3, 3})}, {"padding", Integers({1, 1})}},
      {F32({3, 4, 9, 9}), F32({3, 5, 9, 9})});
}

// Rows of more than 2048 elements, on blocks of the most threads that there are: one for every
// kernel that works on rows by blocks. On a GPU a kernel that needs too many registers does not
// start.
inline void AddLongRowCases(const graph::OpRegistry& ops, std::vector<KernelCheck>* checks) {
  const auto add = [&](const std::string& op, Attributes attributes, std::vector<TensorType> types,
                       std::vector<std::pair<double, double>> ranges = {}) -> KernelCheck& {
    checks->push_back(Whole(ops, op, std::move(attributes), std::move(types), std::move(ranges)));
    return checks->back();
  };
  constexpr int64_t kLong = 4100;
  const TensorType rows = F32({2, kLong});
  const TensorType row = F32({kLong});
  const TensorType each = F32({2});
  add("softmax", {}, {rows});
  add("softmax_grad", {}, {rows, rows});
  add("layer_norm", {}, {rows, row, row});
  add("layer_norm_grad", {}, {rows, rows, row, each, each},
      {{-2, 2}, {-2, 2}, {-2, 2}, {-1, 1}, {0.5, 2}});
  add("layer_norm_weight_grad", {}, {F32({kLong, 1}), F32({kLong, 1}), row, row},
      {{0, 1}, {0, 1}, {-1, 0}, {0.5, 1}});
  add("rms_norm", {}, {rows, row});
  add("rms_norm_grad", {}, {rows, rows, row, each}, {{-2, 2}, {-2, 2}, {-2, 2}, {0.5, 2}});
  add("rms_norm_weight_grad", {}, {F32({kLong, 1}), F32({kLong, 1}), row},
      {{0, 1}, {0, 1}, {0.5, 1}});
  add("cross_entropy", {}, {rows, I64({2})}, {{-30, 30}, {0, kLong}});
  add("cross_entropy_grad", {}, {rows, I64({2}), each, each, each},
      {{-2, 2}, {0, kLong}, {1, 2}, {3, 4}, {-1, 1}});
  add("reduce_sum", {{"axes", Integers({1})}}, {rows}, {{0, 1}});
  add("reduce_sum", {{"axes", Integers({1})}}, {I64({2, kLong})}, {{-99, 99}});
  add("reduce_max", {{"axes", Integers({1})}}, {rows});
  add("sum_squares", {}, {row}, {{0, 1}});
  add("sum_exp", {}, {rows, each}, {{-2, 2}, {2, 3}});
  add("conv2d_weight_grad", {{"kernel", Integers({1, 1})}},
      {F32({2, 1, 40, 54}), F32({2, 1, 40, 54})}, {{0, 1}, {0, 1}});
  const TensorType image = F32({2, 1, 40, 54});
  const TensorType channel = F32({1});
  add("batch_norm", {}, {image, channel, channel});
  add("batch_norm_inference", {}, {image, channel, channel, channel, channel},
      {{-2, 2}, {-2, 2}, {-2, 2}, {-1, 1}, {0.5, 2}});
  add("batch_norm_grad", {}, {image, image, channel, channel, channel, channel, channel},
      {{-2, 2}, {-2, 2}, {-2, 2}, {-1, 1}, {0.5, 2}, {-2, 2}, {-2, 2}});
  add("batch_norm_weight_grad", {}, {image, image, channel, channel},
      {{0, 1}, {0, 1}, {-1, 0}, {0.5, 1}});
  add("channel_variance", {}, {image, channel}, {{-2, 2}, {-1, 1}});
}

// NaN, infinities and what lies beyond the range of a type.
inline void AddSpecialValueCases(const graph::OpRegistry& ops, std::vector<KernelCheck>* checks) {
  constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
  constexpr double kInf = std::numeric_limits<double>::infinity();
  const std::vector<double> values = {kNan,  kInf, -kInf, 0.0,  -0.0,  1e30,
                                      -1e30, 3e9,  -3e9,  1e19, -1e19, 0.5};
  const auto count = static_cast<int64_t>(values.size());
  const auto add = [&](const std::string& op, Attributes attributes, std::vector<TensorType> types,
                       std::vector<std::pair<double, double>> ranges = {}) -> KernelCheck& {
    checks->push_back(Whole(ops, op, std::move(attributes), std::move(types), std::move(ranges)));
    return checks->back();
  };
  for (const char* op :
       {"abs", "neg", "relu", "square", "exp", "log", "tanh", "sqrt", "rsqrt", "sigmoid"}) {
    KernelCheck& check = add(op, {}, {F32({count})});
    for (int64_t i = 0; i < count; ++i) check.planted.push_back({0, i, values[i]});
  }
  for (const DType dtype : {DType::kI32, DType::kI64, DType::kBool}) {
    KernelCheck& check = add("cast", {{"dtype", dtype}}, {F32({count})});
    for (int64_t i = 0; i < count; ++i) check.planted.push_back({0, i, values[i]});
  }
  // Every pair.
  for (const char* op : {"add", "mul", "div", "max", "min", "equal", "less", "greater"}) {
    KernelCheck& check = add(op, {}, {F32({count * count}), F32({count * count})});
    for (int64_t i = 0; i < count * count; ++i) {
      check.planted.push_back({0, i, values[i / count]});
      check.planted.push_back({1, i, values[i % count]});
    }
  }
  // Rows of numbers; with -inf, only -inf, with inf, with NaN.
  const auto plant_rows = [&](KernelCheck& check, int64_t size) {
    check.planted.push_back({0, 1 * size + 2, -kInf});
    for (int64_t i = 0; i < size; ++i) check.planted.push_back({0, 2 * size + i, -kInf});
    check.planted.push_back({0, 3 * size + 1, kInf});
    check.planted.push_back({0, 4 * size + size - 1, kNan});
  };
  for (const int64_t size : {5, 300}) {
    plant_rows(add("softmax", {}, {F32({5, size})}), size);
    plant_rows(add("cross_entropy", {}, {F32({5, size}), I64({5})}, {{-2, 2}, {0, 5}}), size);
    plant_rows(add("reduce_max", {{"axes", Integers({1})}}, {F32({5, size})}), size);
    plant_rows(add("reduce_sum", {{"axes", Integers({1})}}, {F32({5, size})}), size);
    plant_rows(add("reduce_mean", {{"axes", Integers({1})}}, {F32({5, size})}), size);
    plant_rows(add("top_k", {{"k", 3}}, {F32({5, size})}), size);
  }
  constexpr int64_t kPacked = 304;  // rows of whole packs
  plant_rows(add("cross_entropy", {}, {F32({5, kPacked}), I64({5})}, {{-2, 2}, {0, kPacked}}),
             kPacked);
  {
    // Labels: the only finite logit, inf, -inf, NaN, and beside logits far below.
    KernelCheck& check =
        add("cross_entropy", {}, {F32({5, kPacked}), I64({5})}, {{-2, 2}, {0, kPacked}});
    const std::vector<double> of_label = {1, kInf, -kInf, kNan, 3e38};
    for (int64_t row = 0; row < 5; ++row) {
      const int64_t label = 8 * row + 3;
      for (int64_t i = 0; i < kPacked && (row == 0 || row == 4); ++i) {
        check.planted.push_back({0, row * kPacked + i, row == 0 ? -kInf : -3e38});
      }
      check.planted.push_back({0, row * kPacked + label, of_label[row]});
      check.planted.push_back({1, row, static_cast<double>(label)});
    }
  }
  plant_rows(add("reduce_max", {{"axes", Integers({0})}}, {F32({5, 40})}), 40);
  plant_rows(add("max_pool2d", {{"window", Integers({2, 2})}}, {F32({1, 5, 4, 4})}), 16);
  // What a query does not see does not count, even where it is no number: here keys and values
  // behind the last query, in a gradient also queries before the first key.
  const DType f = DType::kF32;
  const TileDesc whole = Tile(f, {1, 1, 40, 8}, {1, 1, 40, 8}, {0, 0, 0, 0});
  const TileDesc first = Tile(f, {1, 1, 20, 8}, {1, 1, 40, 8}, {0, 0, 0, 0});
  const TileDesc last = Tile(f, {1, 1, 20, 8}, {1, 1, 40, 8}, {0, 0, 20, 0});
  const std::vector<std::pair<double, double>> grad_ranges = {{-1, 1}, {-1, 1}, {-1, 1},
                                                              {-1, 1}, {4, 6},  {-1, 1}};
  for (const double value : {kNan, kInf}) {
    const TileDesc first_lse = Tile(f, {1, 1, 20}, {1, 1, 40}, {0, 0, 0});
    const TileDesc whole_lse = Tile(f, {1, 1, 40}, {1, 1, 40}, {0, 0, 0});
    KernelCheck attention =
        OnTiles("attention", {{"causal", true}}, {first, whole, whole}, {first, first_lse});
    KernelCheck gradient =
        OnTiles("attention_grad", {{"causal", true}},
                {first, whole, whole, first, first_lse, first}, {first, whole, whole}, grad_ranges);
    KernelCheck of_keys =
        OnTiles("attention_grad", {{"causal", true}}, {whole, last, last, whole, whole_lse, whole},
                {whole, last, last}, grad_ranges);
    for (int64_t i = 20 * 8; i < 40 * 8; ++i) {
      for (const size_t input : {1, 2}) {
        attention.planted.push_back({input, i, value});
        gradient.planted.push_back({input, i, value});
      }
      of_keys.planted.push_back({0, i - 20 * 8, value});
      of_keys.planted.push_back({5, i - 20 * 8, value});
    }
    for (KernelCheck* check : {&attention, &gradient, &of_keys}) {
      check->is_planted_unseen = true;
      checks->push_back(std::move(*check));
    }
    // What lies in a cache behind the tokens so far.
    KernelCheck& cached =
        add("cached_attention", {}, {F32({1, 2, 3, 2, 4}), F32({1, 20, 2, 2, 4}), I64({1})},
            {{-1, 1}, {-1, 1}, {5, 6}});
    for (int64_t i = 7 * 16; i < 20 * 16; ++i) cached.planted.push_back({1, i, value});
  }
}

// Other types than f32, i64 and bool.
inline void AddTypeCases(const graph::OpRegistry& ops, std::vector<KernelCheck>* checks) {
  const auto add = [&](const std::string& op, Attributes attributes, std::vector<TensorType> types,
                       std::vector<std::pair<double, double>> ranges = {}) -> KernelCheck& {
    checks->push_back(Whole(ops, op, std::move(attributes), std::move(types), std::move(ranges)));
    return checks->back();
  };
  const auto i32 = [](Shape shape) { return TensorType{DType::kI32, std::move(shape)}; };
  const std::pair<double, double> large = {-2e9, 2e9};  // sums and products wrap
  for (const char* op : {"add", "sub", "mul", "max", "min", "equal", "less", "greater"}) {
    add(op, {}, {i32({77}), i32({77})}, {large, large});
  }
  add("div", {}, {i32({77}), i32({77})}, {large, {-3, 3}});
  for (const char* op : {"abs", "neg", "relu", "square"}) add(op, {}, {i32({77})}, {large});
  for (const DType dtype : {DType::kF32, DType::kI64, DType::kBool}) {
    add("cast", {{"dtype", dtype}}, {i32({33})}, {{-2, 2}});
  }
  add("cast", {{"dtype", DType::kI32}}, {I64({33})}, {{-9e9, 9e9}});
  add("cast", {{"dtype", DType::kI32}}, {{DType::kBool, {33}}});
  add("reduce_sum", {{"axes", Integers({0})}}, {i32({40, 7})}, {large});
  add("reduce_sum", {{"axes", Integers({1})}}, {i32({7, 140})}, {large});
  add("reduce_max", {{"axes", Integers({1})}}, {i32({7, 140})}, {large});
  add("matmul", {}, {i32({7, 5}), i32({5, 6})}, {large, large});
  add("einsum", {{"equation", "abc,bd->dca"}}, {i32({3, 4, 2}), i32({4, 5})}, {large, large});
  add("iota", {{"axis", 1}, {"shape", Integers({4, 5})}, {"dtype", DType::kI32}}, {});
  add("iota", {{"axis", 0}, {"shape", Integers({4, 5})}, {"dtype", DType::kF32}}, {});
  KernelCheck& sums = add("accumulate", {{"reduction", "sum"}}, {i32({37})}, {large});
  sums.spec.accumulate = true;
  sums.microbatches = {0, 1, 2};
  // Kernels that only move elements, in words of every size.
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kBool, DType::kBF16, DType::kF16,
                            DType::kI32, DType::kF64}) {
    const auto of = [&](Shape shape) { return TensorType{dtype, std::move(shape)}; };
    const std::pair<double, double> range = {dtype == DType::kU8 ? 0 : -100, 100};
    add("transpose", {{"permutation", Integers({1, 0})}}, {of({70, 45})}, {range});
    add("transpose", {{"permutation", Integers({0, 2, 1})}}, {of({3, 5, 16})}, {range});
    add("slice", {{"start", Integers({1, 2})}, {"limit", Integers({7, 9})}}, {of({8, 9})}, {range});
    add("pad", {{"low", Integers({2, 0})}, {"high", Integers({1, 3})}}, {of({4, 5})}, {range});
    add("concat", {{"axis", 1}}, {of({4, 8}), of({4, 5})}, {range, range});
    add("where", {}, {{DType::kBool, {37}}, of({37}), of({37})}, {{-1, 1}, range, range});
    if (dtype != DType::kBool) {
      add("embedding", {}, {of({50, 6}), I64({9})}, {range, {0, 50}});
      add("pick", {}, {of({9, 7}), I64({9})}, {range, {0, 7}});
    }
    add("dynamic_slice", {{"sizes", Integers({2, 4})}}, {of({5, 4}), I64({2})}, {range, {-1, 5}});
  }
  // Indices of every width.
  for (const DType dtype : {DType::kI8, DType::kU8, DType::kI32}) {
    const auto of = [&](Shape shape) { return TensorType{dtype, std::move(shape)}; };
    add("embedding", {}, {F32({120, 6}), of({29})}, {{-2, 2}, {0, 120}});
    add("embedding_grad", {{"rows", 120}}, {F32({29, 6}), of({29})}, {{-2, 2}, {0, 120}});
    add("pick", {}, {F32({9, 7}), of({9})}, {{-2, 2}, {0, 7}});
    add("cross_entropy", {}, {F32({6, 50}), of({6})}, {{-2, 2}, {0, 50}});
    add("expert_slots", {{"experts", 3}, {"capacity", 4}}, {of({2, 9, 2})}, {{0, 3}});
  }
}

// Tiles of split tensors, and micro-batches.
inline void AddTileCases(std::vector<KernelCheck>* checks) {
  const DType f = DType::kF32;
  const DType i = DType::kI64;
  const auto add = [&](KernelCheck check) -> KernelCheck& {
    checks->push_back(std::move(check));
    return checks->back();
  };
  const TileDesc inner = Tile(f, {3, 5}, {8, 9}, {4, 2});
  add(OnTiles("dropout", {{"rate", 0.5}, {"stream", 3}}, {inner}, {inner})).tolerance = 0;
  const TileDesc rows = Tile(f, {2, 8}, {8, 8}, {0, 0}, {2, 0});
  add(OnTiles("dropout", {{"rate", 0.5}}, {rows}, {rows})).microbatches = {3};
  add(OnTiles("random_uniform", {{"stream", 3}}, {}, {inner})).tolerance = 0;
  add(OnTiles("random_normal", {{"stream", 3}}, {}, {inner}));
  add(OnTiles("iota", {{"axis", 1}}, {}, {Tile(i, {3, 5}, {8, 9}, {4, 2})}));
  const TileDesc table = Tile(f, {5, 8}, {20, 8}, {10, 0});
  const TileDesc ids = Tile(i, {30}, {30}, {0});
  add(OnTiles("embedding", {}, {table, ids}, {Tile(f, {30, 8}, {30, 8}, {0, 0})},
              {{-2, 2}, {0, 20}}));
  add(OnTiles("embedding_grad", {{"rows", 20}}, {Tile(f, {30, 8}, {30, 8}, {0, 0}), ids}, {table},
              {{-2, 2}, {0, 20}}));
  const TileDesc logits = Tile(f, {6, 40}, {6, 100}, {0, 30});
  const TileDesc per_row = Tile(f, {6}, {6}, {0});
  const TileDesc labels = Tile(i, {6}, {6}, {0});
  add(OnTiles("cross_entropy_grad", {}, {logits, labels, per_row, per_row, per_row}, {logits},
              {{-2, 2}, {0, 100}, {1, 2}, {3, 4}, {-1, 1}}));
  add(OnTiles("pick", {}, {logits, labels}, {per_row}, {{-2, 2}, {0, 100}}));
  const TileDesc positions = Tile(f, {2, 3, 2, 8}, {2, 9, 2, 8}, {0, 3, 0, 0});
  add(OnTiles("rotary", {}, {positions}, {positions}));
  // The second half of the queries, which see the keys of the first one, too.
  const TileDesc queries = Tile(f, {1, 2, 20, 8}, {1, 2, 40, 8}, {0, 0, 20, 0});
  const TileDesc keys = Tile(f, {1, 2, 40, 8}, {1, 2, 40, 8}, {0, 0, 0, 0});
  const TileDesc lse = Tile(f, {1, 2, 20}, {1, 2, 40}, {0, 0, 20});
  add(OnTiles("attention", {{"causal", true}}, {queries, keys, keys}, {queries, lse}));
  // The first queries on the last keys: they see none.
  const TileDesc first = Tile(f, {1, 2, 20, 8}, {1, 2, 40, 8}, {0, 0, 0, 0});
  const TileDesc last = Tile(f, {1, 2, 15, 8}, {1, 2, 40, 8}, {0, 0, 25, 0});
  add(OnTiles("attention", {{"causal", true}}, {first, last, last},
              {first, Tile(f, {1, 2, 20}, {1, 2, 40}, {0, 0, 0})}));
  add(OnTiles("attention_grad", {{"causal", true}}, {queries, keys, keys, queries, lse, queries},
              {queries, keys, keys}, {{-1, 1}, {-1, 1}, {-1, 1}, {-1, 1}, {4, 6}, {-1, 1}}));
  add(OnTiles("slice", {{"start", Integers({1, 2})}, {"limit", Integers({7, 9})}},
              {Tile(f, {4, 9}, {8, 9}, {2, 0})}, {Tile(f, {3, 7}, {6, 7}, {2, 0})}));
  add(OnTiles("pad", {{"low", Integers({2, 0})}, {"high", Integers({1, 0})}},
              {Tile(f, {4, 5}, {8, 5}, {0, 0})}, {Tile(f, {5, 5}, {11, 5}, {0, 0})}));
  add(OnTiles("concat", {{"axis", 0}},
              {Tile(f, {4, 5}, {8, 5}, {4, 0}), Tile(f, {3, 5}, {6, 5}, {0, 0})},
              {Tile(f, {7, 5}, {14, 5}, {4, 0})}));
  add(OnTiles("local_slice", {}, {Tile(f, {8, 6}, {8, 6}, {0, 0})},
              {Tile(f, {2, 3}, {8, 6}, {2, 3}, {4, 0})}))
      .microbatches = {1};
  KernelCheck& gather =
      add(OnTiles("gather_microbatches", {}, {Tile(f, {2, 3}, {8, 3}, {0, 0}, {2, 0})},
                  {Tile(f, {8, 3}, {8, 3}, {0, 0})}));
  gather.microbatches = {0, 1, 2, 3};
  const TileDesc whole = Tile(f, {3, 10, 4}, {3, 10, 4}, {0, 0, 0});
  const TileDesc packed = Tile(f, {120}, {120}, {0});
  const Attributes parts = {{"axis", 1}, {"sizes", Integers({3, 2, 5})}};
  add(OnTiles("pack", parts, {whole}, {packed}));
  add(OnTiles("unpack", parts, {packed}, {whole}));
  add(OnTiles("pack", {{"axis", 1}, {"sizes", Integers({3, 2})}, {"starts", Integers({5, 1})}},
              {whole}, {Tile(f, {60}, {60}, {0})}));
  add(OnTiles("join_halo", {{"axis", 0}, {"sizes", Integers({2, 1})}},
              {Tile(f, {4, 3}, {12, 3}, {4, 0}), Tile(f, {9}, {9}, {0})},
              {Tile(f, {7, 3}, {12, 3}, {2, 0})}));
  add(OnTiles("join_tiles", {},
              {Tile(f, {2, 6}, {8, 6}, {0, 0}), Tile(f, {2, 3}, {8, 6}, {2, 0}),
               Tile(f, {2, 3}, {8, 6}, {2, 3})},
              {Tile(f, {4, 6}, {8, 6}, {0, 0})}));
  KernelCheck& sums = add(OnTiles("accumulate", {{"reduction", "sum"}}, {Tile(f, {37}, {37}, {0})},
                                  {Tile(f, {37}, {37}, {0})}));
  sums.spec.accumulate = true;
  sums.microbatches = {0, 1, 2};
  KernelCheck& maxima =
      add(OnTiles("accumulate", {{"reduction", "max"}}, {Tile(i, {37}, {37}, {0})},
                  {Tile(i, {37}, {37}, {0})}, {{-9, 9}}));
  maxima.spec.accumulate = true;
  maxima.microbatches = {0, 1, 2};
  // The second half of the experts, and of their places.
  const TileDesc places = Tile(f, {2, 3, 4, 8}, {4, 3, 8, 8}, {2, 0, 4, 0});
  const TileDesc slots = Tile(i, {3, 10, 2}, {3, 10, 2}, {0, 0, 0});
  const TileDesc tokens = Tile(f, {3, 10, 8}, {3, 10, 8}, {0, 0, 0});
  const Attributes experts = {{"experts", 4}, {"capacity", 8}};
  add(OnTiles("dispatch", experts, {tokens, slots}, {places}, {{-1, 1}, {-2, 32}}));
  add(OnTiles("combine", {}, {places, slots}, {tokens}, {{-1, 1}, {-2, 32}}));
  // Nothing at all.
  const TileDesc none = Tile(f, {0, 5}, {8, 5}, {8, 0});
  add(OnTiles("add", {}, {none, none}, {none}));
  add(OnTiles("softmax", {}, {none}, {none}));
  add(OnTiles("reduce_sum", {{"axes", Integers({0})}}, {none}, {Tile(f, {5}, {5}, {0})}));
  add(OnTiles("matmul", {}, {Tile(f, {4, 0}, {4, 6}, {0, 6}), Tile(f, {0, 3}, {6, 3}, {6, 0})},
              {Tile(f, {4, 3}, {4, 3}, {0, 0})}));
}

// The check with floats of 16 bits, results in f32 where the operator's attribute says so. None if
// there are no floats, or the operator knows no tiles.
inline std::optional<KernelCheck> InHalves(const graph::OpRegistry& ops, const KernelCheck& check,
                                           DType dtype, bool sums_f32) {
  const graph::Op* op = ops.Find(check.spec.op);
  if (op == nullptr || op->has_declared_type()) return std::nullopt;
  KernelCheck halves = check;
  // Weights are rounded to the operands' type, also for results in f32.
  if (check.spec.op.find("attention") != std::string::npos) {
    halves.tolerance = dtype == DType::kBF16 ? 1e-2 : 2e-3;
  }
  if (sums_f32) {
    halves.spec.attributes.Set("dtype", DType::kF32);
  } else if (halves.spec.attributes.Find("dtype") != nullptr) {
    return std::nullopt;  // a cast
  }
  std::vector<TensorType> types;
  for (const TileDesc& tile : check.spec.inputs) types.push_back({tile.dtype, tile.shape});
  absl::StatusOr<std::vector<TensorType>> results;
  types = TypesInHalves(types, dtype, [&](const std::vector<TensorType>& each) {
    results = graph::InferResultTypes(*op, halves.spec.attributes, each);
    return results.ok();
  });
  if (types.empty()) return std::nullopt;
  for (size_t i = 0; i < types.size(); ++i) halves.spec.inputs[i].dtype = types[i].dtype;
  for (size_t i = 0; i < halves.spec.outputs.size(); ++i) {
    halves.spec.outputs[i].dtype = (*results)[i].dtype;
  }
  return halves;
}

inline bool HasSumDType(const graph::OpRegistry& ops, const std::string& name) {
  const graph::Op* op = ops.Find(name);
  if (op == nullptr || op->has_declared_type() || name == "cast") return false;
  const std::vector<graph::AttrSpec> specs = op->attributes();
  return std::any_of(specs.begin(), specs.end(),
                     [](const graph::AttrSpec& spec) { return spec.name == "dtype"; });
}

// bf16 for all checks that may have it, f16 and results in f32 for each third.
inline void AddHalfCases(const graph::OpRegistry& ops, std::vector<KernelCheck>* checks) {
  const std::vector<KernelCheck> floats = *checks;
  size_t count = 0;
  const auto add = [&](std::optional<KernelCheck> check) {
    if (check.has_value()) checks->push_back(*std::move(check));
  };
  for (const KernelCheck& check : floats) {
    add(InHalves(ops, check, DType::kBF16, false));
    if (++count % 3 == 0) add(InHalves(ops, check, DType::kF16, false));
    if (!HasSumDType(ops, check.spec.op)) continue;
    add(InHalves(ops, check, DType::kBF16, true));
    if (count % 3 == 1) add(InHalves(ops, check, DType::kF16, true));
  }
}

// Operators that say their results' type, and casts.
inline void AddHalfTypeCases(const graph::OpRegistry& ops, std::vector<KernelCheck>* checks) {
  const std::vector<DType> dtypes = {DType::kF32, DType::kBF16, DType::kF16,
                                     DType::kI32, DType::kI64,  DType::kBool};
  for (const DType from : dtypes) {
    for (const DType to : dtypes) {
      if (!IsHalf(from) && !IsHalf(to)) continue;
      checks->push_back(Whole(ops, "cast", {{"dtype", to}}, {{from, {131}}}, {{-300, 300}}));
      checks->back().tolerance = 0;
    }
  }
  for (const DType dtype : {DType::kBF16, DType::kF16}) {
    const TileDesc inner = Tile(dtype, {3, 5}, {8, 9}, {4, 2});
    const auto add = [&](const std::string& op, Attributes attributes) {
      attributes.Set("dtype", dtype);
      checks->push_back(OnTiles(op, std::move(attributes), {}, {inner}));
    };
    add("iota", {{"axis", 1}, {"shape", Integers({8, 9})}});
    add("constant", {{"value", 0.3}, {"shape", Integers({8, 9})}});
    add("random_uniform", {{"stream", 3}, {"shape", Integers({8, 9})}});
    add("random_normal", {{"stream", 3}, {"shape", Integers({8, 9})}});
  }
}

// The checks in f64 where the operator has it, casts, and what f32 could not tell apart.
inline std::vector<KernelCheck> DoubleCases(const graph::OpRegistry& ops,
                                            const std::vector<KernelCheck>& floats) {
  std::vector<KernelCheck> checks;
  for (const KernelCheck& check : floats) {
    if (!HasDoubles(check.spec.op)) continue;
    std::optional<KernelSpec> spec = InDoubles(check.spec);
    if (!spec.has_value()) continue;
    checks.push_back(check);
    checks.back().spec = *std::move(spec);
  }
  const auto cast = [&](DType from, DType to) {
    const double most = ByteSize(from) == 2 || ByteSize(to) == 2 ? 300 : 2e9;
    checks.push_back(Whole(ops, "cast", {{"dtype", to}}, {{from, {131}}}, {{-most, most}}));
    checks.back().tolerance = 0;
  };
  cast(DType::kF64, DType::kF64);
  for (const DType dtype :
       {DType::kF32, DType::kBF16, DType::kF16, DType::kI32, DType::kI64, DType::kBool}) {
    cast(DType::kF64, dtype);
    cast(dtype, DType::kF64);
  }
  const TileDesc inner = Tile(DType::kF64, {3, 5}, {8, 9}, {4, 2});
  const auto add_source = [&](const std::string& op, Attributes attributes) {
    attributes.Set("dtype", DType::kF64);
    checks.push_back(OnTiles(op, std::move(attributes), {}, {inner}));
  };
  add_source("iota", {{"axis", 1}, {"shape", Integers({8, 9})}});
  add_source("constant", {{"value", 0.3}, {"shape", Integers({8, 9})}});
  for (const char* op : {"equal", "less", "greater", "max", "min", "sub"}) {
    const TensorType pair = {DType::kF64, {2}};
    checks.push_back(Whole(ops, op, {}, {pair, pair}));
    checks.back().planted = {{0, 0, 1}, {1, 0, 1 + 0x1p-40}, {0, 1, 1 + 0x1p-40}, {1, 1, 1}};
    checks.back().tolerance = 0;
  }
  return checks;
}

inline std::vector<KernelCheck> AllKernelChecks(const KernelRegistry& registry) {
  const graph::OpRegistry ops = graph::BuiltinOps();
  std::vector<KernelCheck> checks;
  AddOpCases(ops, registry, &checks);
  AddLargeCases(ops, &checks);
  AddLongRowCases(ops, &checks);
  AddSpecialValueCases(ops, &checks);
  AddTileCases(&checks);
  std::vector<KernelCheck> doubles = DoubleCases(ops, checks);
  AddHalfCases(ops, &checks);
  AddHalfTypeCases(ops, &checks);
  AddTypeCases(ops, &checks);
  std::move(doubles.begin(), doubles.end(), std::back_inserter(checks));
  return checks;
}

// Largest difference of a result from `expected`.
inline double AllowedDifference(DType dtype, double tolerance, double expected) {
  if (tolerance == 0 || !IsFloat(dtype)) return 0;
  if (dtype == DType::kBF16) tolerance = 1e-2;
  if (dtype == DType::kF16) tolerance = 2e-3;
  if (dtype == DType::kF64) tolerance *= 0x1p-29;
  return tolerance * std::max(1.0, std::abs(expected));
}

// ---- Running a case.

class KernelCheckRun {
 public:
  KernelCheckRun(const KernelCheck& check, const KernelRegistry& registry, Device& device)
      : check_(check), def_(*registry.Find(check.spec.op)), device_(device) {
    for (size_t i = 0; i < check.spec.inputs.size(); ++i) {
      inputs_.push_back(Draw(i, /*plants=*/true));
      expected_inputs_.push_back(Draw(i, !check.is_planted_unseen));
    }
  }

  void Run() {
    const std::vector<Tensor> expected = Expected();
    const std::vector<Tensor> actual = Actual(/*aliased=*/-1);
    for (size_t r = 0; r < expected.size(); ++r) Compare(expected[r], actual[r], r);
    if (::testing::Test::HasFailure()) return;
    {
      SCOPED_TRACE("tensors begin one element behind a multiple of 16 bytes");
      const std::vector<Tensor> shifted = Actual(-1, /*is_shifted=*/true);
      for (size_t r = 0; r < expected.size(); ++r) Compare(expected[r], shifted[r], r);
      if (::testing::Test::HasFailure()) return;
    }
    if (!check_.spec.accumulate) {
      const std::vector<Tensor> again = Actual(-1);
      for (size_t r = 0; r < expected.size(); ++r) ExpectSameBits(actual[r], again[r], r);
    }
    for (size_t i = 0; def_.can_alias != nullptr && i < inputs_.size(); ++i) {
      if (!def_.can_alias(check_.spec, static_cast<int>(i))) continue;
      SCOPED_TRACE("operand " + std::to_string(i) + " aliased");
      const std::vector<Tensor> aliased = Actual(static_cast<int>(i));
      for (size_t r = 0; r < expected.size(); ++r) ExpectSameBits(actual[r], aliased[r], r);
    }
  }

 private:
  static constexpr size_t kGuardBytes = 64;
  static constexpr int64_t kTimeoutNs = 60'000'000'000;

  Tensor Draw(size_t i, bool plants) const {
    const TileDesc& tile = check_.spec.inputs[i];
    Tensor tensor(TensorType{tile.dtype, tile.shape});
    const auto [low, high] = check_.ranges[i];
    for (int64_t at = 0; at < tensor.num_elements(); ++at) {
      const RandomKey key{.seed = 17, .stream = static_cast<uint32_t>(i)};
      double value = low + (high - low) * RandomUniform(key, static_cast<uint64_t>(at));
      // Digits that an f32 does not hold.
      if (tile.dtype == DType::kF64) {
        const RandomKey rest{.seed = 18, .stream = static_cast<uint32_t>(i)};
        value += (high - low) * 0x1p-26 * RandomUniform(rest, static_cast<uint64_t>(at));
      }
      if (!IsFloat(tile.dtype)) value = std::floor(value);
      if (tile.dtype == DType::kBool) value = value >= 0 ? 1 : 0;
      SetElement(tensor, at, value);
    }
    for (const KernelCheck::Planted& planted : check_.planted) {
      if (plants && planted.input == i) SetElement(tensor, planted.element, planted.value);
    }
    return tensor;
  }

  struct Buffer {
    std::unique_ptr<Memory> memory;
    std::byte* data = nullptr;  // in the memory
    size_t num_bytes = 0;
  };

  // What the CPU makes of it.
  std::vector<Tensor> Expected() const {
    const KernelRegistry registry = kernels::CpuKernels();
    const KernelDef& def = *registry.Find(check_.spec.op);
    const std::unique_ptr<Device> cpu = CreateCpuDevice(1);
    Buffer workspace;
    return RunOn(def, *cpu, expected_inputs_, -1, false, &workspace);
  }
  std::vector<Tensor> Actual(int aliased, bool is_shifted = false) {
    return RunOn(def_, device_, inputs_, aliased, is_shifted, &workspace_);
  }

  // Memory of `num_bytes` and a guard behind it, `shift` bytes behind a multiple of 128. Without
  // `bytes` full of garbage.
  static Buffer MakeBuffer(Device& device, Stream& stream, Event& event, size_t num_bytes,
                           const void* bytes, size_t shift) {
    auto memory = *device.Allocate(num_bytes + kGuardBytes + 128 + shift, MemoryKind::kDevice);
    const size_t missing = -reinterpret_cast<uintptr_t>(memory->data()) % 128;
    std::byte* const data = memory->data() + missing + shift;
    Buffer buffer = {std::move(memory), data, num_bytes};
    const std::vector<unsigned char> garbage(bytes == nullptr ? size_t{1} << 16 : 0, 0x7f);
    const std::vector<unsigned char> guard(kGuardBytes, 0x5a);
    if (bytes != nullptr) stream.Copy(data, bytes, num_bytes, CopyKind::kHostToDevice);
    for (size_t at = 0; bytes == nullptr && at < num_bytes; at += garbage.size()) {
      stream.Copy(data + at, garbage.data(), std::min(garbage.size(), num_bytes - at),
                  CopyKind::kHostToDevice);
    }
    stream.Copy(data + num_bytes, guard.data(), kGuardBytes, CopyKind::kHostToDevice);
    EXPECT_EQ(WaitUntilDone(stream, event, kTimeoutNs), absl::OkStatus());
    return buffer;
  }

  static void ReadBuffer(const Buffer& buffer, Stream& stream, Event& event, void* bytes) {
    stream.Copy(bytes, buffer.data, buffer.num_bytes, CopyKind::kDeviceToHost);
    CheckGuard(buffer, stream, event);
  }
  static void CheckGuard(const Buffer& buffer, Stream& stream, Event& event) {
    std::vector<unsigned char> guard(kGuardBytes);
    stream.Copy(guard.data(), buffer.data + buffer.num_bytes, kGuardBytes, CopyKind::kDeviceToHost);
    EXPECT_EQ(WaitUntilDone(stream, event, kTimeoutNs), absl::OkStatus());
    for (size_t i = 0; i < kGuardBytes; ++i) {
      EXPECT_EQ(guard[i], 0x5a) << "written behind the end, at " << i;
    }
  }

  // `workspace`: made by the first run; later ones have what that leaves in it.
  std::vector<Tensor> RunOn(const KernelDef& def, Device& device,
                            const std::vector<Tensor>& operands, int aliased, bool is_shifted,
                            Buffer* workspace) const {
    const KernelSpec& spec = check_.spec;
    const std::unique_ptr<Event> event = device.CreateEvent();
    const size_t workspace_bytes = def.workspace_bytes ? def.workspace_bytes(spec, 1) : 0;
    std::vector<Buffer> inputs;
    std::vector<Buffer> outputs;
    std::vector<Tensor> results;
    absl::StatusOr<std::unique_ptr<Kernel>> kernel;
    const std::unique_ptr<Stream> stream = device.CreateStream();
    for (const Tensor& input : operands) {
      inputs.push_back(MakeBuffer(device, *stream, *event, input.num_bytes(), input.data(),
                                  is_shifted ? ByteSize(input.dtype()) : 0));
    }
    for (const TileDesc& tile : spec.outputs) {
      outputs.push_back(MakeBuffer(device, *stream, *event, tile.num_bytes(), nullptr,
                                   is_shifted ? ByteSize(tile.dtype) : 0));
      results.emplace_back(TensorType{tile.dtype, tile.shape});
    }
    // At no more than the alignment that a plan promises.
    if (workspace->memory == nullptr) {
      *workspace = MakeBuffer(device, *stream, *event, workspace_bytes, nullptr, 64);
    }
    kernel = def.create(spec, device, *stream);
    EXPECT_TRUE(kernel.ok()) << kernel.status();
    if (!kernel.ok()) return results;
    std::vector<void*> in;
    std::vector<void*> out;
    for (const Buffer& buffer : inputs) in.push_back(buffer.data);
    for (const Buffer& buffer : outputs) out.push_back(buffer.data);
    if (aliased >= 0) out[0] = in[aliased];
    for (const int64_t microbatch : check_.microbatches) {
      KernelArgs args;
      args.inputs = in;
      args.outputs = out;
      args.workspace = workspace->data;
      args.seed = 7;
      args.step = 3;
      args.microbatch = microbatch;
      args.stream = stream.get();
      args.launch = 5;
      EXPECT_EQ((*kernel)->Run(args), absl::OkStatus());
    }
    EXPECT_EQ(WaitUntilDone(*stream, *event, kTimeoutNs), absl::OkStatus());
    for (size_t r = 0; r < outputs.size(); ++r) {
      const bool is_operand = r == 0 && aliased >= 0;
      ReadBuffer(is_operand ? inputs[aliased] : outputs[r], *stream, *event, results[r].data());
    }
    CheckGuard(*workspace, *stream, *event);
    return results;
  }

  void Compare(const Tensor& expected, const Tensor& actual, size_t result) const {
    for (int64_t i = 0; i < expected.num_elements(); ++i) {
      const double e = GetElement(expected, i);
      const double a = GetElement(actual, i);
      if (std::isnan(e) ? std::isnan(a) : e == a) continue;
      ASSERT_LE(std::abs(a - e), AllowedDifference(expected.dtype(), check_.tolerance, e))
          << "result " << result << ", element " << i << ": " << a << " instead of " << e;
    }
  }

  static void ExpectSameBits(const Tensor& a, const Tensor& b, size_t result) {
    EXPECT_EQ(std::memcmp(a.data(), b.data(), a.num_bytes()), 0) << "result " << result;
  }

  const KernelCheck& check_;
  const KernelDef& def_;
  Device& device_;
  std::vector<Tensor> inputs_;
  std::vector<Tensor> expected_inputs_;  // of the CPU
  Buffer workspace_;                     // of the device
};

}  // namespace penstock::testing

#endif  // PENSTOCK_TESTS_SUPPORT_KERNEL_CHECKS_H_
