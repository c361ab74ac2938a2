// attention_parts(q[b, h, s, d], k[b, h, t, d], v[b, h, t, d]) {causal=false, parts=p} -> o[p, b,
// h, s, d], lse[p, b, h, s]: attention on each of p parts of the keys by itself, by what its
// decomposition over a split t merges. Part i of p has the keys [ceil(i t / p), ceil((i + 1) t /
// p)), those of one device; a query that sees none of them gets zeros and an lse of -inf. (The
// split of keys is that of Dao et al., "Flash-Decoding" (2023).)

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

int64_t NumParts(const OpContext& context) { return context.attributes.GetInt("parts", 1); }

TensorType InParts(const OpContext& context, TensorType type) {
  type.dtype = StatisticsDType(type.dtype);
  type.shape.insert(type.shape.begin(), NumParts(context));
  return type;
}

class AttentionPartsOp : public Op {
 public:
  std::string_view name() const override { return "attention_parts"; }
  int min_operands() const override { return 3; }
  int num_results(const OpContext&) const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    return {{"causal", Kind::kBool}, {"parts", Kind::kInt, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckAttentionOperands(context));
    const int64_t parts = NumParts(context);
    if (parts < 1) return Invalid("parts should be at least 1, not ", parts);
    const TensorType& q = context.operands[0];
    return std::vector<TensorType>{InParts(context, q), InParts(context, LogSumExpOf(q))};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    AttentionFactors f =
        AddAttentionFactors(rule, context, FactorKind::kPassThrough, FactorKind::kNeedReplication);
    const int64_t parts = NumParts(context);
    const int part = rule.AddFactor(parts);
    rule.factors[kAttentionKeys].size = (context.operands[1].shape[2] + parts - 1) / parts;
    f.key[2] = {part, kAttentionKeys};
    rule.operands = {f.query, f.key, f.key};
    rule.results = {f.query, f.lse};
    for (TensorFactors& result : rule.results) result.insert(result.begin(), {part});
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, AttentionFlops(context, 4), context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeAttentionParts() { return std::make_unique<AttentionPartsOp>(); }

}  // namespace penstock::graph::ops
