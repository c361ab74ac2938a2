// block_attention(q[b, s, h, d], kv[b, t, 2, g, d], [o[b, s, h, d], lse[b, h, s]]) {block, shift=0,
// causal=false} -> o[b, s, h, d], lse[b, h, s]: one step of ring attention (Liu et al.,
// arXiv:2310.01889), by what attention over one split of queries and keys is decomposed into.
//
// The keys are t / block parts, and so are the queries; kv has been rolled by `shift` parts. Part p
// of the queries attends to part p of kv, which is part p - shift of the sequence, and the result
// is merged with what the queries have of the parts before: o and lse, the result of the step
// before. With causal there are as many queries as keys, and a part of keys behind the queries
// costs nothing.

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

class BlockAttentionOp : public Op {
 public:
  std::string_view name() const override { return "block_attention"; }
  int min_operands() const override { return 2; }
  int max_operands() const override { return 4; }
  int num_results(const OpContext&) const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return BlockAttributes(); }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckBlockOperands(context));
    const TensorType o = {StatisticsDType(context.operands[0].dtype), context.operands[0].shape};
    const TensorType lse = BlockLogSumExp(context);
    if (context.operands.size() == 3) return Invalid("o comes with its log-sum-exp");
    if (context.operands.size() == 4) {
      RETURN_IF_ERROR(CheckOperandType(context, 2, o, "that of the queries"));
      RETURN_IF_ERROR(CheckLogSumExp(context, 3, lse));
    }
    return std::vector<TensorType>{o, lse};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const BlockFactors f = AddBlockFactors(rule, context, FactorKind::kPassThrough);
    rule.operands = {f.query, f.key, f.query, f.lse};
    rule.operands.resize(context.operands.size());
    rule.results = {f.query, f.lse};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, BlockFlops(context, 4), context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBlockAttention() { return std::make_unique<BlockAttentionOp>(); }

}  // namespace penstock::graph::ops
