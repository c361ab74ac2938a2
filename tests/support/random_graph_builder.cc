#include "tests/support/random_graph_builder.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <string_view>
#include <utility>

#include "base/strings.h"

namespace penstock::testing {
namespace {

using graph::Attributes;
using graph::AttrValue;
using graph::kNoValue;
using graph::ValueId;

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

}  // namespace

int64_t RandomGraphBuilder::Dim() {
  static constexpr int64_t kDims[] = {1, 2, 3, 4, 5, 6, 7, 8, 12};
  return kDims[random_.Below(9)];
}

Shape RandomGraphBuilder::RandomShape(int min_rank, int max_rank) {
  Shape shape;
  const int64_t rank = random_.Between(min_rank, max_rank);
  for (int64_t i = 0; i < rank; ++i) {
    int64_t dim = i == 0 && random_.Chance(0.7) ? batch_ : Dim();
    if (i == 0 && rank > 1 && case_.may_be_empty && random_.Chance(0.3)) dim = 0;
    while (NumElements(shape) * dim > kMaxElements / 4) dim = (dim + 1) / 2;
    shape.push_back(dim);
  }
  return shape;
}

ValueId RandomGraphBuilder::Input(const TensorType& type, const InputRange& range) {
  const ValueId value = builder_.Declare("input", StrCat("x", ++num_leaves_), type);
  if (value == kNoValue) return value;
  case_.inputs[builder_.graph().value(value).name] = range;
  bounds_[value] = std::max(std::abs(range.low), std::abs(range.high));
  return value;
}

ValueId RandomGraphBuilder::Parameter(const TensorType& type) {
  const ValueId value =
      builder_.Declare("parameter", StrCat("w", ++num_leaves_), type,
                       {{"init", "normal"}, {"std", 0.6}, {"stream", ++num_streams_}});
  if (value != kNoValue) bounds_[value] = 2.5;
  return value;
}

ValueId RandomGraphBuilder::State(const TensorType& type) {
  const ValueId value = builder_.Declare("state", StrCat("s", ++num_leaves_), type,
                                         {{"init", random_.Chance(0.5) ? "ones" : "zeros"}});
  if (value != kNoValue) bounds_[value] = 1;
  return value;
}

ValueId RandomGraphBuilder::FreshFloat(const Shape& shape) {
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

ValueId RandomGraphBuilder::Float(const Shape& shape) {
  Values fitting;
  for (ValueId value : floats_) {
    if (ShapeOf(value) == shape) fitting.push_back(value);
  }
  if (fitting.empty() || random_.Chance(0.3)) return FreshFloat(shape);
  return random_.Pick(fitting);
}

ValueId RandomGraphBuilder::Float(int min_rank, int max_rank) {
  Values fitting;
  for (ValueId value : floats_) {
    if (Rank(value) >= min_rank && Rank(value) <= max_rank) fitting.push_back(value);
  }
  if (fitting.empty() || random_.Chance(0.2)) return FreshFloat(RandomShape(min_rank, max_rank));
  return random_.Pick(fitting);
}

ValueId RandomGraphBuilder::Indices(const Shape& shape, int64_t limit) {
  const DType dtype = limit <= 127 ? IntegerType() : DType::kI32;
  return Input({dtype, shape}, {0, static_cast<double>(limit)});
}

DType RandomGraphBuilder::IntegerType() { return kIntegers[random_.Below(std::size(kIntegers))]; }

ValueId RandomGraphBuilder::Integer(const TensorType& type) {
  for (ValueId value : others_) {
    if (Type(value) == type && random_.Chance(0.6)) return value;
  }
  return Input(type, IntegerRange(type.dtype, random_.Chance(0.25)));
}

ValueId RandomGraphBuilder::Any(int min_rank, int max_rank) {
  if (random_.Chance(0.8)) return Float(min_rank, max_rank);
  Values fitting;
  for (ValueId value : others_) {
    if (Rank(value) >= min_rank && Rank(value) <= max_rank) fitting.push_back(value);
  }
  if (!fitting.empty() && random_.Chance(0.6)) return random_.Pick(fitting);
  const Shape shape = RandomShape(min_rank, std::min(max_rank, 4));
  return random_.Chance(0.25) ? Bool(shape) : Integer({IntegerType(), shape});
}

ValueId RandomGraphBuilder::AnyLike(ValueId like, const Shape& shape) {
  const DType dtype = Type(like).dtype;
  if (dtype == dtype_) return Float(shape);
  return dtype == DType::kBool ? Bool(shape) : Integer({dtype, shape});
}

ValueId RandomGraphBuilder::Bool(const Shape& shape) {
  for (ValueId value : others_) {
    if (Type(value) == TensorType{DType::kBool, shape} && random_.Chance(0.6)) return value;
  }
  return Input({DType::kBool, shape}, {});
}

ValueId RandomGraphBuilder::Positive(ValueId x) {
  const ValueId magnitude = Op("abs", {x}, {}, Bound(x));
  return Op("add", {magnitude, Scalar(0.5)}, {}, Bound(x) + 0.5);
}

ValueId RandomGraphBuilder::Scalar(double value) {
  const ValueId constant = builder_.Constant(value, {dtype_, {}});
  if (constant != kNoValue) bounds_[constant] = std::abs(value);
  return constant;
}

Values RandomGraphBuilder::Ops(std::string_view op, const Values& operands, Attributes attributes,
                               double bound, int num_results) {
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

ValueId RandomGraphBuilder::Op(std::string_view op, const Values& operands, Attributes attributes,
                               double bound) {
  return Ops(op, operands, std::move(attributes), bound)[0];
}

void RandomGraphBuilder::Emit(ValueId value) {
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

}  // namespace penstock::testing
