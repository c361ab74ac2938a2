#include "graph/ops/common.h"

#include <algorithm>
#include <numeric>

namespace penstock::graph::ops {

std::string Describe(const OpContext& context, int operand) {
  return StrCat("operand ", operand, " ", ToString(context.operands[operand]));
}

std::string NameOperand(int operand, OperandNames names) {
  if (operand >= static_cast<int>(names.size())) return StrCat("operand ", operand);
  return StrCat("operand ", operand, " (", names[operand], ")");
}

absl::Status CheckFloat(const OpContext& context, int operand) {
  if (IsFloat(context.operands[operand].dtype)) return absl::OkStatus();
  return Invalid("operand ", operand, " is ", ToString(context.operands[operand]),
                 "; expected a float type");
}

absl::Status CheckInteger(const OpContext& context, int operand) {
  if (IsInteger(context.operands[operand].dtype)) return absl::OkStatus();
  return Invalid("operand ", operand, " is ", ToString(context.operands[operand]),
                 "; expected an integer type");
}

absl::Status CheckNumber(const OpContext& context, int operand) {
  if (context.operands[operand].dtype != DType::kBool) return absl::OkStatus();
  return Invalid("operand ", operand, " is ", ToString(context.operands[operand]),
                 "; expected a float or integer type");
}

absl::Status CheckSameDType(const OpContext& context, int operand, int other) {
  if (context.operands[operand].dtype == context.operands[other].dtype) return absl::OkStatus();
  return Invalid("the element types differ: ", Describe(context, other), ", ",
                 Describe(context, operand));
}

absl::Status CheckMinRank(const OpContext& context, int operand, int rank) {
  if (static_cast<int>(context.operands[operand].shape.size()) >= rank) return absl::OkStatus();
  return Invalid("needs at least ", rank, rank == 1 ? " dimension, " : " dimensions, ",
                 Describe(context, operand), " has ", context.operands[operand].shape.size());
}

absl::Status CheckRank(const OpContext& context, int operand, int rank) {
  if (static_cast<int>(context.operands[operand].shape.size()) == rank) return absl::OkStatus();
  if (rank == 0) return Invalid("needs a scalar, got ", Describe(context, operand));
  return Invalid("needs ", rank, rank == 1 ? " dimension, " : " dimensions, ",
                 Describe(context, operand), " has ", context.operands[operand].shape.size());
}

absl::Status CheckOperandShape(const OpContext& context, int operand,
                               absl::Span<const int64_t> shape, std::string_view what) {
  if (absl::MakeConstSpan(context.operands[operand].shape) == shape) return absl::OkStatus();
  return Invalid(Describe(context, operand), " should have the shape ", penstock::ToString(shape),
                 ", ", what);
}

absl::Status CheckOperandType(const OpContext& context, int operand, const TensorType& expected,
                              std::string_view what, OperandNames names) {
  if (context.operands[operand] == expected) return absl::OkStatus();
  return Invalid(NameOperand(operand, names), " is ", ToString(context.operands[operand]),
                 "; expected ", ToString(expected), ", ", what);
}

absl::Status CheckSameType(const OpContext& context, int operand, int other, OperandNames names) {
  return CheckOperandType(context, operand, context.operands[other],
                          StrCat("the type of ", NameOperand(other, names)), names);
}

absl::Status CheckFloatScalar(const OpContext& context, int operand, int other,
                              OperandNames names) {
  const TensorType& type = context.operands[operand];
  const DType dtype = context.operands[other].dtype;
  const bool is_read = type.dtype == DType::kF32 || type.dtype == DType::kF64 ||
                       (IsFloat(dtype) && type.dtype == dtype);
  if (is_read && type.shape.empty()) return absl::OkStatus();
  std::string expected = "f32[] or f64[]";
  if (ByteSize(dtype) == 2) expected = StrCat("f32[], f64[] or ", Name(dtype), "[]");
  return Invalid(NameOperand(operand, names), " is ", ToString(type), "; expected ", expected);
}

absl::StatusOr<int> NormalizeAxis(int64_t axis, int rank) {
  if (axis < -rank || axis >= rank) {
    return Invalid("axis ", axis, " is outside a tensor of rank ", rank);
  }
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

absl::StatusOr<int> NormalizeOperandAxis(const OpContext& context, int64_t axis) {
  const int rank = static_cast<int>(context.operands[0].shape.size());
  if (axis < -rank || axis >= rank) {
    return Invalid("axis ", axis, " is outside ", Describe(context, 0), " of rank ", rank);
  }
  return NormalizeAxis(axis, rank);
}

int AxisOf(const Attributes& attributes, int64_t fallback, int rank) {
  const int64_t axis = attributes.GetInt("axis", fallback);
  return static_cast<int>(axis < 0 ? axis + rank : axis);
}

absl::Status CheckOneADimension(const OpContext& context, std::string_view attribute) {
  const Shape values = context.attributes.GetInts(attribute);
  const size_t rank = context.operands[0].shape.size();
  if (values.size() == rank) return absl::OkStatus();
  return Invalid("attribute '", attribute, "' has ", values.size(), " entries, ",
                 Describe(context, 0), " has rank ", rank);
}

absl::Status CheckApproximate(const Attributes& attributes) {
  const std::string approximate = attributes.GetString("approximate", "tanh");
  if (approximate == "tanh" || approximate == "none") return absl::OkStatus();
  return Invalid("attribute 'approximate' is \"tanh\" or \"none\", not \"", approximate, "\"");
}

DType StatisticsDType(DType dtype) { return dtype == DType::kF64 ? DType::kF64 : DType::kF32; }

absl::StatusOr<DType> SumDTypeOf(const OpContext& context) {
  const DType operand = context.operands[0].dtype;
  const DType dtype = context.attributes.GetDType("dtype", operand);
  const bool is_wider = dtype == DType::kF32 && IsFloat(operand) && ByteSize(operand) == 2;
  if (dtype == operand || is_wider) return dtype;
  return Invalid("attribute 'dtype' is ", Name(dtype), "; expected ", Name(operand),
                 ", the type of operand 0, or f32 where that has 16 bits");
}

Shape WithoutLast(const Shape& shape) { return Shape(shape.begin(), shape.end() - 1); }

std::vector<int64_t> Iota(int64_t begin, int64_t end) {
  std::vector<int64_t> values(end - begin);
  std::iota(values.begin(), values.end(), begin);
  return values;
}

TensorFactors AddFactors(ShardingRule& rule, absl::Span<const int64_t> shape, FactorKind kind) {
  TensorFactors factors;
  for (int64_t extent : shape) factors.push_back({rule.AddFactor(extent, kind)});
  return factors;
}

ShardingRule LastDimensionRule(const OpContext& context, FactorKind last_kind,
                               absl::Span<const int> feature_vectors) {
  ShardingRule rule;
  const TensorFactors all = AddFactors(rule, context.operands[0].shape);
  rule.factors.back().kind = last_kind;
  const TensorFactors leading(all.begin(), all.end() - 1);
  auto factors_of = [&](const TensorType& type) {
    return type.shape.size() == all.size() ? all : leading;
  };
  for (const TensorType& type : context.operands) rule.operands.push_back(factors_of(type));
  for (const TensorType& type : context.results) rule.results.push_back(factors_of(type));
  for (int operand : feature_vectors) rule.operands[operand] = {all.back()};
  return rule;
}

TensorFactors AddTouched(ShardingRule& rule, absl::Span<const int64_t> shape,
                         const std::vector<bool>& is_touched) {
  TensorFactors factors;
  for (size_t i = 0; i < shape.size(); ++i) {
    factors.push_back({rule.AddFactor(
        shape[i], is_touched[i] ? FactorKind::kPermutation : FactorKind::kPassThrough)});
  }
  return factors;
}

OpCost CostOf(const OpContext& context, double flops, int64_t elements) {
  OpCost cost;
  cost.flops = flops * static_cast<double>(elements);
  for (const TensorType& type : context.operands) cost.bytes += type.num_bytes();
  for (const TensorType& type : context.results) cost.bytes += type.num_bytes();
  return cost;
}

std::vector<ValueId> BoundResults(GraphBuilder& builder, const Node& node,
                                  std::vector<ValueId> values) {
  values.resize(node.results.size());
  if (!builder.status().ok()) return values;
  const DType dtype = StatisticsDType(builder.type(values[0]).dtype);
  for (size_t i = 1; i < values.size(); ++i) {
    if (builder.type(values[i]).dtype != dtype) {
      values[i] = builder.Add("cast", {values[i]}, {{"dtype", dtype}});
    }
  }
  return values;
}

ValueId CastTo(GraphBuilder& builder, ValueId value, DType dtype) {
  if (!builder.status().ok() || builder.type(value).dtype == dtype) return value;
  return builder.Add("cast", {value}, {{"dtype", dtype}});
}

ValueId ScalarLike(GraphBuilder& builder, ValueId like, double value) {
  if (!builder.status().ok()) return kNoValue;
  return builder.Constant(value, {builder.type(like).dtype, {}});
}

ValueId ZerosLike(GraphBuilder& builder, ValueId like) {
  if (!builder.status().ok()) return kNoValue;
  return builder.Constant(0, builder.type(like));
}

ValueId SumToOperand(GraphBuilder& builder, ValueId gradient, ValueId operand) {
  if (!builder.status().ok() || builder.type(gradient) == builder.type(operand)) return gradient;
  const int64_t rank = static_cast<int64_t>(builder.type(gradient).shape.size());
  return builder.Add("reduce_sum", {gradient}, {{"axes", AttrValue::Ints(Iota(0, rank))}});
}

ValueId SumLeading(GraphBuilder& builder, ValueId value, size_t num_kept) {
  if (!builder.status().ok()) return kNoValue;
  const int64_t rank = static_cast<int64_t>(builder.type(value).shape.size());
  const int64_t num_summed = rank - static_cast<int64_t>(num_kept);
  if (num_summed == 0) return value;
  return builder.Add("reduce_sum", {value}, {{"axes", AttrValue::Ints(Iota(0, num_summed))}});
}

ValueId BroadcastLike(GraphBuilder& builder, ValueId value, ValueId like,
                      absl::Span<const int64_t> missing) {
  if (!builder.status().ok()) return kNoValue;
  const Shape shape = builder.type(like).shape;
  std::vector<int64_t> axes = Iota(0, static_cast<int64_t>(shape.size()));
  for (int64_t axis : missing) axes.erase(std::find(axes.begin(), axes.end(), axis));
  return builder.Add("broadcast", {value},
                     {{"shape", AttrValue::Ints(shape)}, {"axes", AttrValue::Ints(axes)}});
}

ValueId BroadcastFeatures(GraphBuilder& builder, ValueId vector, ValueId like) {
  if (!builder.status().ok()) return kNoValue;
  const int64_t rank = static_cast<int64_t>(builder.type(like).shape.size());
  return BroadcastLike(builder, vector, like, Iota(0, rank - 1));
}

}  // namespace penstock::graph::ops
