// avg_pool2d(x[n, c, h, w]) {window=[h, w], strides=window, padding=[0, 0]} -> y[n, c, oh, ow]: the
// mean of each window, in which padding counts as zeros (as in PyTorch by default).

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class AvgPool2dOp : public Op {
 public:
  std::string_view name() const override { return "avg_pool2d"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override { return PoolingAttributes(); }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckImages(context, 0));
    ASSIGN_OR_RETURN(const TensorType y, PoolingResult(context, context.operands[0]));
    return std::vector<TensorType>{y};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = PoolingRule(context);
    rule.linear = {{0}};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    Attributes attributes = node.attributes;
    attributes.Set("plane", AttrValue::Ints(PlaneOf(builder.type(node.operands[0]).shape)));
    return std::vector<ValueId>{builder.Add("avg_pool2d_grad", {grads[0]}, attributes)};
  }
  OpCost Cost(const OpContext& context) const override {
    return PoolingCost(context, context.operands[0], context.results[0]);
  }
};

}  // namespace

std::unique_ptr<const Op> MakeAvgPool2d() { return std::make_unique<AvgPool2dOp>(); }

}  // namespace penstock::graph::ops
