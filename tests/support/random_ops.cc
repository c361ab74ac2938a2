#include "tests/support/random_ops.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/types/span.h"

#include "tests/support/op_cases.h"
#include "tests/support/tested_plugin.h"

namespace penstock::testing {

using graph::Attributes;
using graph::AttrValue;
using graph::kNoValue;
using graph::ValueId;

void MakeReshard(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Float(1);
  g.Emit(g.Op(op, {x}, {}, g.Bound(x)));
}

namespace {

Attributes Axes(absl::Span<const int64_t> axes) { return {{"axes", AttrValue::Ints(axes)}}; }

Shape Leading(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

void MakeUnary(RandomGraphBuilder& g, std::string_view op) {
  const bool has_integers = op == "neg" || op == "abs" || op == "relu";
  const ValueId x = has_integers && g.TakesIntegers()
                        ? g.Integer({g.IntegerType(), g.RandomShape(0, 3)})
                        : g.Float();
  g.Emit(g.Op(op, {x}, {}, std::max(g.Bound(x), 1.0)));
}

void MakeGelu(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Float();
  const Attributes attributes = {{"approximate", g.random().Chance(0.5) ? "tanh" : "none"}};
  if (op == "gelu") {
    g.Emit(g.Op(op, {x}, attributes, g.Bound(x)));
  } else {
    const ValueId dy = g.Float(g.ShapeOf(x));
    g.Emit(g.Op(op, {x, dy}, attributes, 2 * g.Bound(dy)));
  }
}

void MakeExp(RandomGraphBuilder& g, std::string_view op) {
  ValueId x = g.Float();
  if (g.Bound(x) > 4) x = g.Op("tanh", {x}, {}, 1);
  g.Emit(g.Op(op, {x}, {}, std::exp(g.Bound(x))));
}

void MakeOfPositive(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Positive(g.Float());
  g.Emit(g.Op(op, {x}, {}, std::max(g.Bound(x), 2.0)));
}

void MakeBinary(RandomGraphBuilder& g, std::string_view op) {
  if (g.TakesIntegers()) {
    const TensorType type = {g.IntegerType(), g.RandomShape(0, 3)};
    const ValueId x = g.Integer(type);
    const ValueId y = g.Integer(type);
    const double bound = op == "mul" ? g.Bound(x) * g.Bound(y) : g.Bound(x) + g.Bound(y);
    g.Emit(g.Op(op, {x, y}, {}, bound));
    return;
  }
  ValueId x = g.Float();
  ValueId y = g.random().Chance(0.2) ? g.FreshFloat({}) : g.Float(g.ShapeOf(x));
  if (op == "div") y = g.Positive(y);
  const bool is_first = op == "div" || g.random().Chance(0.7);
  const double bound = op == "mul"   ? g.Bound(x) * g.Bound(y)
                       : op == "div" ? 2 * g.Bound(x)
                                     : g.Bound(x) + g.Bound(y);
  g.Emit(g.Op(op, is_first ? Values{x, y} : Values{y, x}, {}, bound));
}

void MakeComparison(RandomGraphBuilder& g, std::string_view op) {
  if (g.random().Chance(0.3)) {
    const Shape shape = g.RandomShape(0, 3);
    const DType dtype = g.IntegerType();
    const bool is_bool = g.random().Chance(0.2);
    const ValueId x = is_bool ? g.Bool(shape) : g.Integer({dtype, shape});
    const ValueId y = is_bool ? g.Bool(shape) : g.Integer({dtype, shape});
    g.Emit(g.Op(op, {x, y}, {}, 1));
    return;
  }
  // Against draws that nothing else knows: no ties that rounding could turn.
  const ValueId x = g.Float();
  g.Emit(g.Op(op, {x, g.Input(g.Type(x), {})}, {}, 1));
}

void MakeWhere(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any();
  const ValueId y = g.AnyLike(x, g.random().Chance(0.3) ? Shape{} : g.ShapeOf(x));
  const ValueId condition = g.Bool(g.random().Chance(0.15) ? Shape{} : g.ShapeOf(x));
  const bool is_first = g.random().Chance(0.5);
  g.Emit(g.Op(op, is_first ? Values{condition, x, y} : Values{condition, y, x}, {},
              std::max(g.Bound(x), g.Bound(y))));
}

void MakeCast(RandomGraphBuilder& g, std::string_view op) {
  switch (g.random().Below(5)) {
    case 0:
      g.Emit(g.Op(op, {g.Bool(g.RandomShape(0, 3))}, {{"dtype", g.dtype()}}, 1));
      return;
    case 1: {
      const ValueId x = g.Integer({g.IntegerType(), g.RandomShape(0, 3)});
      g.Emit(g.Op(op, {x}, {{"dtype", g.dtype()}}, g.Bound(x)));
      return;
    }
    case 2: {
      const ValueId x = g.Integer({g.IntegerType(), g.RandomShape(0, 3)});
      const DType to = g.random().Chance(0.2) ? DType::kBool : g.IntegerType();
      g.Emit(g.Op(op, {x}, {{"dtype", to}}, g.Bound(x)));
      return;
    }
    case 3:
      // Of draws that nothing else knows: no rounding decides which integer it is. Of those that an
      // integer cannot hold, the nearest.
      g.Emit(g.Op(op, {g.Input({g.dtype(), g.RandomShape(0, 3)}, {-300, 300})},
                  {{"dtype", g.IntegerType()}}, 300));
      return;
    default: {
      const ValueId x = g.Float();
      const ValueId narrow = g.Op(op, {x}, {{"dtype", DType::kF32}}, g.Bound(x));
      g.Emit(g.Op(op, {narrow}, {{"dtype", g.dtype()}}, g.Bound(x)));
    }
  }
}

void MakeBias(RandomGraphBuilder& g, std::string_view op) {
  const bool is_integer = op == "bias_add" && g.TakesIntegers();
  const ValueId x = is_integer ? g.Integer({g.IntegerType(), g.RandomShape(1, 3)}) : g.Float(1);
  const Shape shape = g.ShapeOf(x);
  const size_t rank = op == "bias_add" ? g.random().Between(1, shape.size()) : 1;
  const ValueId b = g.AnyLike(x, Shape(shape.end() - rank, shape.end()));
  const double bound = g.Bound(x) + g.Bound(b);
  const Attributes attributes = {{"approximate", g.random().Chance(0.5) ? "tanh" : "none"}};
  if (op == "bias_add") {
    g.Emit(g.Op(op, {x, b}, {}, bound));
  } else if (op == "bias_gelu") {
    g.Emit(g.Op(op, {x, b}, attributes, bound));
  } else {
    const ValueId dy = g.Float(g.ShapeOf(x));
    g.Emit(g.Op(op, {x, b, dy}, attributes, 2 * g.Bound(dy)));
  }
}

// Another shape of as many elements: dimensions merged, split or dealt anew.
Shape Reshaped(Random& random, const Shape& shape) {
  Shape result;
  if (!shape.empty() && random.Chance(0.7)) {
    for (size_t i = 0; i < shape.size(); ++i) {
      const int64_t parts = random.Between(2, 4);
      if (!result.empty() && random.Chance(0.4)) {
        result.back() *= shape[i];
      } else if (shape[i] % parts == 0 && random.Chance(0.5)) {
        result.push_back(shape[i] / parts);
        result.push_back(parts);
      } else {
        result.push_back(shape[i]);
      }
    }
  } else {
    result.assign(random.Between(1, 3), 1);
    int64_t rest = NumElements(shape);
    for (int64_t prime : {2, 3, 5, 7}) {
      for (; rest > 0 && rest % prime == 0; rest /= prime)
        result[random.Below(result.size())] *= prime;
    }
    result.back() *= rest;
  }
  if (result.size() < 5 && random.Chance(0.2)) {
    result.insert(result.begin() + random.Below(result.size() + 1), 1);
  }
  return result;
}

void MakeReshape(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any();
  g.Emit(
      g.Op(op, {x}, {{"shape", AttrValue::Ints(Reshaped(g.random(), g.ShapeOf(x)))}}, g.Bound(x)));
}

void MakeTranspose(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any(g.random().Chance(0.9) ? 2 : 0);
  std::vector<int64_t> permutation;
  for (int i = 0; i < g.Rank(x); ++i) permutation.push_back(i);
  g.random().Shuffle(permutation);
  g.Emit(g.Op(op, {x}, {{"permutation", AttrValue::Ints(permutation)}}, g.Bound(x)));
}

void MakeBroadcast(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any(0, 3);
  Shape shape = g.ShapeOf(x);
  std::vector<int64_t> axes;
  for (int i = 0; i < g.Rank(x); ++i) axes.push_back(i);
  for (int64_t added = g.random().Between(1, 2); added > 0; --added) {
    const int64_t at = g.random().Below(shape.size() + 1);
    const int64_t dim = g.Dim();
    if (NumElements(shape) * dim > kMaxElements) continue;
    shape.insert(shape.begin() + at, dim);
    for (int64_t& axis : axes) axis += axis >= at ? 1 : 0;
  }
  g.Emit(g.Op(op, {x}, {{"shape", AttrValue::Ints(shape)}, {"axes", AttrValue::Ints(axes)}},
              g.Bound(x)));
}

void MakeSlice(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any(1);
  Shape start;
  Shape limit;
  Shape stride;
  for (int64_t dim : g.ShapeOf(x)) {
    const bool is_whole = g.random().Chance(0.5);
    start.push_back(is_whole ? 0 : g.random().Below(dim));
    limit.push_back(is_whole ? dim : g.random().Between(start.back() + 1, dim));
    stride.push_back(is_whole || g.random().Chance(0.6) ? 1 : g.random().Between(1, 3));
  }
  Attributes attributes = {{"start", AttrValue::Ints(start)}, {"limit", AttrValue::Ints(limit)}};
  if (g.random().Chance(0.5)) {
    attributes.Set("stride", AttrValue::Ints(stride));
  }
  g.Emit(g.Op(op, {x}, std::move(attributes), g.Bound(x)));
}

void MakeConcat(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any(1, 4);
  const int64_t axis = g.random().Below(g.Rank(x));
  Values operands = {x};
  double bound = g.Bound(x);
  for (int64_t more = g.random().Between(1, 2); more > 0; --more) {
    Shape shape = g.ShapeOf(x);
    if (g.random().Chance(0.4)) shape[axis] = g.Dim();
    operands.push_back(g.AnyLike(x, shape));
    bound = std::max(bound, g.Bound(operands.back()));
  }
  g.Emit(g.Op(op, operands, {{"axis", axis}}, bound));
}

void MakePad(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any();
  Shape low;
  Shape high;
  for (int i = 0; i < g.Rank(x); ++i) {
    const bool is_kept = g.random().Chance(0.5);
    low.push_back(is_kept ? 0 : g.random().Below(3));
    high.push_back(is_kept ? 0 : g.random().Below(3));
  }
  g.Emit(
      g.Op(op, {x}, {{"low", AttrValue::Ints(low)}, {"high", AttrValue::Ints(high)}}, g.Bound(x)));
}

void MakeSplit(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any(1);
  const int64_t axis = g.random().Below(g.Rank(x));
  const int64_t dim = g.ShapeOf(x)[axis];
  int64_t parts = g.random().Between(1, 4);
  while (dim % parts != 0) --parts;
  for (ValueId part : g.Ops(op, {x}, {{"axis", axis}, {"parts", parts}}, g.Bound(x))) {
    if (part != kNoValue) g.Emit(part);
  }
}

void MakeDynamicSlice(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Any(1);
  Shape sizes;
  for (int64_t dim : g.ShapeOf(x)) {
    sizes.push_back(g.random().Chance(0.5) ? dim : g.random().Between(1, dim));
  }
  const ValueId start = g.Input({DType::kI64, {g.Rank(x)}}, {-2, 9});
  if (op == "dynamic_slice") {
    g.Emit(g.Op(op, {x, start}, {{"sizes", AttrValue::Ints(sizes)}}, g.Bound(x)));
  } else {
    const ValueId update = g.AnyLike(x, sizes);
    g.Emit(g.Op(op, {x, update, start}, {}, std::max(g.Bound(x), g.Bound(update))));
  }
}

void MakeMatmul(RandomGraphBuilder& g, std::string_view op) {
  const ValueId a =
      g.TakesIntegers() ? g.Integer({g.IntegerType(), g.RandomShape(2, 4)}) : g.Float(2, 4);
  const bool ta = g.random().Chance(0.3);
  const bool tb = g.random().Chance(0.3);
  Shape shape = g.ShapeOf(a);
  const size_t rank = shape.size();
  const int64_t k = ta ? shape[rank - 2] : shape[rank - 1];
  const int64_t n = g.Dim();
  if (rank > 2 && g.random().Chance(0.5)) shape = {0, 0};
  shape[shape.size() - 2] = tb ? n : k;
  shape[shape.size() - 1] = tb ? k : n;
  const ValueId b = g.AnyLike(a, shape);
  Attributes attributes;
  if (ta) attributes.Set("transpose_a", true);
  if (tb) attributes.Set("transpose_b", true);
  g.Emit(g.Op(op, {a, b}, std::move(attributes), static_cast<double>(k) * g.Bound(a) * g.Bound(b)));
}

void MakeEinsum(RandomGraphBuilder& g, std::string_view op) {
  static constexpr std::string_view kEquations[] = {
      "ij->ji",      "ij->i",         "ijk->",     "i,j->ij",    "ab,ab->b",
      "abc,cd->abd", "bmk,bkn->bmn",  "ab,bc->ca", "abc,ac->ab", "bshd,bthd->bhst",
      "bsm,bsn->mn", "abcd,cde->abe", "ij,j->",    "abc->cb",    "ab,ca->bc",
  };
  const std::string equation(kEquations[g.random().Below(std::size(kEquations))]);
  const DType dtype = g.TakesIntegers() ? g.IntegerType() : g.dtype();
  std::map<char, int64_t> extents;
  Values operands;
  double bound = 1;
  const std::string_view all(equation);
  const std::string_view left = all.substr(0, all.find("->"));
  for (size_t begin = 0; begin <= left.size();) {
    const size_t end = std::min(left.find(',', begin), left.size());
    Shape shape;
    for (char index : left.substr(begin, end - begin)) {
      if (!extents.contains(index)) extents[index] = g.Dim() > 6 ? 4 : g.Dim();
      shape.push_back(extents[index]);
    }
    operands.push_back(dtype == g.dtype() ? g.Float(shape) : g.Integer({dtype, shape}));
    bound *= g.Bound(operands.back());
    begin = end + 1;
  }
  for (const auto& [index, extent] : extents) bound *= static_cast<double>(extent);
  g.Emit(g.Op(op, operands, {{"equation", equation}}, bound));
}

// Products with what follows them.
void MakeEpilogue(RandomGraphBuilder& g, std::string_view op) {
  const ValueId a = g.Float(2, 3);
  const Shape shape = g.ShapeOf(a);
  const bool has_batch = shape.size() == 3;
  const int64_t k = shape.back();
  const int64_t n = g.Dim();
  const std::string x = has_batch ? "bmk" : "mk";
  const std::string y = has_batch ? "bmn" : "mn";
  const bool is_transposed = g.random().Chance(0.3);
  const ValueId w = g.Float(is_transposed ? Shape{n, k} : Shape{k, n});
  const Attributes equation = {{"equation", x + (is_transposed ? ",nk->" : ",kn->") + y}};
  double bound = static_cast<double>(k) * g.Bound(a) * g.Bound(w);
  Shape of_third = {n};
  Shape of_product = Leading(shape);
  of_product.push_back(n);
  if (op == "einsum_gelu_grad") of_third = of_product;
  const bool adds_whole = op == "einsum_bias" && g.random().Chance(0.5);
  if (adds_whole && g.random().Chance(0.5)) of_third = of_product;
  Values operands = {a, w, g.Float(of_third)};
  if (adds_whole && of_third != of_product) operands.push_back(g.Float(of_product));
  bound = op == "einsum_gelu_grad" ? 2 * bound : bound + g.Bound(operands[2]);
  if (operands.size() > 3) bound += g.Bound(operands[3]);
  g.Emit(g.Op(op, operands, equation, bound));
}

std::vector<int64_t> RandomAxes(Random& random, int rank) {
  std::vector<int64_t> axes;
  for (int i = 0; i < rank; ++i) {
    if (random.Chance(0.5)) axes.push_back(random.Chance(0.3) ? i - rank : i);
  }
  if (axes.empty() && rank > 0) axes.push_back(random.Below(rank));
  return axes;
}

void MakeReduce(RandomGraphBuilder& g, std::string_view op) {
  const bool is_integer = op != "reduce_mean" && g.TakesIntegers();
  const ValueId x = is_integer ? g.Integer({g.IntegerType(), g.RandomShape(1, 3)}) : g.Float(1);
  Attributes attributes = Axes(RandomAxes(g.random(), g.Rank(x)));
  if (g.random().Chance(0.3)) attributes.Set("keepdims", true);
  const double count = op == "reduce_sum" ? static_cast<double>(g.Type(x).num_elements()) : 1;
  g.Emit(g.Op(op, {x}, std::move(attributes), count * g.Bound(x)));
}

void MakeSumSquares(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Float();
  g.Emit(
      g.Op(op, {x}, {}, static_cast<double>(g.Type(x).num_elements()) * g.Bound(x) * g.Bound(x)));
}

void MakeSumExp(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Float(1);
  const ValueId m = g.Op("reduce_max", {x}, Axes({-1}), g.Bound(x));
  g.Emit(g.Op(op, {x, m}, {}, static_cast<double>(g.ShapeOf(x).back())));
}

void MakePick(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x =
      g.TakesIntegers() ? g.Integer({g.IntegerType(), g.RandomShape(1, 3)}) : g.Float(1);
  if (g.ShapeOf(x).back() == 0) return;  // no index is in range
  g.Emit(g.Op(op, {x, g.Indices(Leading(g.ShapeOf(x)), g.ShapeOf(x).back())}, {}, g.Bound(x)));
}

void MakeSoftmax(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Float(1);
  Attributes axis = {{"axis", g.random().Between(-1, g.Rank(x) - 1)}};
  const ValueId y = g.Op("softmax", {x}, axis, 1);
  g.Emit(y);
  if (op == "softmax") return;
  const ValueId dy = g.Float(g.ShapeOf(x));
  g.Emit(g.Op(op, {y, dy}, axis, 2 * g.Bound(dy)));
}

void MakeNorm(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Float(1);
  const Shape features = {g.ShapeOf(x).back()};
  const ValueId scale = g.Float(features);
  const bool is_layer = op.starts_with("layer");
  const bool is_gradient = op.ends_with("grad");
  // Rows that are nearly constant make much of rounding where epsilon is small.
  const bool is_small = g.dtype() == DType::kF64 && g.random().Chance(0.3);
  const Attributes epsilon = {{"epsilon", is_small ? 1e-5 : 0.1}};
  Values operands = {x, scale};
  double bound = 4 * g.Bound(scale);
  if (is_layer) {
    operands.push_back(g.Float(features));
    bound += g.Bound(operands.back());
  }
  const int num_results = is_gradient || g.random().Chance(0.3) ? (is_layer ? 3 : 2) : 1;
  const Values results =
      g.Ops(is_layer ? "layer_norm" : "rms_norm", operands, epsilon, bound, num_results);
  g.Emit(results[0]);
  if (!is_gradient) return;
  const ValueId dy = g.Float(g.ShapeOf(x));
  Values saved(results.begin() + 1, results.begin() + num_results);
  Values inputs = {dy, x};
  if (!op.ends_with("weight_grad")) inputs.push_back(scale);
  inputs.insert(inputs.end(), saved.begin(), saved.end());
  if (!op.ends_with("weight_grad") && g.random().Chance(0.5)) {
    inputs.push_back(g.Float(g.ShapeOf(x)));
  }
  for (ValueId result : g.Ops(op, inputs, {}, 1e3)) {
    if (result != kNoValue) g.Emit(result);
  }
}

void MakeBatchNorm(RandomGraphBuilder& g, std::string_view op) {
  ValueId x = g.Float(2, 4);
  if (g.Bound(x) > 4) x = g.Op("tanh", {x}, {}, 1);
  const Shape channels = {g.ShapeOf(x)[1]};
  const ValueId scale = g.Op("tanh", {g.Float(channels)}, {}, 1);
  const ValueId bias = g.Op("tanh", {g.Float(channels)}, {}, 1);
  // As for MakeNorm.
  const bool is_small = g.dtype() == DType::kF64 && g.random().Chance(0.3);
  const Attributes epsilon = {{"epsilon", is_small ? 1e-5 : 0.1}};
  if (op == "batch_norm_inference") {
    const ValueId mean = g.Op("tanh", {g.Float(channels)}, {}, 1);
    const ValueId variance = g.Positive(g.Op("tanh", {g.Float(channels)}, {}, 1));
    g.Emit(g.Op(op, {x, scale, bias, mean, variance}, epsilon, 10));
    return;
  }
  const int num_results = g.random().Chance(0.3) ? 3 : 1;
  g.Emit(g.Ops(op, {x, scale, bias}, epsilon, 20, num_results)[0]);
}

void MakeEmbedding(RandomGraphBuilder& g, std::string_view op) {
  if (op == "embedding") {
    const ValueId table =
        g.TakesIntegers() ? g.Integer({g.IntegerType(), g.RandomShape(2, 2)}) : g.Float(2, 2);
    if (g.ShapeOf(table)[0] == 0) return;  // no index is in range
    g.Emit(
        g.Op(op, {table, g.Indices(g.RandomShape(0, 2), g.ShapeOf(table)[0])}, {}, g.Bound(table)));
    return;
  }
  const ValueId dy = g.Float(1, 3);
  const int64_t rows = g.Dim();
  g.Emit(g.Op(op, {dy, g.Indices(Leading(g.ShapeOf(dy)), rows)}, {{"rows", rows}},
              static_cast<double>(g.Type(dy).num_elements()) * g.Bound(dy)));
}

void MakeAttention(RandomGraphBuilder& g, std::string_view op) {
  ValueId q = g.Float(4, 4);
  Shape keys = g.ShapeOf(q);
  if (g.random().Chance(0.5)) {
    // Several heads of queries share one of the keys.
    Shape queries = keys;
    queries[1] *= g.random().Between(2, 3);
    q = g.Float(queries);
  }
  const bool is_causal = g.random().Chance(0.5);
  if (g.random().Chance(0.5)) keys[2] += is_causal ? g.random().Below(3) : 1;
  const ValueId k = g.Float(keys);
  const ValueId v = g.Float(keys);
  Attributes causal = {{"causal", is_causal}};
  const bool is_gradient = op == "attention_grad";
  if (op == "attention_parts") {
    causal.Set("parts", g.random().Between(1, 4));
    const Values parts = g.Ops(op, {q, k, v}, causal, g.Bound(v) + 4, 2);
    g.Emit(parts[0]);
    // The log-sum-exp of a part that a query does not see is -inf: told as its exponential.
    if (g.random().Chance(0.5)) g.Emit(g.Op("exp", {parts[1]}, {}, 1e3));
    return;
  }
  const Values results = g.Ops("attention", {q, k, v}, causal, g.Bound(v) + 4,
                               is_gradient || g.random().Chance(0.3) ? 2 : 1);
  g.Emit(results[0]);
  if (!is_gradient) return;
  const ValueId dy = g.Float(g.ShapeOf(q));
  for (ValueId gradient :
       g.Ops(op, {q, k, v, results[0], results[1], dy}, causal, 100 * g.Bound(dy))) {
    if (gradient != kNoValue) g.Emit(gradient);
  }
}

// Steps of ring attention: the first one, and one more that goes on with its result.
void MakeBlockAttention(RandomGraphBuilder& g, std::string_view op) {
  const bool is_causal = g.random().Chance(0.5);
  const int64_t parts = g.random().Between(1, 4);
  const int64_t block = g.random().Between(1, 3);
  const int64_t queries = is_causal ? block : g.random().Between(1, 3);
  const int64_t batch = g.random().Between(1, 3);
  const int64_t heads = g.random().Between(1, 3);
  const int64_t width = g.random().Between(1, 4);
  const int64_t group = g.random().Between(1, 2);
  const ValueId q = g.Float({batch, parts * queries, group * heads, width});
  ValueId kv = g.Float({batch, parts * block, 2, heads, width});
  Attributes attributes = {{"block", block}, {"causal", is_causal}};
  Values results = g.Ops("block_attention", {q, kv}, attributes, g.Bound(kv) + 4);
  const int64_t shift = g.random().Between(0, parts - 1);
  if (g.random().Chance(0.7)) {
    attributes.Set("shift", shift);
    kv = g.Op("roll", {kv}, {{"axis", 1}, {"shift", shift * block}}, g.Bound(kv));
    results = g.Ops("block_attention", {q, kv, results[0], results[1]}, attributes,
                    g.Bound(results[0]) + g.Bound(kv));
  }
  g.Emit(results[0]);
  if (op != "block_attention_grad") return;
  const ValueId dy = g.Float(g.ShapeOf(q));
  for (ValueId gradient :
       g.Ops(op, {q, kv, results[0], results[1], dy}, attributes, 100 * g.Bound(dy))) {
    if (gradient != kNoValue) g.Emit(gradient);
  }
}

// Rolls an axis by any distance, also by more than its extent or backwards.
void MakeRoll(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Float(1, 4);
  const int64_t axis = g.random().Below(g.Rank(x));
  const int64_t extent = g.ShapeOf(x)[axis];
  g.Emit(g.Op(op, {x}, {{"axis", axis}, {"shift", g.random().Between(-extent, 2 * extent)}},
              g.Bound(x)));
}

void MakeQkvAttention(RandomGraphBuilder& g, std::string_view op) {
  Shape shape = g.RandomShape(2, 2);
  shape.insert(shape.end(), {3, g.random().Between(1, 4), g.random().Between(1, 4)});
  const ValueId qkv = g.Float(shape);
  const Attributes causal = {{"causal", g.random().Chance(0.5)}};
  const bool is_gradient = op == "qkv_attention_grad";
  const Values results = g.Ops("qkv_attention", {qkv}, causal, g.Bound(qkv) + 4,
                               is_gradient || g.random().Chance(0.3) ? 2 : 1);
  g.Emit(results[0]);
  if (!is_gradient) return;
  const ValueId dy = g.Float(g.ShapeOf(results[0]));
  g.Emit(g.Op(op, {qkv, results[0], results[1], dy}, causal, 100 * g.Bound(dy)));
}

void MakeCachedAttention(RandomGraphBuilder& g, std::string_view op) {
  if (g.random().Chance(0.5)) {
    // Several heads of queries share one of the keys.
    const ValueId k = g.Float(4, 4);
    const Shape keys = g.ShapeOf(k);
    Shape queries = keys;
    queries[2] *= g.random().Between(1, 3);
    const ValueId q = g.Float(queries);
    const ValueId v = g.Float(keys);
    const int64_t rows = g.random().Between(1, 6);
    const ValueId cache = g.Float({keys[0], rows, 2, keys[2], keys[3]});
    const ValueId start = g.Indices({keys[0]}, rows + 1);
    const double bound = std::max({g.Bound(k), g.Bound(v), g.Bound(cache)});
    for (const ValueId result : g.Ops(op, {q, cache, start, k, v}, {}, bound + 4, 2)) {
      g.Emit(result);
    }
    return;
  }
  Shape shape = g.RandomShape(2, 2);
  shape.insert(shape.end(), {3, g.random().Between(1, 4), g.random().Between(1, 4)});
  const ValueId qkv = g.Float(shape);
  const int64_t rows = g.random().Between(1, 6);
  const ValueId cache = g.Float({shape[0], rows, 2, shape[3], shape[4]});
  const ValueId start = g.Indices({shape[0]}, rows + 1);
  const double bound = std::max(g.Bound(qkv), g.Bound(cache));
  for (const ValueId result : g.Ops(op, {qkv, cache, start}, {}, bound + 4, 2)) g.Emit(result);
}

void MakeRotary(RandomGraphBuilder& g, std::string_view op) {
  Shape shape = g.RandomShape(2, 3);
  shape.push_back(2 * g.random().Between(1, 3));
  const ValueId x = g.Float(shape);
  std::vector<ValueId> operands = {x};
  if (g.random().Chance(0.5)) operands.push_back(g.Indices({shape[0]}, 20));
  g.Emit(g.Op(op, operands,
              {{"base", g.random().Chance(0.5) ? 1e4 : 7.5}, {"inverse", g.random().Chance(0.3)}},
              2 * g.Bound(x)));
}

void MakeCrossEntropy(RandomGraphBuilder& g, std::string_view op) {
  const ValueId logits = g.Float(1, 4);
  if (g.ShapeOf(logits).back() == 0) return;  // no label is in range
  const ValueId labels = g.Indices(Leading(g.ShapeOf(logits)), g.ShapeOf(logits).back());
  const bool is_gradient = op == "cross_entropy_grad";
  const Values results = g.Ops("cross_entropy", {logits, labels}, {}, 2 * g.Bound(logits) + 3,
                               is_gradient || g.random().Chance(0.3) ? 3 : 1);
  g.Emit(results[0]);
  if (!is_gradient) return;
  const ValueId dloss = g.Float(g.ShapeOf(results[0]));
  g.Emit(g.Op(op, {logits, labels, results[1], results[2], dloss}, {}, 2 * g.Bound(dloss)));
}

// Of draws that nothing else knows: no ties that rounding could turn.
void MakeTopK(RandomGraphBuilder& g, std::string_view op) {
  const TensorType type = {g.dtype(), g.RandomShape(1, 3)};
  const ValueId x = g.random().Chance(0.3) ? g.Input(type, {}) : g.Parameter(type);
  const Attributes k = {{"k", g.random().Between(1, type.shape.back())}};
  for (ValueId result : g.Ops(op, {x}, k, g.Bound(x))) {
    if (result != kNoValue) g.Emit(result);
  }
}

void MakeExpertSlots(RandomGraphBuilder& g, std::string_view op) {
  const int64_t experts = g.random().Between(1, 5);
  const ValueId choices = g.Indices(g.RandomShape(2, 4), experts);
  const int64_t capacity = g.random().Between(1, 5);
  for (ValueId result : g.Ops(op, {choices}, {{"experts", experts}, {"capacity", capacity}}, 25,
                              g.random().Chance(0.5) ? 2 : 1)) {
    if (result != kNoValue) g.Emit(result);
  }
}

void MakeRouting(RandomGraphBuilder& g, std::string_view op) {
  Shape slots = g.RandomShape(2, 3);
  const int64_t k = std::min<int64_t>(slots.back(), 3);
  slots.back() = k;
  const Shape groups(slots.begin(), slots.end() - 2);
  const int64_t width = g.Dim();
  Shape tokens = Leading(slots);
  tokens.push_back(width);
  const int64_t experts = g.random().Between(1, 5);
  const int64_t capacity = g.random().Between(1, 4);
  Shape places = groups;
  places.insert(places.begin(), experts);
  places.insert(places.end(), {capacity, width});
  const DType dtype = g.random().Chance(0.5) ? DType::kI64 : DType::kI8;
  const ValueId to = g.Input({dtype, slots}, {-1, static_cast<double>(experts * capacity)});
  if (op == "combine_weight_grad") {
    const ValueId x = g.Float(tokens);
    const ValueId y = g.Float(places);
    g.Emit(g.Op(op, {x, y, to}, {}, static_cast<double>(width) * g.Bound(x) * g.Bound(y)));
    return;
  }
  const bool is_dispatch = op == "dispatch";
  Values operands = {g.Float(is_dispatch ? tokens : places), to};
  // Tokens may share a place.
  const int64_t most = is_dispatch ? tokens[tokens.size() - 2] * k : k;
  double bound = static_cast<double>(most) * g.Bound(operands[0]);
  if (g.random().Chance(0.5)) {
    operands.push_back(g.Float(slots));
    bound *= g.Bound(operands[2]);
  }
  Attributes attributes;
  if (is_dispatch) attributes = {{"experts", experts}, {"capacity", capacity}};
  g.Emit(g.Op(op, operands, std::move(attributes), bound));
}

void MakeDropout(RandomGraphBuilder& g, std::string_view op) {
  const ValueId x = g.Float();
  g.Emit(g.Op(op, {x}, {{"rate", 0.3}, {"stream", g.NewStream()}}, 2 * g.Bound(x)));
}

void MakeRandomNumbers(RandomGraphBuilder& g, std::string_view op) {
  g.Emit(g.Op(op, {},
              {{"shape", AttrValue::Ints(g.RandomShape(0, 3))},
               {"stream", g.NewStream()},
               {"dtype", g.dtype()}},
              6));
}

void MakeIota(RandomGraphBuilder& g, std::string_view op) {
  const Shape shape = g.RandomShape(1, 3);
  const bool is_float = g.random().Chance(0.5);
  g.Emit(g.Op(op, {},
              {{"axis", g.random().Below(shape.size())},
               {"shape", AttrValue::Ints(shape)},
               {"dtype", is_float ? g.dtype() : g.IntegerType()}},
              12));
}

void MakeConstant(RandomGraphBuilder& g, std::string_view op) {
  if (g.TakesIntegers()) {
    g.Emit(g.Op(op, {},
                {{"value", g.random().Below(100)},
                 {"shape", AttrValue::Ints(g.RandomShape(0, 3))},
                 {"dtype", g.IntegerType()}},
                100));
    return;
  }
  g.Emit(g.Op(op, {},
              {{"value", 2 * g.random().Unit() - 1},
               {"shape", AttrValue::Ints(g.RandomShape(0, 3))},
               {"dtype", g.dtype()}},
              1));
}

void MakeInput(RandomGraphBuilder& g, std::string_view) {
  g.Emit(g.Input({g.dtype(), g.RandomShape(0, 4)}, {}));
}

void MakeParameter(RandomGraphBuilder& g, std::string_view) {
  g.Emit(g.Parameter({g.dtype(), g.RandomShape(0, 3)}));
}

// A state that is read, and takes a value of this step for the next one.
void MakeState(RandomGraphBuilder& g, std::string_view) {
  const ValueId value =
      g.TakesIntegers() ? g.Integer({g.IntegerType(), g.RandomShape(0, 3)}) : g.Float(0, 4);
  const ValueId state = g.State(g.Type(value));
  if (!g.ok()) return;
  g.Assign(state, value);
  const double bound = g.Bound(value) + g.Bound(state) + kMaxBound;
  g.Emit(g.Op("add", {state, g.AnyLike(state, g.ShapeOf(state))}, {}, bound));
}

// Of gradients; a negative one says that they are of no use.
ValueId MakeScale(RandomGraphBuilder& g) { return g.Scalar(g.random().Chance(0.1) ? -1.0 : 0.7); }

void MakeAdamw(RandomGraphBuilder& g, std::string_view op) {
  const ValueId w = g.Float(0, 3);
  const Shape shape = g.ShapeOf(w);
  const ValueId grad = g.Float(shape);
  const ValueId m = g.Float(shape);
  const ValueId v = g.Positive(g.Float(shape));
  const ValueId step = g.Input({DType::kI64, {}}, {1, 9});
  for (ValueId result : g.Ops(op, {w, grad, m, v, step, g.Scalar(0.1), MakeScale(g)},
                              {{"beta1", 0.8}, {"beta2", 0.9}, {"weight_decay", 0.1}}, 500)) {
    if (result != kNoValue) g.Emit(result);
  }
}

void MakeSgd(RandomGraphBuilder& g, std::string_view op) {
  const ValueId w = g.Float(0, 3);
  Values operands = {w, g.Float(g.ShapeOf(w)), g.Scalar(0.1), MakeScale(g)};
  Attributes attributes = {{"weight_decay", 0.1}};
  if (g.random().Chance(0.5)) {
    operands.push_back(g.Float(g.ShapeOf(w)));
    attributes.Set("momentum", 0.8);
    attributes.Set("nesterov", g.random().Chance(0.5));
  }
  for (ValueId result : g.Ops(op, operands, std::move(attributes), 100)) {
    if (result != kNoValue) g.Emit(result);
  }
}

constexpr Maker kMakers[] = {
    {"add", MakeBinary},
    {"sub", MakeBinary},
    {"mul", MakeBinary},
    {"div", MakeBinary},
    {"max", MakeBinary},
    {"min", MakeBinary},
    {"equal", MakeComparison},
    {"less", MakeComparison},
    {"greater", MakeComparison},
    {"where", MakeWhere},
    {"neg", MakeUnary},
    {"abs", MakeUnary},
    {"exp", MakeExp},
    {"log", MakeOfPositive},
    {"tanh", MakeUnary},
    {"sqrt", MakeOfPositive},
    {"rsqrt", MakeOfPositive},
    {"sin", MakeUnary},
    {"cos", MakeUnary},
    {"relu", MakeUnary},
    {"silu", MakeUnary},
    {"sigmoid", MakeUnary},
    {"gelu", MakeGelu},
    {"gelu_grad", MakeGelu},
    {"cast", MakeCast},
    {"bias_add", MakeBias},
    {"bias_gelu", MakeBias},
    {"bias_gelu_grad", MakeBias},
    {"reshape", MakeReshape},
    {"transpose", MakeTranspose},
    {"broadcast", MakeBroadcast},
    {"slice", MakeSlice},
    {"concat", MakeConcat},
    {"pad", MakePad},
    {"roll", MakeRoll},
    {"split", MakeSplit},
    {"dynamic_slice", MakeDynamicSlice},
    {"dynamic_update_slice", MakeDynamicSlice},
    {"matmul", MakeMatmul},
    {"matmul", MakeMatmul},  // twice: few programs are of integers
    {"einsum", MakeEinsum},
    {"einsum_bias", MakeEpilogue},
    {"einsum_bias_gelu", MakeEpilogue},
    {"einsum_gelu_grad", MakeEpilogue},
    {"reduce_sum", MakeReduce},
    {"reduce_mean", MakeReduce},
    {"reduce_max", MakeReduce},
    {"sum_squares", MakeSumSquares},
    {"sum_exp", MakeSumExp},
    {"pick", MakePick},
    {"softmax", MakeSoftmax},
    {"softmax_grad", MakeSoftmax},
    {"layer_norm", MakeNorm},
    {"layer_norm_grad", MakeNorm},
    {"layer_norm_weight_grad", MakeNorm},
    {"rms_norm", MakeNorm},
    {"rms_norm_grad", MakeNorm},
    {"rms_norm_weight_grad", MakeNorm},
    {"batch_norm", MakeBatchNorm},
    {"batch_norm_inference", MakeBatchNorm},
    {"embedding", MakeEmbedding},
    {"embedding_grad", MakeEmbedding},
    {"attention", MakeAttention},
    {"attention_grad", MakeAttention},
    {"attention_parts", MakeAttention},
    {"block_attention", MakeBlockAttention},
    {"block_attention_grad", MakeBlockAttention},
    {"rotary", MakeRotary},
    {"qkv_attention", MakeQkvAttention},
    {"qkv_attention_grad", MakeQkvAttention},
    {"cached_attention", MakeCachedAttention},
    {"cross_entropy", MakeCrossEntropy},
    {"cross_entropy_grad", MakeCrossEntropy},
    {"top_k", MakeTopK},
    {"expert_slots", MakeExpertSlots},
    {"dispatch", MakeRouting},
    {"combine", MakeRouting},
    {"combine_weight_grad", MakeRouting},
    {"dropout", MakeDropout},
    {"random_uniform", MakeRandomNumbers},
    {"random_normal", MakeRandomNumbers},
    {"iota", MakeIota},
    {"constant", MakeConstant},
    {"input", MakeInput},
    {"parameter", MakeParameter},
    {"state", MakeState},
    {"assign", MakeState},
    {"adamw", MakeAdamw},
    {"sgd", MakeSgd},
    {"reshard", MakeReshard},
};

// An operator that has no maker of its own, on the shapes of one of its test cases.
void MakeOfTestCase(RandomGraphBuilder& g, std::string_view op) {
  std::vector<OpCase> cases = OpCases();
  std::erase_if(cases, [op](const OpCase& test) { return test.op != op; });
  const OpCase& test = cases[g.random().Below(cases.size())];
  Values operands;
  for (const OperandCase& operand : test.operands) {
    operands.push_back(g.Op("tanh", {g.Float(operand.type.shape)}, {}, 1.0));
  }
  g.Emit(g.Op(op, operands, test.attributes, kMaxBound));
}

}  // namespace

std::vector<Maker> Makers(const graph::OpRegistry& ops) {
  std::set<std::string> others;
  for (const OpCase& test : OpCases()) others.insert(test.op);
  for (const OpCase& test : OpCases()) {
    for (const OperandCase& operand : test.operands) {
      if (operand.type.dtype != DType::kF64 || operand.low >= 0) others.erase(test.op);
    }
  }
  std::vector<Maker> makers(std::begin(kMakers), std::end(kMakers));
  for (const Maker& maker : kMakers) others.erase(std::string(maker.op));
  for (std::string_view name : ops.Names()) {
    if (others.contains(std::string(name))) makers.push_back({name, MakeOfTestCase});
  }
  return makers;
}

const Maker& FavouriteMaker(const std::vector<Maker>& makers, uint64_t seed) {
  // Operators of a plug-in have no maker of their own here.
  const size_t first = HasPluginUnderTest() ? std::size(kMakers) : 0;
  return makers[first + seed % (makers.size() - first)];
}

ValueId MakeLoss(RandomGraphBuilder& g) {
  Values sources;
  for (ValueId value : g.floats()) {
    if (!g.IsBlocked(value)) sources.push_back(value);
  }
  if (sources.empty()) return kNoValue;
  ValueId loss = kNoValue;
  for (int64_t terms = g.random().Between(1, 3); terms > 0; --terms) {
    // The latest values depend on most of the graph.
    const ValueId x = g.random().Chance(0.6) ? sources.back() : g.random().Pick(sources);
    std::vector<int64_t> axes;
    for (int i = 0; i < g.Rank(x); ++i) axes.push_back(i);
    ValueId term = g.random().Chance(0.3) ? g.Op("mul", {x, x}, {}, g.Bound(x) * g.Bound(x)) : x;
    term = g.Op(g.random().Chance(0.5) ? "reduce_sum" : "reduce_mean", {term}, Axes(axes), 1);
    loss = loss == kNoValue ? term : g.Op("add", {loss, term}, {}, 1);
  }
  return loss;
}

}  // namespace penstock::testing
