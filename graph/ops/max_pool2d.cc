// max_pool2d(x[n, c, h, w]) {window=[h, w], strides=window, padding=[0, 0]} -> y[n, c, oh, ow]: the
// largest element of each window. Padding does not count. A window with a NaN gives NaN.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class MaxPool2dOp : public Op {
 public:
  std::string_view name() const override { return "max_pool2d"; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override { return PoolingAttributes(); }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckImages(context, 0));
    ASSIGN_OR_RETURN(const TensorType y, PoolingResult(context, context.operands[0]));
    return std::vector<TensorType>{y};
  }
  ShardingRule Rule(const OpContext& context) const override { return PoolingRule(context); }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    return std::vector<ValueId>{
        builder.Add("max_pool2d_grad", {node.operands[0], grads[0]}, node.attributes)};
  }
  OpCost Cost(const OpContext& context) const override {
    return PoolingCost(context, context.operands[0], context.results[0]);
  }
};

}  // namespace

std::unique_ptr<const Op> MakeMaxPool2d() { return std::make_unique<MaxPool2dOp>(); }

}  // namespace penstock::graph::ops
