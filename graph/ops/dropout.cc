// dropout(x) {rate, stream}: keeps element i with probability 1 - rate, scaled by 1 / (1 - rate);
// the draw is RandomUniform({seed, stream, step}, global index of i) >= rate. The gradient is
// dropout of dy with the same draws.

#include "base/status_macros.h"
#include "graph/ops/source.h"

namespace penstock::graph::ops {
namespace {

class DropoutOp : public Op {
 public:
  std::string_view name() const override { return "dropout"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"rate", Kind::kDouble, /*is_required=*/true},
            {"stream", Kind::kInt, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckStream(context.attributes));
    const double rate = context.attributes.GetDouble("rate", 0);
    if (!(rate >= 0 && rate < 1)) return Invalid("rate ", rate, " is outside [0, 1)");
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    rule.linear = {{0}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    return std::vector<ValueId>{builder.Add("dropout", {grads[0]}, node.attributes)};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, kFlopsPerDraw + 3, context.operands[0].num_elements());
  }
  bool is_random() const override { return true; }
};

}  // namespace

std::unique_ptr<const Op> MakeDropout() { return std::make_unique<DropoutOp>(); }

}  // namespace penstock::graph::ops
