// attention(q[b, h, s, d], k[b, h, t, d], v[b, h, t, d]) {causal=false} -> o[b, h, s, d], [lse[b,
// h, s]]: softmax(q k^T / sqrt d) v without storing anything of size s t (Dao et al.,
// arXiv:2205.14135). With causal, query i sees the keys j <= i + (t - s), in global indices.

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

class AttentionOp : public Op {
 public:
  std::string_view name() const override { return "attention"; }
  int min_operands() const override { return 3; }
  std::vector<AttrSpec> attributes() const override { return {{"causal", Kind::kBool}}; }
  int num_optional_results() const override { return 1; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckAttentionOperands(context));
    return std::vector<TensorType>{context.operands[0], LogSumExpOf(context.operands[0])};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const AttentionFactors f = AddAttentionFactors(rule, context, FactorKind::kPassThrough);
    rule.operands = {f.query, f.key, f.key};
    rule.results = {f.query, f.lse};
    rule.results.resize(context.results.size());
    return rule;
  }
  int num_residuals() const override { return 1; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const std::vector<ValueId> gradients =
        builder.AddMulti("attention_grad",
                         {node.operands[0], node.operands[1], node.operands[2], node.results[0],
                          node.results[1], grads[0]},
                         node.attributes);
    if (gradients.empty()) return builder.status();
    return gradients;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, AttentionFlops(context, 4), context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeAttention() { return std::make_unique<AttentionOp>(); }

}  // namespace penstock::graph::ops
