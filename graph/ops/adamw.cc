// adamw(w, g, m, v, step i64[], lr f[], scale f[]) {beta1=0.9, beta2=0.999, epsilon=1e-8,
// weight_decay=0} -> w', m', v': one step of Adam with decoupled weight decay (Loshchilov & Hutter,
// arXiv:1711.05101). g is multiplied by scale first; step counts from 1. g, m and v have the
// type of w; lr and scale are f32, f64 or of w's element type. A negative scale says that g is of
// no use: the results are w, m and v.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

constexpr std::string_view kAdamwNames[] = {"w", "g", "m", "v", "step", "lr", "scale"};

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
    RETURN_IF_ERROR(CheckFloat(context, 0));
    for (int i : {1, 2, 3}) RETURN_IF_ERROR(CheckSameType(context, i, 0, kAdamwNames));
    RETURN_IF_ERROR(
        CheckOperandType(context, 4, {DType::kI64, {}}, "the number of the step", kAdamwNames));
    for (int i : {5, 6}) RETURN_IF_ERROR(CheckFloatScalar(context, i, 0, kAdamwNames));
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
