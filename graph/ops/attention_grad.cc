// attention_grad(q, k, v, o, lse, do) {causal=false} -> dq, dk, dv. The query sequence is a
// dimension of dq, and dk and dv are sums over it: split, it leaves those two partial. The key
// sequence is one of dk and dv, and leaves dq partial. o and lse are those of all keys. Over one
// split of both it becomes the gradient of ring attention.

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

class AttentionGradOp : public Op {
 public:
  std::string_view name() const override { return "attention_grad"; }
  int min_operands() const override { return 6; }
  std::vector<AttrSpec> attributes() const override { return {{"causal", Kind::kBool}}; }
  int num_results(const OpContext&) const override { return 3; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckAttentionOperands(context));
    RETURN_IF_ERROR(CheckSameType(context, 3, 0));
    RETURN_IF_ERROR(CheckLogSumExp(context, 4, LogSumExpOf(context.operands[0])));
    RETURN_IF_ERROR(CheckSameType(context, 5, 0));
    return std::vector<TensorType>{context.operands[0], context.operands[1], context.operands[2]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const AttentionFactors f =
        AddAttentionFactors(rule, context, FactorKind::kReduction, FactorKind::kReduction);
    rule.operands = {f.query, f.key, f.key, f.query, f.lse, f.query};
    rule.results = {f.query, f.key, f.key};
    return rule;
  }
  std::vector<std::pair<int, int>> PairedFactors(const OpContext& context) const override {
    return AttentionPairs(context);
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& split) const override {
    const auto& x = node.operands;
    const std::vector<ValueId> grads =
        RingAttentionGrad(builder, SwapHeadsAndRows(builder, x[0]), PackKeys(builder, x[1], x[2]),
                          SwapHeadsAndRows(builder, x[3]), x[4], SwapHeadsAndRows(builder, x[5]),
                          node.attributes.GetBool("causal", false), split.num_parts);
    if (grads.empty()) return builder.status();
    const Shape& keys = builder.type(x[1]).shape;
    const Shape rows = {keys[0], keys[2], keys[1], keys[3]};
    const auto unpack = [&](int64_t part) {
      return SwapHeadsAndRows(
          builder, Reshaped(builder, PartOfQkv(builder, grads[1], part, part + 1), rows));
    };
    return std::vector<ValueId>{SwapHeadsAndRows(builder, grads[0]), unpack(0), unpack(1)};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, AttentionFlops(context, 10), context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeAttentionGrad() { return std::make_unique<AttentionGradOp>(); }

}  // namespace penstock::graph::ops
