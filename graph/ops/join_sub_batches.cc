// join_sub_batches(x0, x1, ...): the sub-batches of one tensor (graph/sharding.h) as the tile that
// they make up. They lie side by side in it, so nothing is copied.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class JoinSubBatchesOp : public Op {
 public:
  std::string_view name() const override { return "join_sub_batches"; }
  OpRole role() const override { return OpRole::kJoinSubBatches; }
  int min_operands() const override { return 1; }
  int max_operands() const override { return -1; }
  InferredTypes InferTypes(const OpContext& context) const override {
    for (int i = 1; i < static_cast<int>(context.operands.size()); ++i) {
      RETURN_IF_ERROR(CheckSameDType(context, i, 0));
      RETURN_IF_ERROR(
          CheckOperandShape(context, i, context.operands[0].shape, "that of operand 0"));
    }
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ShardingRule::Elementwise(context.operands, context.results);
  }
  OpCost Cost(const OpContext& /*context*/) const override { return {}; }
};

}  // namespace

std::unique_ptr<const Op> MakeJoinSubBatches() { return std::make_unique<JoinSubBatchesOp>(); }

}  // namespace penstock::graph::ops
