// qkv_attention_grad(qkv, o, lse, do) {causal=false} -> dqkv. Over a split s it becomes the
// gradient of what qkv_attention becomes.

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
    for (int i : {1, 3}) {
      RETURN_IF_ERROR(CheckOperandType(context, i, QkvOutput(context),
                                       "the type of the attention of operand 0"));
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
  std::vector<int> DecomposableFactors(const OpContext&) const override { return {kQkvSequence}; }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& split) const override {
    const Shape& qkv = builder.type(node.operands[0]).shape;
    const Shape one = {qkv[0], qkv[1], 1, qkv[3], qkv[4]};
    if (split.is_even) {
      const RowsOfHeads rows = PackedHeads(builder, node.operands[0]);
      const std::vector<ValueId> grads = RingAttentionGrad(
          builder, rows.q, rows.kv, node.operands[1], node.operands[2], node.operands[3],
          node.attributes.GetBool("causal", false), split.num_parts);
      if (grads.empty()) return builder.status();
      return std::vector<ValueId>{
          builder.Add("concat", {Reshaped(builder, grads[0], one), grads[1]}, {{"axis", 2}})};
    }
    const SeparateHeads heads = SplitQkv(builder, node.operands[0]);
    const ValueId o = SwapHeadsAndRows(builder, node.operands[1]);
    const ValueId d_o = SwapHeadsAndRows(builder, node.operands[3]);
    std::vector<ValueId> grads = builder.AddMulti(
        "attention_grad", {heads.q, heads.k, heads.v, o, node.operands[2], d_o}, node.attributes);
    if (grads.empty()) return builder.status();
    for (ValueId& grad : grads) {
      grad = Reshaped(builder, SwapHeadsAndRows(builder, grad), one);
    }
    return std::vector<ValueId>{builder.Add("concat", grads, {{"axis", 2}})};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, QkvFlops(context, 10), QkvOutput(context).num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeQkvAttentionGrad() { return std::make_unique<QkvAttentionGradOp>(); }

}  // namespace penstock::graph::ops
