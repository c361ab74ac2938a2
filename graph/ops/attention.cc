// attention(q[b, h, s, d], k[b, g, t, d], v[b, g, t, d]) {causal=false} -> o[b, h, s, d], [lse[b,
// h, s]]: softmax(q k^T / sqrt d) v without storing anything of size s t (Dao et al.,
// arXiv:2205.14135). g divides h: head i of the queries sees head i g / h of the keys. With causal,
// query i sees the keys j <= i + (t - s), in global indices. Over a
// split t it becomes the attention on each part of the keys, weighted by what the parts' sums of
// exponentials are of the whole sum; over one split of s and t, ring attention.

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
    const AttentionFactors f =
        AddAttentionFactors(rule, context, FactorKind::kPassThrough, FactorKind::kNeedReplication);
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
  std::vector<int> DecomposableFactors(const OpContext&) const override { return {kAttentionKeys}; }
  std::vector<std::pair<int, int>> PairedFactors(const OpContext& context) const override {
    return AttentionPairs(context);
  }
  Values Decompose(GraphBuilder& builder, const Node& node,
                   const FactorSplit& split) const override {
    if (split.partner >= 0) {
      std::vector<ValueId> ring =
          RingAttention(builder, SwapHeadsAndRows(builder, node.operands[0]),
                        PackKeys(builder, node.operands[1], node.operands[2]),
                        node.attributes.GetBool("causal", false), split.num_parts);
      if (ring.empty()) return builder.status();
      ring[0] = SwapHeadsAndRows(builder, ring[0]);
      ring.resize(node.results.size());
      return ring;
    }
    Attributes attributes = node.attributes;
    attributes.Set("parts", split.num_parts);
    const std::vector<ValueId> parts =
        builder.AddMulti("attention_parts", node.operands, attributes);
    if (parts.empty()) return builder.status();
    const ValueId o = parts[0];
    const ValueId lse = parts[1];
    const Attributes axes = {{"axes", AttrValue::Ints({0})}};
    const ValueId max = builder.Add("reduce_max", {lse}, axes);
    const ValueId weights =
        builder.Add("exp", {builder.Add("sub", {lse, BroadcastLike(builder, max, lse, {0})})});
    const ValueId sum = builder.Add("reduce_sum", {weights}, axes);
    const ValueId weighted = builder.Add("mul", {o, BroadcastLike(builder, weights, o, {4})});
    const ValueId total = builder.Add("reduce_sum", {weighted}, axes);
    ValueId mean = builder.Add("div", {total, BroadcastLike(builder, sum, total, {3})});
    if (!builder.status().ok()) return builder.status();
    const DType dtype = builder.type(node.operands[0]).dtype;
    if (builder.type(mean).dtype != dtype) mean = builder.Add("cast", {mean}, {{"dtype", dtype}});
    if (node.results.size() == 1) return std::vector<ValueId>{mean};
    return std::vector<ValueId>{mean, builder.Add("add", {builder.Add("log", {sum}), max})};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, AttentionFlops(context, 4), context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeAttention() { return std::make_unique<AttentionOp>(); }

}  // namespace penstock::graph::ops
