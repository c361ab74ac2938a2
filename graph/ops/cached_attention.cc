// cached_attention(qkv[b, s, 3, h, d], cache[b, c, 2, h, d], start i[b]) -> cache'[b, c, 2, h, d],
// o[b, s, h, d]: the next s tokens of b sequences, of which the cache holds the keys and values
// before them. Keys and values of token i are put into row start + i of the cache, and its query
// sees the rows up to that one. Rows from c on are dropped: their results are zero, so that start =
// c leaves a sequence as it is. A start outside [0, c] is an error when it runs.
//
// cached_attention(q[b, s, h, d], cache[b, c, 2, g, d], start, k[b, s, g, d], v[b, s, g, d]): the
// same with heads of keys and values that several heads of queries share (attention.cc).

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

bool IsPacked(const OpContext& context) { return context.operands.size() == 3; }

TensorType OutputOf(const OpContext& context) {
  return IsPacked(context) ? QkvOutput(context) : context.operands[0];
}

absl::Status CheckNewTokens(const OpContext& context) {
  if (context.operands.size() == 4) return Invalid("k comes with v");
  if (IsPacked(context)) return CheckQkvOperand(context);
  RETURN_IF_ERROR(CheckFloat(context, 0));
  RETURN_IF_ERROR(CheckRank(context, 0, 4));
  RETURN_IF_ERROR(CheckSameDType(context, 3, 0));
  RETURN_IF_ERROR(CheckRank(context, 3, 4));
  const Shape& q = context.operands[0].shape;
  const int64_t key_heads = context.operands[3].shape[2];
  RETURN_IF_ERROR(CheckOperandShape(context, 3, {q[0], q[1], key_heads, q[3]},
                                    "that of operand 0 but for the heads"));
  RETURN_IF_ERROR(CheckHeads(context, 3, key_heads, q[2]));
  return CheckSameType(context, 4, 3);
}

class CachedAttentionOp : public Op {
 public:
  std::string_view name() const override { return "cached_attention"; }
  int min_operands() const override { return 3; }
  int max_operands() const override { return 5; }
  int num_results(const OpContext&) const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNewTokens(context));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    RETURN_IF_ERROR(CheckRank(context, 1, 5));
    const Shape& o = OutputOf(context).shape;
    const Shape& cache = context.operands[1].shape;
    const int64_t key_heads = IsPacked(context) ? o[2] : context.operands[3].shape[2];
    RETURN_IF_ERROR(CheckOperandShape(
        context, 1, {o[0], cache[1], 2, key_heads, o[3]},
        IsPacked(context)
            ? "keys and values as in operand 0"
            : "keys and values of the width in operand 0 and the heads in operand 3"));
    RETURN_IF_ERROR(CheckInteger(context, 2));
    RETURN_IF_ERROR(CheckOperandShape(context, 2, {o[0]}, "one for each sequence of operand 0"));
    return std::vector<TensorType>{context.operands[1], OutputOf(context)};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const Shape& cache = context.operands[1].shape;
    if (IsPacked(context)) {
      const QkvFactors f = AddQkvFactors(rule, context);
      const TensorFactors cached = AddCacheFactors(rule, cache, f.qkv[0], f.qkv[3], f.qkv[4]);
      rule.operands = {f.qkv, cached, {f.qkv[0]}};
      rule.results = {cached, f.output};
      return rule;
    }
    const Shape& q = context.operands[0].shape;
    const DimFactors b = {rule.AddFactor(q[0])};
    const DimFactors s = {rule.AddFactor(q[1], FactorKind::kNeedReplication)};
    const int key_heads = rule.AddFactor(cache[3]);
    const DimFactors d = {rule.AddFactor(q[3], FactorKind::kNeedReplication)};
    // The cache has no part of h / g: devices that share a head of keys keep the same rows.
    const HeadFactors h = AddHeadFactors(rule, q[2], cache[3], FactorKind::kPassThrough, key_heads);
    const TensorFactors cached = AddCacheFactors(rule, cache, b, h.key, d);
    const TensorFactors query = {b, s, h.query, d};
    const TensorFactors key = {b, s, h.key, d};
    rule.operands = {query, cached, {b}, key, key};
    rule.results = {cached, query};
    return rule;
  }
  std::vector<int> updated_operands() const override { return {1}; }
  OpCost Cost(const OpContext& context) const override {
    // On average half of the cache is full.
    const double keys = 0.5 * static_cast<double>(context.operands[1].shape[1]);
    OpCost cost = CostOf(context, 4 * keys, OutputOf(context).num_elements());
    // Only what is full is read, and little is written.
    cost.bytes = 0.5 * static_cast<double>(context.operands[1].num_bytes());
    for (size_t i = 0; i < context.operands.size(); ++i) {
      const bool is_token = i == 0 || i > 2;
      if (is_token) cost.bytes += 2.0 * static_cast<double>(context.operands[i].num_bytes());
    }
    return cost;
  }

 private:
  // Of the cache, whose rows need replication.
  static TensorFactors AddCacheFactors(ShardingRule& rule, const Shape& cache, const DimFactors& b,
                                       const DimFactors& heads, const DimFactors& d) {
    const DimFactors rows = {rule.AddFactor(cache[1], FactorKind::kNeedReplication)};
    const DimFactors two = {rule.AddFactor(cache[2], FactorKind::kNeedReplication)};
    return {b, rows, two, heads, d};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCachedAttention() { return std::make_unique<CachedAttentionOp>(); }

}  // namespace penstock::graph::ops
