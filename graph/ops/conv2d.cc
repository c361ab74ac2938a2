// conv2d(x[n, c, h, w], w[o, c / groups, kh, kw]) {strides=[1, 1], padding=[0, 0], dilation=[1, 1],
// groups=1} -> y[n, o, oh, ow]: cross-correlation, as convolution is understood in neural networks.
// Group g of the output channels sees group g of the input channels. Padding reads as zero. Split
// input channels leave a partial sum.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class Conv2dOp : public Op {
 public:
  std::string_view name() const override { return "conv2d"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override { return ConvolutionAttributes(); }
  InferredTypes InferTypes(const OpContext& context) const override {
    for (const int operand : {0, 1}) RETURN_IF_ERROR(CheckImages(context, operand));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    ASSIGN_OR_RETURN(const TensorType y,
                     ConvolutionResult(context, context.operands[0], context.operands[1]));
    return std::vector<TensorType>{y};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ConvolutionRule(ConvolutionPass::kResult, context.operands[0], context.operands[1],
                           context.results[0]);
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId x = node.operands[0];
    const ValueId w = node.operands[1];
    Attributes of_input = node.attributes;
    of_input.Set("plane", AttrValue::Ints(PlaneOf(builder.type(x).shape)));
    Attributes of_weight = node.attributes;
    of_weight.Set("kernel", AttrValue::Ints(PlaneOf(builder.type(w).shape)));
    return std::vector<ValueId>{builder.Add("conv2d_input_grad", {w, grads[0]}, of_input),
                                builder.Add("conv2d_weight_grad", {x, grads[0]}, of_weight)};
  }
  OpCost Cost(const OpContext& context) const override {
    return ConvolutionCost(context, context.operands[1], context.results[0]);
  }
};

}  // namespace

std::unique_ptr<const Op> MakeConv2d() { return std::make_unique<Conv2dOp>(); }

}  // namespace penstock::graph::ops
