// bias_add(x[..., b...], b): x + b, whose shape is the end of x's.

#include <algorithm>

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class BiasAddOp : public Op {
 public:
  std::string_view name() const override { return "bias_add"; }
  int min_operands() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNumber(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    const Shape& x = context.operands[0].shape;
    const size_t rank = std::clamp<size_t>(context.operands[1].shape.size(), 1, x.size());
    RETURN_IF_ERROR(CheckOperandShape(
        context, 1, Shape(x.end() - rank, x.end()),
        rank == 1 ? "the last dimension of operand 0" : "the last dimensions of operand 0"));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const TensorFactors all = AddFactors(rule, context.operands[0].shape);
    rule.operands = {all, {all.end() - context.operands[1].shape.size(), all.end()}};
    rule.results = {all};
    rule.linear = {{0, 1}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const size_t rank = builder.type(node.operands[1]).shape.size();
    return std::vector<ValueId>{grads[0], SumLeading(builder, grads[0], rank)};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 1, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBiasAdd() { return std::make_unique<BiasAddOp>(); }

}  // namespace penstock::graph::ops
