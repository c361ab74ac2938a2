#include "tests/support/random_graph.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include <xxhash.h>

#include "base/random.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/builder.h"
#include "graph/gradients.h"
#include "graph/training.h"
#include "planner/sharding/select_mesh.h"
#include "tests/support/op_cases.h"

namespace penstock::testing {
namespace {

using graph::Attributes;
using graph::AttrValue;
using graph::AxisRef;
using graph::Graph;
using graph::kNoNode;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::Sharding;
using graph::ValueId;

using Values = std::vector<ValueId>;

constexpr int64_t kMaxElements = 1500;
constexpr double kMaxBound = 24;  // of values that other operators read

constexpr DType kIntegers[] = {DType::kI8, DType::kU8, DType::kI32, DType::kI64};

// Elements of an integer input: all that an 8-bit type has, so that sums wrap; of wider ones small
// numbers or, where `is_wide`, nearly all.
InputRange IntegerRange(DType dtype, bool is_wide) {
  switch (dtype) {
    case DType::kI8:
      return {-128, 128};
    case DType::kU8:
      return {0, 256};
    case DType::kI32:
      return is_wide ? InputRange{-0x1p31, 0x1p31} : InputRange{-9, 9};
    default:
      return is_wide ? InputRange{-0x1p62, 0x1p62} : InputRange{-9, 9};
  }
}

// The largest magnitude that a type has.
double LargestOf(DType dtype) {
  return ByteSize(dtype) == 1 ? 0x1p8 : ByteSize(dtype) == 4 ? 0x1p31 : 0x1p63;
}

// ------------------------------------------------------------------------------------ operators

// Grows a graph node by node. A value has a bound on its magnitude, so that what is made stays
// finite, and is blocked if the loss cannot be differentiated through it.
class Grower {
 public:
  Grower(const graph::OpRegistry& ops, Random& random, RandomCase& result, int64_t batch,
         DType dtype)
      : random_(random), case_(result), builder_(ops, result.graph), batch_(batch), dtype_(dtype) {}

  Random& random() { return random_; }
  DType dtype() const { return dtype_; }
  const absl::Status& status() const { return builder_.status(); }
  TensorType Type(ValueId value) const { return builder_.type(value); }
  Shape ShapeOf(ValueId value) const { return builder_.type(value).shape; }
  int Rank(ValueId value) const { return static_cast<int>(builder_.type(value).shape.size()); }
  double Bound(ValueId value) const { return bounds_.at(value); }
  bool IsBlocked(ValueId value) const { return blocked_.contains(value); }
  const Values& floats() const { return floats_; }
  const Values& others() const { return others_; }
  bool ok() const { return builder_.status().ok(); }

  int64_t Dim() {
    static constexpr int64_t kDims[] = {1, 2, 3, 4, 5, 6, 7, 8, 12};
    return kDims[random_.Below(9)];
  }

  Shape RandomShape(int min_rank, int max_rank) {
    Shape shape;
    const int64_t rank = random_.Between(min_rank, max_rank);
    for (int64_t i = 0; i < rank; ++i) {
      int64_t dim = i == 0 && random_.Chance(0.7) ? batch_ : Dim();
      while (NumElements(shape) * dim > kMaxElements / 4) dim = (dim + 1) / 2;
      shape.push_back(dim);
    }
    return shape;
  }

  // --- Operands ---

  ValueId Input(const TensorType& type, const InputRange& range) {
    const ValueId value = builder_.Declare("input", StrCat("x", ++num_leaves_), type);
    if (value == kNoValue) return value;
    case_.inputs[builder_.graph().value(value).name] = range;
    bounds_[value] = std::max(std::abs(range.low), std::abs(range.high));
    return value;
  }

  ValueId Parameter(const TensorType& type) {
    const ValueId value =
        builder_.Declare("parameter", StrCat("w", ++num_leaves_), type,
                         {{"init", "normal"}, {"std", 0.6}, {"stream", ++num_streams_}});
    if (value != kNoValue) bounds_[value] = 2.5;
    return value;
  }

  ValueId State(const TensorType& type) {
    const ValueId value = builder_.Declare("state", StrCat("s", ++num_leaves_), type,
                                           {{"init", random_.Chance(0.5) ? "ones" : "zeros"}});
    if (value != kNoValue) bounds_[value] = 1;
    return value;
  }

  ValueId FreshFloat(const Shape& shape) {
    const TensorType type = {dtype_, shape};
    const double draw = random_.Unit();
    if (draw < 0.45) return Input(type, {});
    if (draw < 0.9) return Parameter(type);
    if (draw < 0.95) {
      const ValueId constant = builder_.Constant(random_.Unit() + 0.25, type);
      if (constant != kNoValue) bounds_[constant] = 1.25;
      return constant;
    }
    return Op(random_.Chance(0.5) ? "random_uniform" : "random_normal", {},
              {{"shape", AttrValue::Ints(shape)}, {"stream", NewStream()}, {"dtype", dtype_}}, 6);
  }

  // A float of the shape: an existing one, where there is one.
  ValueId Float(const Shape& shape) {
    Values fitting;
    for (ValueId value : floats_) {
      if (ShapeOf(value) == shape) fitting.push_back(value);
    }
    if (fitting.empty() || random_.Chance(0.3)) return FreshFloat(shape);
    return random_.Pick(fitting);
  }

  ValueId Float(int min_rank = 0, int max_rank = 5) {
    Values fitting;
    for (ValueId value : floats_) {
      if (Rank(value) >= min_rank && Rank(value) <= max_rank) fitting.push_back(value);
    }
    if (fitting.empty() || random_.Chance(0.2)) return FreshFloat(RandomShape(min_rank, max_rank));
    return random_.Pick(fitting);
  }

  // Indices in [0, limit).
  ValueId Indices(const Shape& shape, int64_t limit) {
    const DType dtype = limit <= 127 ? IntegerType() : DType::kI32;
    return Input({dtype, shape}, {0, static_cast<double>(limit)});
  }

  DType IntegerType() { return kIntegers[random_.Below(std::size(kIntegers))]; }

  // An integer of the shape and dtype.
  ValueId Integer(const TensorType& type) {
    for (ValueId value : others_) {
      if (Type(value) == type && random_.Chance(0.6)) return value;
    }
    return Input(type, IntegerRange(type.dtype, random_.Chance(0.25)));
  }

  // Whether an operator that takes integers is given some.
  bool TakesIntegers() { return random_.Chance(0.15); }

  // For operators that only move elements: any type.
  ValueId Any(int min_rank = 0, int max_rank = 5) {
    if (random_.Chance(0.8)) return Float(min_rank, max_rank);
    Values fitting;
    for (ValueId value : others_) {
      if (Rank(value) >= min_rank && Rank(value) <= max_rank) fitting.push_back(value);
    }
    if (!fitting.empty() && random_.Chance(0.6)) return random_.Pick(fitting);
    const Shape shape = RandomShape(min_rank, std::min(max_rank, 4));
    return random_.Chance(0.25) ? Bool(shape) : Integer({IntegerType(), shape});
  }

  // Of the shape, and the dtype of `like`.
  ValueId AnyLike(ValueId like, const Shape& shape) {
    const DType dtype = Type(like).dtype;
    if (dtype == dtype_) return Float(shape);
    return dtype == DType::kBool ? Bool(shape) : Integer({dtype, shape});
  }

  ValueId Bool(const Shape& shape) {
    for (ValueId value : others_) {
      if (Type(value) == TensorType{DType::kBool, shape} && random_.Chance(0.6)) return value;
    }
    return Input({DType::kBool, shape}, {});
  }

  // |x| + 0.5.
  ValueId Positive(ValueId x) {
    const ValueId magnitude = Op("abs", {x}, {}, Bound(x));
    return Op("add", {magnitude, Scalar(0.5)}, {}, Bound(x) + 0.5);
  }

  ValueId Scalar(double value) {
    const ValueId constant = builder_.Constant(value, {dtype_, {}});
    if (constant != kNoValue) bounds_[constant] = std::abs(value);
    return constant;
  }

  int64_t NewStream() { return ++num_streams_; }

  // --- Nodes ---

  Values Ops(std::string_view op, const Values& operands, Attributes attributes, double bound,
             int num_results = -1) {
    Values results = builder_.AddMulti(op, operands, std::move(attributes), "", num_results);
    const graph::Op* found = builder_.ops().Find(op);
    bool blocked = found != nullptr && !found->is_differentiable() && !operands.empty();
    for (ValueId operand : operands) blocked = blocked || IsBlocked(operand);
    for (ValueId result : results) {
      const DType dtype = Type(result).dtype;
      // What leaves the range of an integer type may come back anywhere in it.
      const bool may_wrap =
          dtype == DType::kU8 || (IsInteger(dtype) && bound >= LargestOf(dtype) / 2);
      bounds_[result] = may_wrap ? LargestOf(dtype) : bound;
      if (blocked) blocked_.insert(result);
    }
    // What the builder refused is reported by ok(); makers that go on need some value.
    if (results.empty()) results.assign(16, kNoValue);
    return results;
  }

  ValueId Op(std::string_view op, const Values& operands, Attributes attributes, double bound) {
    return Ops(op, operands, std::move(attributes), bound)[0];
  }

  void Assign(ValueId state, ValueId value) { builder_.AddMulti("assign", {state, value}); }

  // Offers a value to later operators, scaled down if it has grown.
  void Emit(ValueId value) {
    if (!ok() || Type(value).num_elements() > kMaxElements) return;
    if (Type(value).dtype != dtype_) {
      others_.push_back(value);
      return;
    }
    if (Bound(value) > kMaxBound) {
      value = random_.Chance(0.2) ? Op("tanh", {value}, {}, 1)
                                  : Op("mul", {value, Scalar(4 / Bound(value))}, {}, 4);
      if (!ok()) return;
    }
    floats_.push_back(value);
  }

 private:
  Random& random_;
  RandomCase& case_;
  graph::GraphBuilder builder_;
  const int64_t batch_;
  const DType dtype_;
  int64_t num_leaves_ = 0;
  int64_t num_streams_ = 0;
  absl::flat_hash_map<ValueId, double> bounds_;
  std::set<ValueId> blocked_;
  Values floats_;
  Values others_;
};

struct Maker {
  std::string_view op;
  void (*make)(Grower& g, std::string_view op);
};

Attributes Axes(absl::Span<const int64_t> axes) { return {{"axes", AttrValue::Ints(axes)}}; }

Shape Leading(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

void MakeUnary(Grower& g, std::string_view op) {
  const bool has_integers = op == "neg" || op == "abs" || op == "relu";
  const ValueId x = has_integers && g.TakesIntegers()
                        ? g.Integer({g.IntegerType(), g.RandomShape(0, 3)})
                        : g.Float();
  g.Emit(g.Op(op, {x}, {}, std::max(g.Bound(x), 1.0)));
}

void MakeGelu(Grower& g, std::string_view op) {
  const ValueId x = g.Float();
  const Attributes attributes = {{"approximate", g.random().Chance(0.5) ? "tanh" : "none"}};
  if (op == "gelu") {
    g.Emit(g.Op(op, {x}, attributes, g.Bound(x)));
  } else {
    const ValueId dy = g.Float(g.ShapeOf(x));
    g.Emit(g.Op(op, {x, dy}, attributes, 2 * g.Bound(dy)));
  }
}

void MakeExp(Grower& g, std::string_view op) {
  ValueId x = g.Float();
  if (g.Bound(x) > 4) x = g.Op("tanh", {x}, {}, 1);
  g.Emit(g.Op(op, {x}, {}, std::exp(g.Bound(x))));
}

void MakeOfPositive(Grower& g, std::string_view op) {
  const ValueId x = g.Positive(g.Float());
  g.Emit(g.Op(op, {x}, {}, std::max(g.Bound(x), 2.0)));
}

void MakeBinary(Grower& g, std::string_view op) {
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

void MakeComparison(Grower& g, std::string_view op) {
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

void MakeWhere(Grower& g, std::string_view op) {
  const ValueId x = g.Any();
  const ValueId y = g.AnyLike(x, g.random().Chance(0.3) ? Shape{} : g.ShapeOf(x));
  const ValueId condition = g.Bool(g.random().Chance(0.15) ? Shape{} : g.ShapeOf(x));
  const bool is_first = g.random().Chance(0.5);
  g.Emit(g.Op(op, is_first ? Values{condition, x, y} : Values{condition, y, x}, {},
              std::max(g.Bound(x), g.Bound(y))));
}

void MakeCast(Grower& g, std::string_view op) {
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

void MakeBias(Grower& g, std::string_view op) {
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
      for (; rest % prime == 0; rest /= prime) result[random.Below(result.size())] *= prime;
    }
    result.back() *= rest;
  }
  if (result.size() < 5 && random.Chance(0.2)) {
    result.insert(result.begin() + random.Below(result.size() + 1), 1);
  }
  return result;
}

void MakeReshape(Grower& g, std::string_view op) {
  const ValueId x = g.Any();
  g.Emit(
      g.Op(op, {x}, {{"shape", AttrValue::Ints(Reshaped(g.random(), g.ShapeOf(x)))}}, g.Bound(x)));
}

void MakeTranspose(Grower& g, std::string_view op) {
  const ValueId x = g.Any(g.random().Chance(0.9) ? 2 : 0);
  std::vector<int64_t> permutation;
  for (int i = 0; i < g.Rank(x); ++i) permutation.push_back(i);
  g.random().Shuffle(permutation);
  g.Emit(g.Op(op, {x}, {{"permutation", AttrValue::Ints(permutation)}}, g.Bound(x)));
}

void MakeBroadcast(Grower& g, std::string_view op) {
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

void MakeSlice(Grower& g, std::string_view op) {
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

void MakeConcat(Grower& g, std::string_view op) {
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

void MakePad(Grower& g, std::string_view op) {
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

void MakeSplit(Grower& g, std::string_view op) {
  const ValueId x = g.Any(1);
  const int64_t axis = g.random().Below(g.Rank(x));
  const int64_t dim = g.ShapeOf(x)[axis];
  int64_t parts = g.random().Between(1, 4);
  while (dim % parts != 0) --parts;
  for (ValueId part : g.Ops(op, {x}, {{"axis", axis}, {"parts", parts}}, g.Bound(x))) {
    if (part != kNoValue) g.Emit(part);
  }
}

void MakeDynamicSlice(Grower& g, std::string_view op) {
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

void MakeMatmul(Grower& g, std::string_view op) {
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

void MakeEinsum(Grower& g, std::string_view op) {
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

std::vector<int64_t> RandomAxes(Random& random, int rank) {
  std::vector<int64_t> axes;
  for (int i = 0; i < rank; ++i) {
    if (random.Chance(0.5)) axes.push_back(random.Chance(0.3) ? i - rank : i);
  }
  if (axes.empty() && rank > 0) axes.push_back(random.Below(rank));
  return axes;
}

void MakeReduce(Grower& g, std::string_view op) {
  const bool is_integer = op != "reduce_mean" && g.TakesIntegers();
  const ValueId x = is_integer ? g.Integer({g.IntegerType(), g.RandomShape(1, 3)}) : g.Float(1);
  Attributes attributes = Axes(RandomAxes(g.random(), g.Rank(x)));
  if (g.random().Chance(0.3)) attributes.Set("keepdims", true);
  const double count = op == "reduce_sum" ? static_cast<double>(g.Type(x).num_elements()) : 1;
  g.Emit(g.Op(op, {x}, std::move(attributes), count * g.Bound(x)));
}

void MakeSumSquares(Grower& g, std::string_view op) {
  const ValueId x = g.Float();
  g.Emit(
      g.Op(op, {x}, {}, static_cast<double>(g.Type(x).num_elements()) * g.Bound(x) * g.Bound(x)));
}

void MakeSumExp(Grower& g, std::string_view op) {
  const ValueId x = g.Float(1);
  const ValueId m = g.Op("reduce_max", {x}, Axes({-1}), g.Bound(x));
  g.Emit(g.Op(op, {x, m}, {}, static_cast<double>(g.ShapeOf(x).back())));
}

void MakePick(Grower& g, std::string_view op) {
  const ValueId x =
      g.TakesIntegers() ? g.Integer({g.IntegerType(), g.RandomShape(1, 3)}) : g.Float(1);
  g.Emit(g.Op(op, {x, g.Indices(Leading(g.ShapeOf(x)), g.ShapeOf(x).back())}, {}, g.Bound(x)));
}

void MakeSoftmax(Grower& g, std::string_view op) {
  const ValueId x = g.Float(1);
  Attributes axis = {{"axis", g.random().Between(-1, g.Rank(x) - 1)}};
  const ValueId y = g.Op("softmax", {x}, axis, 1);
  g.Emit(y);
  if (op == "softmax") return;
  const ValueId dy = g.Float(g.ShapeOf(x));
  g.Emit(g.Op(op, {y, dy}, axis, 2 * g.Bound(dy)));
}

void MakeNorm(Grower& g, std::string_view op) {
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
  for (ValueId result : g.Ops(op, inputs, {}, 1e3)) {
    if (result != kNoValue) g.Emit(result);
  }
}

void MakeEmbedding(Grower& g, std::string_view op) {
  if (op == "embedding") {
    const ValueId table =
        g.TakesIntegers() ? g.Integer({g.IntegerType(), g.RandomShape(2, 2)}) : g.Float(2, 2);
    g.Emit(
        g.Op(op, {table, g.Indices(g.RandomShape(0, 2), g.ShapeOf(table)[0])}, {}, g.Bound(table)));
    return;
  }
  const ValueId dy = g.Float(1, 3);
  const int64_t rows = g.Dim();
  g.Emit(g.Op(op, {dy, g.Indices(Leading(g.ShapeOf(dy)), rows)}, {{"rows", rows}},
              static_cast<double>(g.Type(dy).num_elements()) * g.Bound(dy)));
}

void MakeAttention(Grower& g, std::string_view op) {
  const ValueId q = g.Float(4, 4);
  Shape keys = g.ShapeOf(q);
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
void MakeBlockAttention(Grower& g, std::string_view op) {
  const bool is_causal = g.random().Chance(0.5);
  const int64_t parts = g.random().Between(1, 4);
  const int64_t block = g.random().Between(1, 3);
  const int64_t queries = is_causal ? block : g.random().Between(1, 3);
  const int64_t batch = g.random().Between(1, 3);
  const int64_t heads = g.random().Between(1, 3);
  const int64_t width = g.random().Between(1, 4);
  const ValueId q = g.Float({batch, parts * queries, heads, width});
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
void MakeRoll(Grower& g, std::string_view op) {
  const ValueId x = g.Float(1, 4);
  const int64_t axis = g.random().Below(g.Rank(x));
  const int64_t extent = g.ShapeOf(x)[axis];
  g.Emit(g.Op(op, {x}, {{"axis", axis}, {"shift", g.random().Between(-extent, 2 * extent)}},
              g.Bound(x)));
}

void MakeQkvAttention(Grower& g, std::string_view op) {
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

void MakeCrossEntropy(Grower& g, std::string_view op) {
  const ValueId logits = g.Float(1, 4);
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
void MakeTopK(Grower& g, std::string_view op) {
  const TensorType type = {g.dtype(), g.RandomShape(1, 3)};
  const ValueId x = g.random().Chance(0.3) ? g.Input(type, {}) : g.Parameter(type);
  const Attributes k = {{"k", g.random().Between(1, type.shape.back())}};
  for (ValueId result : g.Ops(op, {x}, k, g.Bound(x))) {
    if (result != kNoValue) g.Emit(result);
  }
}

void MakeExpertSlots(Grower& g, std::string_view op) {
  const int64_t experts = g.random().Between(1, 5);
  const ValueId choices = g.Indices(g.RandomShape(2, 4), experts);
  const int64_t capacity = g.random().Between(1, 5);
  for (ValueId result : g.Ops(op, {choices}, {{"experts", experts}, {"capacity", capacity}}, 25,
                              g.random().Chance(0.5) ? 2 : 1)) {
    if (result != kNoValue) g.Emit(result);
  }
}

void MakeRouting(Grower& g, std::string_view op) {
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

void MakeDropout(Grower& g, std::string_view op) {
  const ValueId x = g.Float();
  g.Emit(g.Op(op, {x}, {{"rate", 0.3}, {"stream", g.NewStream()}}, 2 * g.Bound(x)));
}

void MakeRandomNumbers(Grower& g, std::string_view op) {
  g.Emit(g.Op(op, {},
              {{"shape", AttrValue::Ints(g.RandomShape(0, 3))},
               {"stream", g.NewStream()},
               {"dtype", g.dtype()}},
              6));
}

void MakeIota(Grower& g, std::string_view op) {
  const Shape shape = g.RandomShape(1, 3);
  const bool is_float = g.random().Chance(0.5);
  g.Emit(g.Op(op, {},
              {{"axis", g.random().Below(shape.size())},
               {"shape", AttrValue::Ints(shape)},
               {"dtype", is_float ? g.dtype() : g.IntegerType()}},
              12));
}

void MakeConstant(Grower& g, std::string_view op) {
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

void MakeInput(Grower& g, std::string_view) {
  g.Emit(g.Input({g.dtype(), g.RandomShape(0, 4)}, {}));
}

void MakeParameter(Grower& g, std::string_view) {
  g.Emit(g.Parameter({g.dtype(), g.RandomShape(0, 3)}));
}

// A state that is read, and takes a value of this step for the next one.
void MakeState(Grower& g, std::string_view) {
  const ValueId value =
      g.TakesIntegers() ? g.Integer({g.IntegerType(), g.RandomShape(0, 3)}) : g.Float(0, 4);
  const ValueId state = g.State(g.Type(value));
  if (!g.ok()) return;
  g.Assign(state, value);
  const double bound = g.Bound(value) + g.Bound(state) + kMaxBound;
  g.Emit(g.Op("add", {state, g.AnyLike(state, g.ShapeOf(state))}, {}, bound));
}

void MakeAdamw(Grower& g, std::string_view op) {
  const ValueId w = g.Float(0, 3);
  const Shape shape = g.ShapeOf(w);
  const ValueId grad = g.Float(shape);
  const ValueId m = g.Float(shape);
  const ValueId v = g.Positive(g.Float(shape));
  const ValueId step = g.Input({DType::kI64, {}}, {1, 9});
  for (ValueId result : g.Ops(op, {w, grad, m, v, step, g.Scalar(0.1), g.Scalar(0.7)},
                              {{"beta1", 0.8}, {"beta2", 0.9}, {"weight_decay", 0.1}}, 500)) {
    if (result != kNoValue) g.Emit(result);
  }
}

void MakeSgd(Grower& g, std::string_view op) {
  const ValueId w = g.Float(0, 3);
  Values operands = {w, g.Float(g.ShapeOf(w)), g.Scalar(0.1), g.Scalar(0.7)};
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

// Its sharding is chosen when the graph is annotated.
void MakeReshard(Grower& g, std::string_view op) {
  const ValueId x = g.Float(1);
  g.Emit(g.Op(op, {x}, {}, g.Bound(x)));
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
    {"einsum", MakeEinsum},
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
    {"embedding", MakeEmbedding},
    {"embedding_grad", MakeEmbedding},
    {"attention", MakeAttention},
    {"attention_grad", MakeAttention},
    {"attention_parts", MakeAttention},
    {"block_attention", MakeBlockAttention},
    {"block_attention_grad", MakeBlockAttention},
    {"qkv_attention", MakeQkvAttention},
    {"qkv_attention_grad", MakeQkvAttention},
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
void MakeOfTestCase(Grower& g, std::string_view op) {
  std::vector<OpCase> cases = OpCases();
  std::erase_if(cases, [op](const OpCase& test) { return test.op != op; });
  const OpCase& test = cases[g.random().Below(cases.size())];
  Values operands;
  for (const OperandCase& operand : test.operands) {
    operands.push_back(g.Op("tanh", {g.Float(operand.type.shape)}, {}, 1.0));
  }
  g.Emit(g.Op(op, operands, test.attributes, kMaxBound));
}

// kMakers, and one for every other operator whose test cases read floats of either sign.
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

// ------------------------------------------------------------------------- loss, gradients, update

// A scalar that depends on up to three values; kNoValue where none can be differentiated.
ValueId MakeLoss(Grower& g) {
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

absl::Status AddTraining(const graph::OpRegistry& ops, Random& random, ValueId loss,
                         RandomCase& result) {
  const std::vector<graph::Return> others = result.graph.returns();
  std::vector<std::string> names;
  for (const graph::Return& ret : others) names.push_back(result.graph.value(ret.value).name);
  ASSIGN_OR_RETURN(graph::Differentiated made, graph::Differentiate(ops, result.graph, loss));
  result.graph = std::move(made.graph);
  std::vector<graph::Return>& returns = result.graph.mutable_returns();
  returns = {{made.loss, {}}};
  for (ValueId gradient : made.gradients) returns.push_back({gradient, {}});
  for (const std::string& name : names) returns.push_back({result.graph.FindValue(name), {}});

  if (made.parameters.empty() || random.Chance(0.6)) return absl::OkStatus();
  graph::TrainingOptions options;
  options.optimizer = random.Chance(0.5) ? graph::Optimizer::kAdamW : graph::Optimizer::kSgd;
  options.momentum = random.Chance(0.5) ? 0.9 : 0.0;
  options.epsilon = 1e-2;  // gradients that are zero but for rounding stay without effect
  options.clip_norm = random.Chance(0.5) ? 1.0 : 0.0;
  options.learning_rate = 0.05;
  options.warmup_steps = random.Chance(0.3) ? 3 : 0;
  graph::GraphBuilder builder(ops, result.graph);
  const DType dtype = builder.type(made.loss).dtype;
  ValueId norm = kNoValue;
  RETURN_IF_ERROR(graph::AddOptimizer(builder, made.parameters, made.gradients, options, dtype,
                                      random.Chance(0.5) ? &norm : nullptr));
  if (norm != kNoValue) returns.push_back({norm, {}});
  return absl::OkStatus();
}

// ------------------------------------------------------------------------------------- annotation

// All axes and sub-axes that a sharding may name.
std::vector<AxisRef> Pieces(const Mesh& mesh) {
  std::vector<AxisRef> pieces;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    const int64_t size = mesh.axes[axis].size;
    if (mesh.axes[axis].is_temporal) {
      pieces.push_back(graph::WholeAxis(mesh, axis));
      continue;
    }
    for (int64_t pre = 1; pre < size; ++pre) {
      for (int64_t piece = 2; pre * piece <= size; ++piece) {
        if (size % (pre * piece) == 0) pieces.push_back({axis, pre, piece});
      }
    }
  }
  return pieces;
}

bool Fits(const AxisRef& axis, absl::Span<const AxisRef> used) {
  return std::none_of(used.begin(), used.end(), [&](const AxisRef& other) {
    return graph::Overlap(axis, other) || !graph::CanCoexist(axis, other);
  });
}

std::vector<AxisRef> UsedAxes(const Sharding& sharding) {
  std::vector<AxisRef> used = sharding.replicated;
  for (const graph::DimSharding& dim : sharding.dims) {
    used.insert(used.end(), dim.axes.begin(), dim.axes.end());
  }
  for (const graph::PartialSpec& partial : sharding.partials) {
    used.insert(used.end(), partial.axes.begin(), partial.axes.end());
  }
  return used;
}

// An unused whole axis, or now and then a piece of one.
std::optional<AxisRef> UnusedAxis(Random& random, const Mesh& mesh, const Sharding& sharding) {
  const std::vector<AxisRef> used = UsedAxes(sharding);
  const bool whole = random.Chance(0.75);
  std::vector<AxisRef> unused;
  for (const AxisRef& axis : Pieces(mesh)) {
    if (whole && axis.size != mesh.axes[axis.axis].size) continue;
    if (Fits(axis, used)) unused.push_back(axis);
  }
  if (unused.empty()) return std::nullopt;
  return random.Pick(unused);
}

// Leaves some dimensions open, gives priorities and keeps axes free.
void Loosen(Random& random, const Mesh& mesh, Sharding* sharding) {
  const bool has_priorities = random.Chance(0.15);
  for (graph::DimSharding& dim : sharding->dims) {
    dim.is_open = random.Chance(0.5);
    if (has_priorities && random.Chance(0.7)) dim.priority = static_cast<int>(random.Below(3));
  }
  if (!random.Chance(0.1)) return;
  const std::optional<AxisRef> axis = UnusedAxis(random, mesh, *sharding);
  if (axis) sharding->replicated.push_back(*axis);
}

void Annotate(Random& random, RandomCase& result) {
  Graph& graph = result.graph;
  const Mesh mesh = graph.meshes()[0];
  for (const Node& node : graph.nodes()) {
    const bool is_reshard = node.op->name() == "reshard";
    const bool is_leaf = node.op->has_declared_type();
    for (ValueId id : node.results) {
      if (!random.Chance(is_reshard ? 1 : is_leaf ? 0.5 : 0.12)) continue;
      graph::Value& value = graph.mutable_value(id);
      Sharding sharding = RandomSharding(random, mesh, value.type.shape);
      if (is_reshard) {
        const std::optional<Sharding>& from = graph.value(node.operands[0]).sharding;
        if (from && random.Chance(0.75)) {
          sharding = RearrangedSharding(random, mesh, value.type.shape, *from);
          sharding.replicated.clear();
        }
      } else {
        Loosen(random, mesh, &sharding);
      }
      const bool may_be_partial =
          value.type.dtype != DType::kBool && (is_reshard || node.op->name() == "input");
      if (may_be_partial && random.Chance(is_reshard ? 0.3 : 0.1)) {
        const auto reduction = static_cast<graph::Reduction>(random.Below(4));
        AddRandomPartial(random, mesh, reduction, /*allow_temporal=*/false, &sharding);
      }
      graph::Canonicalize(mesh, &sharding);
      value.sharding = std::move(sharding);
    }
  }
  for (graph::Return& ret : graph.mutable_returns()) {
    if (random.Chance(0.35)) {
      ret.sharding = RandomSharding(random, mesh, graph.value(ret.value).type.shape);
    }
  }
}

// Splits what optimizers work on over one more axis, in one of the ways that ZeRO does: the states,
// the gradients too (summed over devices once a micro-batch), the parameters too.
void SplitUpdates(Random& random, Graph& graph) {
  const Mesh mesh = graph.meshes()[0];
  const int64_t level = random.Between(1, 3);
  for (const Node& node : graph.nodes()) {
    if (node.op->name() != "adamw" && node.op->name() != "sgd") continue;
    const TensorType type = graph.value(node.operands[0]).type;
    const int rank = static_cast<int>(type.shape.size());
    if (rank == 0 || random.Chance(0.2)) continue;
    Sharding split = graph.value(node.operands[0]).sharding.value_or(Sharding::Open(rank));
    if (split.is_partial()) continue;
    const std::optional<AxisRef> axis = UnusedAxis(random, mesh, split);
    if (!axis || graph::IsTemporal(mesh, *axis)) continue;
    split.dims[random.Below(rank)].axes.push_back(*axis);
    if (random.Chance(0.7)) {
      for (graph::DimSharding& dim : split.dims) dim.priority = 1;
    }
    graph::Canonicalize(mesh, &split);
    if (!graph::CheckSharding(mesh, split, type.shape).ok()) continue;
    for (size_t o = 2; o < node.operands.size(); ++o) {
      graph::Value& state = graph.mutable_value(node.operands[o]);
      const bool is_state = graph.node(state.producer).op->name() == "state";
      if (is_state && state.type == type) state.sharding = split;
    }
    if (level == 3) {
      graph::Value& parameter = graph.mutable_value(node.operands[0]);
      parameter.sharding = split;
      if (graph.node(parameter.producer).op->name() == "parameter" && random.Chance(0.8)) {
        graph.mutable_node(parameter.producer).attributes.Set("per_use", true);
      }
    } else if (random.Chance(0.7)) {
      // The parameter stays whole.
      Sharding& whole =
          graph.mutable_value(node.operands[0])
              .sharding.emplace(
                  graph.value(node.operands[0]).sharding.value_or(Sharding::Open(rank)));
      whole.replicated.push_back(*axis);
      graph::Canonicalize(mesh, &whole);
    }
    if (level == 1) continue;
    for (int a = 0; a < static_cast<int>(mesh.axes.size()); ++a) {
      if (mesh.axes[a].is_temporal && mesh.axes[a].size > 1) {
        split.partials = {{graph::Reduction::kSum, {graph::WholeAxis(mesh, a)}}};
      }
    }
    if (graph::CheckSharding(mesh, split, type.shape).ok()) {
      graph.mutable_value(node.operands[1]).sharding = split;
    }
  }
}

// Marks forward nodes to be computed again in the backward pass, in segments and for all readers.
void MarkRandomSegments(Random& random, Graph& graph) {
  int64_t segment = random.Below(2);
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.op->has_declared_type() || node.phase != Phase::kForward) continue;
    if (random.Chance(0.2)) segment = random.Below(4);
    if (random.Chance(0.85)) node.attributes.Set("recompute", segment);
  }
}

// Marks what is to lie on the host: states and parameters, and what backward reads.
void MarkRandomOffload(Random& random, Graph& graph) {
  const double states = random.Unit();
  const double values = random.Unit();
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.op->name() == "state" || node.op->name() == "parameter") {
      if (random.Chance(states)) node.attributes.Set("memory", "host");
    } else if (!node.op->has_declared_type() && node.phase == Phase::kForward) {
      if (random.Chance(values)) node.attributes.Set("offload", int64_t{1});
    }
  }
}

// Cuts the forward nodes at random; everything else follows them: what is declared lies with its
// first reader, a backward node with its forward node, an update with its parameter.
void AssignRandomStages(Random& random, int num_stages, Graph& graph) {
  const std::vector<std::vector<NodeId>> users = graph.Users();
  std::vector<NodeId> forward;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (!node.op->has_declared_type() && node.phase == Phase::kForward) forward.push_back(id);
  }
  std::vector<int64_t> cuts;
  for (int i = 1; i < num_stages; ++i) cuts.push_back(random.Below(forward.size() + 1));
  std::sort(cuts.begin(), cuts.end());
  for (size_t i = 0; i < forward.size(); ++i) {
    const auto stage = std::upper_bound(cuts.begin(), cuts.end(), static_cast<int64_t>(i));
    graph.mutable_node(forward[i]).stage = static_cast<int>(stage - cuts.begin());
  }
  const auto stage_of = [&](ValueId value) {
    return graph.node(graph.value(value).producer).stage;
  };
  const auto settle_leaf = [&](NodeId id) {
    int first = num_stages;
    for (NodeId user : users[graph.node(id).results[0]]) {
      const int stage = graph.node(user).stage;
      if (stage >= 0) first = std::min(first, stage);
    }
    if (first < num_stages) graph.mutable_node(id).stage = first;
  };
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (graph.node(id).op->has_declared_type()) settle_leaf(id);
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.phase != Phase::kBackward && node.phase != Phase::kWeightBackward) continue;
    node.stage = node.forward == kNoNode ? num_stages - 1 : graph.node(node.forward).stage;
    for (ValueId operand : node.operands) {
      const Node& producer = graph.node(graph.value(operand).producer);
      const bool is_gradient =
          producer.phase == Phase::kBackward || producer.phase == Phase::kWeightBackward;
      if (is_gradient) node.stage = std::min(node.stage, producer.stage);
    }
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.op->name() == "sgd" || node.op->name() == "adamw") {
      if (node.stage < 0) node.stage = std::max(stage_of(node.operands[0]), 0);
    } else if (node.stage < 0 && !node.op->has_declared_type() && node.op->name() != "assign") {
      node.stage = static_cast<int>(random.Below(num_stages));
    }
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    if (node.op->has_declared_type() && node.stage < 0) settle_leaf(id);
    if (node.op->has_declared_type() && node.stage < 0) node.stage = 0;
    if (node.op->name() == "assign") node.stage = stage_of(node.operands[0]);
  }
}

// As many devices and the same micro-batches as `mesh`, in one axis or two.
Mesh WithOtherAxes(Random& random, const Mesh& mesh) {
  Mesh other = {"n", {}};
  for (const graph::MeshAxis& axis : mesh.axes) {
    if (axis.is_temporal) other.axes.push_back(axis);
  }
  const int64_t count = mesh.num_devices();
  int64_t major = 1;
  for (const int64_t divisor : {2, 3, 4}) {
    if (count % divisor == 0 && divisor < count && random.Chance(0.5)) major = divisor;
  }
  if (major > 1) other.axes.push_back({"u", major});
  other.axes.push_back({"v", count / major});
  return other;
}

// What stages 1, 3 and so on write of shardings is drawn anew, on a mesh of their own, if that has
// a mesh in common with the other.
void LayOddStagesOnAnotherMesh(Random& random, Graph& graph) {
  Graph laid = graph;
  const Mesh other = WithOtherAxes(random, graph.meshes()[0]);
  laid.mutable_meshes().push_back(other);
  const auto redraw = [&](ValueId value, std::optional<Sharding>* sharding) {
    if (laid.node(laid.value(value).producer).mesh == 0 || !sharding->has_value()) return;
    *sharding = RandomSharding(random, other, laid.value(value).type.shape);
  };
  for (NodeId id = 0; id < laid.num_nodes(); ++id) {
    laid.mutable_node(id).mesh = laid.node(id).stage % 2 == 1 ? 1 : 0;
  }
  for (ValueId value = 0; value < laid.num_values(); ++value) {
    redraw(value, &laid.mutable_value(value).sharding);
  }
  for (graph::Return& ret : laid.mutable_returns()) redraw(ret.value, &ret.sharding);
  Graph selected = laid;
  if (planner::SelectMesh(selected).ok()) graph = std::move(laid);
}

}  // namespace

Mesh RandomMesh(Random& random, int64_t max_devices, int64_t num_microbatches) {
  static constexpr std::string_view kNames[] = {"a", "b", "c"};
  static constexpr int64_t kSizes[] = {2, 2, 3, 4, 5, 6, 8};
  Mesh mesh;
  mesh.name = "m";
  const int64_t num_axes = random.Between(1, 3);
  while (static_cast<int64_t>(mesh.axes.size()) < num_axes) {
    std::vector<int64_t> fitting;
    for (int64_t size : kSizes) {
      if (mesh.num_devices() * size <= max_devices) fitting.push_back(size);
    }
    if (fitting.empty()) break;
    mesh.axes.push_back({std::string(kNames[mesh.axes.size()]), random.Pick(fitting)});
  }
  if (num_microbatches > 1) {
    mesh.axes.insert(mesh.axes.begin() + random.Below(mesh.axes.size() + 1),
                     {"mb", num_microbatches, /*is_temporal=*/true});
  }
  return mesh;
}

Sharding RandomSharding(Random& random, const Mesh& mesh, const Shape& shape) {
  Sharding sharding = Sharding::Replicated(static_cast<int>(shape.size()));
  for (size_t attempts = shape.size() + 1; attempts > 0 && !shape.empty(); --attempts) {
    if (random.Chance(0.35)) continue;
    const std::optional<AxisRef> axis = UnusedAxis(random, mesh, sharding);
    if (!axis) break;
    // The first dimension is the batch as often as not.
    const bool is_temporal = graph::IsTemporal(mesh, *axis);
    const int64_t d = is_temporal && random.Chance(0.7) ? 0 : random.Below(shape.size());
    Sharding longer = sharding;
    std::vector<AxisRef>& axes = longer.dims[d].axes;
    axes.insert(is_temporal && random.Chance(0.7) ? axes.begin() : axes.end(), *axis);
    if (graph::CheckSharding(mesh, longer, shape).ok()) sharding = std::move(longer);
  }
  graph::Canonicalize(mesh, &sharding);
  return sharding;
}

Sharding RearrangedSharding(Random& random, const Mesh& mesh, const Shape& shape,
                            Sharding sharding) {
  sharding.partials.clear();
  std::vector<graph::DimSharding>& dims = sharding.dims;
  if (dims.size() > 1 && random.Chance(0.6)) {
    const int64_t a = random.Below(dims.size());
    const int64_t b = random.Below(dims.size());
    if (random.Chance(0.5) || dims[a].axes.empty() || a == b) {
      std::swap(dims[a].axes, dims[b].axes);
    } else {
      dims[b].axes.push_back(dims[a].axes.back());
      dims[a].axes.pop_back();
    }
  } else if (!dims.empty()) {
    random.Shuffle(dims[random.Below(dims.size())].axes);
  }
  graph::Canonicalize(mesh, &sharding);
  return graph::CheckSharding(mesh, sharding, shape).ok() ? sharding
                                                          : RandomSharding(random, mesh, shape);
}

void AddRandomPartial(Random& random, const Mesh& mesh, graph::Reduction reduction,
                      bool allow_temporal, Sharding* sharding) {
  const std::optional<AxisRef> axis = UnusedAxis(random, mesh, *sharding);
  if (!axis || (graph::IsTemporal(mesh, *axis) && !allow_temporal)) return;
  sharding->partials.push_back({reduction, {*axis}});
  graph::Canonicalize(mesh, sharding);
}

absl::StatusOr<RandomCase> MakeRandomCase(const graph::OpRegistry& ops, uint64_t seed) {
  Random random(seed * 0x9E3779B97F4A7C15 + 1);
  RandomCase result;
  result.seed = seed;
  result.graph.set_name(StrCat("case", seed));
  const int64_t num_microbatches = random.Chance(0.5)   ? random.Between(2, 4)
                                   : random.Chance(0.3) ? random.Between(5, 8)
                                                        : 1;
  const int64_t num_stages = random.Chance(0.5) ? 1 : random.Between(2, 4);
  const int64_t batch = num_microbatches * random.Between(1, num_microbatches < 4    ? 4
                                                             : num_microbatches == 4 ? 3
                                                                                     : 1);
  const DType dtype = random.Chance(0.85) ? DType::kF64 : DType::kF32;

  Grower grower(ops, random, result, batch, dtype);
  const std::vector<Maker> makers = Makers(ops);
  const Maker& favourite = makers[seed % makers.size()];
  favourite.make(grower, favourite.op);
  for (int64_t more = random.Between(3, 10); more > 0 && grower.ok(); --more) {
    const Maker& maker = makers[random.Below(makers.size())];
    maker.make(grower, maker.op);
    if (grower.ok() && random.Chance(0.12)) MakeReshard(grower, "reshard");
  }
  if (grower.ok()) favourite.make(grower, favourite.op);
  RETURN_IF_ERROR(grower.status());

  Values candidates = grower.floats();
  candidates.insert(candidates.end(), grower.others().begin(), grower.others().end());
  random.Shuffle(candidates);
  candidates.resize(std::min<size_t>(candidates.size(), random.Between(1, 5)));
  // The last value made depends on most of the others.
  if (!grower.floats().empty()) candidates.push_back(grower.floats().back());
  if (!grower.others().empty()) candidates.push_back(grower.others().back());
  std::sort(candidates.begin(), candidates.end());
  candidates.erase(std::unique(candidates.begin(), candidates.end()), candidates.end());
  for (ValueId value : candidates) result.graph.mutable_returns().push_back({value, {}});

  const ValueId loss = random.Chance(0.55) ? MakeLoss(grower) : kNoValue;
  RETURN_IF_ERROR(grower.status());
  if (loss != kNoValue) RETURN_IF_ERROR(AddTraining(ops, random, loss, result));

  const bool has_state = std::any_of(result.graph.nodes().begin(), result.graph.nodes().end(),
                                     [](const Node& node) { return node.op->name() == "assign"; });
  result.num_steps = static_cast<int>(has_state ? random.Between(2, 4) : random.Between(1, 2));
  result.graph.mutable_meshes().push_back(RandomMesh(random, 8 / num_stages, num_microbatches));
  Annotate(random, result);
  if (num_stages > 1) AssignRandomStages(random, static_cast<int>(num_stages), result.graph);
  int last_stage = 0;
  for (const Node& node : result.graph.nodes()) last_stage = std::max(last_stage, node.stage);
  for (const int chunks : {2, 3, 4}) {
    if ((last_stage + 1) % chunks == 0 && random.Chance(0.4)) result.chunks_per_group = chunks;
  }
  result.policy = random.Chance(0.5) ? "gpipe" : "1f1b";
  result.split_weight_gradients = random.Chance(0.3);
  if (random.Chance(0.6)) SplitUpdates(random, result.graph);
  if (loss != kNoValue && random.Chance(0.5)) MarkRandomSegments(random, result.graph);
  if (random.Chance(0.4)) MarkRandomOffload(random, result.graph);
  if (last_stage > 0 && random.Chance(0.4)) LayOddStagesOnAnotherMesh(random, result.graph);
  return result;
}

Tensor MakeInput(const TensorType& type, const InputRange& range, uint64_t seed,
                 std::string_view name, int step) {
  Tensor tensor(type);
  const RandomKey key = {XXH64(name.data(), name.size(), seed), 0, static_cast<uint32_t>(step)};
  for (int64_t i = 0; i < type.num_elements(); ++i) {
    const double real = range.low + (range.high - range.low) *
                                        (RandomWord(key, static_cast<uint64_t>(i)) + 0.5) * 0x1p-32;
    switch (type.dtype) {
      case DType::kF32:
        tensor.As<float>()[i] = static_cast<float>(real);
        break;
      case DType::kF64:
        tensor.As<double>()[i] = real;
        break;
      case DType::kI8:
        tensor.As<int8_t>()[i] = static_cast<int8_t>(std::floor(real));
        break;
      case DType::kU8:
        tensor.As<uint8_t>()[i] = static_cast<uint8_t>(std::floor(real));
        break;
      case DType::kI32:
        tensor.As<int32_t>()[i] = static_cast<int32_t>(std::floor(real));
        break;
      case DType::kI64:
        tensor.As<int64_t>()[i] = static_cast<int64_t>(std::floor(real));
        break;
      case DType::kBool:
        tensor.As<bool>()[i] = real > 0;
        break;
      default:
        break;
    }
  }
  return tensor;
}

}  // namespace penstock::testing
