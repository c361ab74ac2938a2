// qkv_attention(qkv[b, s, 3, h, d]) {causal=false} -> o[b, s, h, d], [lse[b, h, s]]: attention on
// the three slices of one tensor, as a linear layer leaves them, without transposes. Over an s that
// devices split evenly it becomes ring attention; over another split attention, whose queries and
// keys may be split each on its own.

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

class QkvAttentionOp : public Op {
 public:
  std::string_view name() const override { return "qkv_attention"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override { return {{"causal", Kind::kBool}}; }
  int num_optional_results() const override { return 1; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckQkvOperand(context));
    return std::vector<TensorType>{QkvOutput(context), QkvLogSumExp(context)};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const QkvFactors f = AddQkvFactors(rule, context);
    rule.operands = {f.qkv};
    rule.results = {f.output, f.lse};
    rule.results.resize(context.results.size());
    return rule;
  }
  int num_residuals() const override { return 1; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    return std::vector<ValueId>{builder.Add(
        "qkv_attention_grad", {node.operands[0], node.results[0], node.results[1], grads[0]},
        node.attributes)};
  }
  std::vector<int> DecomposableFactors(const OpContext&) const override { return {kQkvSequence}; }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& split) const override {
    if (split.is_even) {
      const RowsOfHeads rows = PackedHeads(builder, node.operands[0]);
      std::vector<ValueId> ring = RingAttention(
          builder, rows.q, rows.kv, node.attributes.GetBool("causal", false), split.num_parts);
      if (ring.empty()) return builder.status();
      ring.resize(node.results.size());
      return ring;
    }
    const SeparateHeads heads = SplitQkv(builder, node.operands[0]);
    std::vector<ValueId> results =
        builder.AddMulti("attention", {heads.q, heads.k, heads.v}, node.attributes, "",
                         static_cast<int>(node.results.size()));
    if (results.empty()) return builder.status();
    results[0] = SwapHeadsAndRows(builder, results[0]);
    return results;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, QkvFlops(context, 4), QkvOutput(context).num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeQkvAttention() { return std::make_unique<QkvAttentionOp>(); }

}  // namespace penstock::graph::ops
