// adamw(w, g, m, v, step i64[], lr f[], scale f[]) {beta1=0.9, beta2=0.999, epsilon=1e-8,
// weight_decay=0} -> w', m', v': one step of Adam with decoupled weight decay (Loshchilov & Hutter,
// arXiv:1711.05101). g is multiplied by scale first; step counts from 1.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class AdamwOp : public Op {
 public:
  std::string_view name() const override { return "adamw"; }
  int min_operands() const override { return 7; }
  std::vector<AttrSpec> attributes() const override {
    return {{"beta1", Kind::kDouble},
            {"beta2", Kind::kDouble},
            {"epsilon", Kind::kDouble},
            {"weight_decay", Kind::kDouble}};
  }
  int num_results(const OpContext&) const override { return 3; }
  InferredTypes InferTypes(const OpContext& context) const override {
    for (int i : {0, 1, 2, 3, 5, 6}) RETURN_IF_ERROR(CheckFloat(context, i));
    for (int i : {1, 2, 3}) {
      RETURN_IF_ERROR(
          CheckOperandShape(context, i, context.operands[0].shape, "that of the parameter"));
    }
    for (int i : {4, 5, 6}) RETURN_IF_ERROR(CheckRank(context, i, 0));
    if (context.operands[4].dtype != DType::kI64) {
      return Invalid("the step ", Describe(context, 4), " should be i64[]");
    }
    return std::vector<TensorType>{context.operands[0], context.operands[2], context.operands[3]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const TensorFactors all = AddFactors(rule, context.operands[0].shape);
    for (int i = 0; i < static_cast<int>(context.operands.size()); ++i) {
      rule.operands.push_back(i >= 4 ? TensorFactors() : all);
    }
    rule.results.assign(context.results.size(), all);
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  std::vector<int> updated_operands() const override { return {0, 2, 3}; }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 20, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeAdamw() { return std::make_unique<AdamwOp>(); }

}  // namespace penstock::graph::ops
