// max_pool2d_grad(x[n, c, h, w], dy[n, c, oh, ow]) {...} -> dx: the gradient of max_pool2d with
// these attributes. dy goes to the first of the largest elements of its window, by rows, as in
// PyTorch.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class MaxPool2dGradOp : public Op {
 public:
  std::string_view name() const override { return "max_pool2d_grad"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return PoolingAttributes(); }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckImages(context, 0));
    ASSIGN_OR_RETURN(const TensorType y, PoolingResult(context, context.operands[0]));
    RETURN_IF_ERROR(CheckOperandType(context, 1, y, "the result of pooling operand 0"));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = PoolingRule(context);
    rule.linear = {{1}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return PoolingCost(context, context.operands[0], context.operands[1]);
  }
};

}  // namespace

std::unique_ptr<const Op> MakeMaxPool2dGrad() { return std::make_unique<MaxPool2dGradOp>(); }

}  // namespace penstock::graph::ops
