// block_attention_grad(q, kv, o, lse, do) {block, shift=0, causal=false} -> dq, dkv: the part of
// the gradients that comes from one step of ring attention (block_attention). o and lse are those
// of all keys. The sum of dq over the steps is the gradient of q, and that of dkv, rolled back by
// `shift` parts, the gradient of kv.

#include "base/status_macros.h"
#include "graph/ops/attention_common.h"

namespace penstock::graph::ops {
namespace {

class BlockAttentionGradOp : public Op {
 public:
  std::string_view name() const override { return "block_attention_grad"; }
  int min_operands() const override { return 5; }
  int num_results(const OpContext&) const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return BlockAttributes(); }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckBlockOperands(context));
    RETURN_IF_ERROR(CheckSameType(context, 2, 0));
    RETURN_IF_ERROR(CheckLogSumExp(context, 3, BlockLogSumExp(context)));
    RETURN_IF_ERROR(CheckSameType(context, 4, 0));
    const DType dtype = StatisticsDType(context.operands[0].dtype);
    return std::vector<TensorType>{{dtype, context.operands[0].shape},
                                   {dtype, context.operands[1].shape}};
  }
  // The queries of a block are a sum for dkv.
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const BlockFactors f = AddBlockFactors(rule, context, FactorKind::kReduction);
    rule.operands = {f.query, f.key, f.query, f.lse, f.query};
    rule.results = {f.query, f.key};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, BlockFlops(context, 10), context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeBlockAttentionGrad() {
  return std::make_unique<BlockAttentionGradOp>();
}

}  // namespace penstock::graph::ops
