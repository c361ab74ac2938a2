#include "graph/ops/norm.h"

#include "base/status_macros.h"

namespace penstock::graph::ops {

absl::Status CheckNormOperand(const OpContext& context, int operand) {
  RETURN_IF_ERROR(CheckFloat(context, operand));
  return CheckMinRank(context, operand, 1);
}

absl::Status CheckFeatureVector(const OpContext& context, int operand, int x) {
  RETURN_IF_ERROR(CheckSameDType(context, operand, x));
  return CheckOperandShape(context, operand, {context.operands[x].shape.back()},
                           StrCat("the last dimension of operand ", x));
}

absl::Status CheckStatistics(const OpContext& context, int operand, int x) {
  return CheckOperandType(context, operand, StatisticsOf(context.operands[x]),
                          StrCat("a statistic of each row of operand ", x));
}

TensorType FeaturesOf(const TensorType& x) { return {x.dtype, {x.shape.back()}}; }

TensorType StatisticsOf(const TensorType& x) {
  return {StatisticsDType(x.dtype), WithoutLast(x.shape)};
}

ShardingRule WeightGradRule(const OpContext& context) {
  ShardingRule rule;
  const Shape& x = context.operands[0].shape;
  const TensorFactors rows = AddFactors(rule, WithoutLast(x), FactorKind::kReduction);
  TensorFactors all = rows;
  all.push_back({rule.AddFactor(x.back())});
  rule.operands.assign(context.operands.size(), rows);
  rule.operands[0] = rule.operands[1] = all;
  rule.results.assign(context.results.size(), {all.back()});
  rule.linear = {{0}};
  return rule;
}

ValueId BroadcastStatistics(GraphBuilder& builder, ValueId statistics, ValueId x) {
  if (!builder.status().ok()) return kNoValue;
  const TensorType type = builder.type(x);
  if (builder.type(statistics).dtype != type.dtype) {
    statistics = builder.Add("cast", {statistics}, {{"dtype", type.dtype}});
  }
  return BroadcastLike(builder, statistics, x, {static_cast<int64_t>(type.shape.size()) - 1});
}

ValueId AddRstd(GraphBuilder& builder, ValueId square, const Attributes& attributes) {
  const double epsilon = attributes.GetDouble("epsilon", 1e-5);
  return builder.Add("rsqrt", {builder.Add("add", {square, ScalarLike(builder, square, epsilon)})});
}

}  // namespace penstock::graph::ops
