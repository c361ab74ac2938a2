// qkv_attention_grad(qkv, o, lse, do) {causal=false} -> dqkv.

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

class QkvAttentionGradOp : public Op {
 public:
  std::string_view name() const override { return "qkv_attention_grad"; }
  int min_operands() const override { return 4; }
  std::vector<AttrSpec> attributes() const override { return {{"causal", Kind::kBool}}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckQkvOperand(context));
    const TensorType output = QkvOutput(context);
    for (int i : {1, 3}) {
      RETURN_IF_ERROR(CheckSameDType(context, i, 0));
      RETURN_IF_ERROR(
          CheckOperandShape(context, i, output.shape, "that of the attention's result"));
    }
    RETURN_IF_ERROR(CheckLogSumExp(context, 2, QkvLogSumExp(context)));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const QkvFactors f = AddQkvFactors(rule, context);
    rule.operands = {f.qkv, f.output, f.lse, f.output};
    rule.results = {f.qkv};
    rule.linear = {{3}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, QkvFlops(context, 10), QkvOutput(context).num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeQkvAttentionGrad() { return std::make_unique<QkvAttentionGradOp>(); }

}  // namespace penstock::graph::ops
