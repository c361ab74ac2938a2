// cross_entropy(logits[..., v], labels i[...]) -> loss[...], [max[...], log_sum[...]]: log_sum -
// (logits[label] - max), with max the largest logit and log_sum the log of the sum of e^(logits -
// max). The two are apart because their sum would lose the digits of log_sum to a large max. Over a
// split v it becomes a maximum, a sum and a pick. A label outside [0, v) is an error when it runs.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class CrossEntropyOp : public Op {
 public:
  std::string_view name() const override { return "cross_entropy"; }
  int min_operands() const override { return 2; }
  int num_optional_results() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckInteger(context, 1));
    const TensorType& logits = context.operands[0];
    const Shape shape = WithoutLast(logits.shape);
    RETURN_IF_ERROR(CheckOperandShape(context, 1, shape, "one label a row of operand 0"));
    const TensorType statistics{StatisticsDType(logits.dtype), shape};
    return std::vector<TensorType>{statistics, statistics, statistics};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return LastDimensionRule(context, FactorKind::kNeedReplication);
  }
  int num_residuals() const override { return 2; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    return std::vector<ValueId>{
        builder.Add("cross_entropy_grad", {node.operands[0], node.operands[1], node.results[1],
                                           node.results[2], grads[0]}),
        kNoValue};
  }
  std::vector<int> DecomposableFactors(const OpContext& context) const override {
    return {static_cast<int>(context.operands[0].shape.size()) - 1};
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& /*split*/) const override {
    const ValueId logits = node.operands[0];
    if (!builder.status().ok()) return builder.status();
    const DType dtype = StatisticsDType(builder.type(logits).dtype);
    const ValueId largest = builder.Add("reduce_max", {logits}, {{"axes", AttrValue::Ints({-1})}});
    const ValueId sum = builder.Add("sum_exp", {logits, largest});
    const ValueId log_sum = builder.Add("log", {sum});
    const ValueId max = CastTo(builder, largest, dtype);
    const ValueId picked = CastTo(builder, builder.Add("pick", {logits, node.operands[1]}), dtype);
    const ValueId below = builder.Add("sub", {picked, max});
    return BoundResults(builder, node, {builder.Add("sub", {log_sum, below}), max, log_sum});
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 11, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCrossEntropy() { return std::make_unique<CrossEntropyOp>(); }

}  // namespace penstock::graph::ops
