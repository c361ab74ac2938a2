// avg_pool2d_grad(dy[n, c, oh, ow]) {plane=[h, w], ...} -> dx[n, c, h, w]: the gradient of
// avg_pool2d with these attributes over an image of h x w.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class AvgPool2dGradOp : public Op {
 public:
  std::string_view name() const override { return "avg_pool2d_grad"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    std::vector<AttrSpec> specs = PoolingAttributes();
    specs.push_back({"plane", Kind::kInts, /*is_required=*/true});
    return specs;
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckImages(context, 0));
    ASSIGN_OR_RETURN(const auto plane, ReadPlane(context.attributes, "plane"));
    const TensorType& dy = context.operands[0];
    const TensorType x = {dy.dtype, {dy.shape[0], dy.shape[1], plane[0], plane[1]}};
    ASSIGN_OR_RETURN(const TensorType y, PoolingResult(context, x));
    RETURN_IF_ERROR(CheckOperandType(context, 0, y, "the result of the pooling"));
    return std::vector<TensorType>{x};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = PoolingRule(context);
    rule.linear = {{0}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return PoolingCost(context, context.results[0], context.operands[0]);
  }
};

}  // namespace

std::unique_ptr<const Op> MakeAvgPool2dGrad() { return std::make_unique<AvgPool2dGradOp>(); }

}  // namespace penstock::graph::ops
