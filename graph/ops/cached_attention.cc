// cached_attention(qkv[b, s, 3, h, d], cache[b, c, 2, h, d], start i[b]) -> cache'[b, c, 2, h, d],
// o[b, s, h, d]: the next s tokens of b sequences, of which the cache holds the keys and values
// before them. Keys and values of token i are put into row start + i of the cache, and its query
// sees the rows up to that one. Rows from c on are dropped: their results are zero, so that start =
// c leaves a sequence as it is. A start outside [0, c] is an error when it runs.

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

class CachedAttentionOp : public Op {
 public:
  std::string_view name() const override { return "cached_attention"; }
  int min_operands() const override { return 3; }
  int num_results(const OpContext&) const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckQkvOperand(context));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    RETURN_IF_ERROR(CheckRank(context, 1, 5));
    const Shape& qkv = context.operands[0].shape;
    const Shape& cache = context.operands[1].shape;
    RETURN_IF_ERROR(CheckOperandShape(context, 1, {qkv[0], cache[1], 2, qkv[3], qkv[4]},
                                      "keys and values as in operand 0"));
    RETURN_IF_ERROR(CheckInteger(context, 2));
    RETURN_IF_ERROR(CheckOperandShape(context, 2, {qkv[0]}, "one for each sequence"));
    return std::vector<TensorType>{context.operands[1], QkvOutput(context)};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const QkvFactors f = AddQkvFactors(rule, context);
    const Shape& cache = context.operands[1].shape;
    const DimFactors rows = {rule.AddFactor(cache[1], FactorKind::kNeedReplication)};
    const DimFactors two = {rule.AddFactor(cache[2], FactorKind::kNeedReplication)};
    const TensorFactors cached = {f.qkv[0], rows, two, f.qkv[3], f.qkv[4]};
    rule.operands = {f.qkv, cached, {f.qkv[0]}};
    rule.results = {cached, f.output};
    return rule;
  }
  std::vector<int> updated_operands() const override { return {1}; }
  OpCost Cost(const OpContext& context) const override {
    // On average half of the cache is full.
    const double keys = 0.5 * static_cast<double>(context.operands[1].shape[1]);
    OpCost cost = CostOf(context, 4 * keys, QkvOutput(context).num_elements());
    // Only what is full is read, and little is written.
    cost.bytes = 0.5 * static_cast<double>(context.operands[1].num_bytes()) +
                 2.0 * static_cast<double>(context.operands[0].num_bytes());
    return cost;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCachedAttention() { return std::make_unique<CachedAttentionOp>(); }

}  // namespace penstock::graph::ops
