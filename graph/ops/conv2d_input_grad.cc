// conv2d_input_grad(w[o, c / groups, kh, kw], dy[n, o, oh, ow]) {plane=[h, w], ...} -> dx[n, c, h,
// w]: the gradient of conv2d with these attributes over an image of h x w. Split output channels
// leave a partial sum.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class Conv2dInputGradOp : public Op {
 public:
  std::string_view name() const override { return "conv2d_input_grad"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    std::vector<AttrSpec> specs = ConvolutionAttributes();
    specs.push_back({"plane", Kind::kInts, /*is_required=*/true});
    return specs;
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    for (const int operand : {0, 1}) RETURN_IF_ERROR(CheckImages(context, operand));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    ASSIGN_OR_RETURN(const auto plane, ReadPlane(context.attributes, "plane"));
    const TensorType& w = context.operands[0];
    const TensorType& dy = context.operands[1];
    const int64_t groups = context.attributes.GetInt("groups", 1);
    int64_t channels = 0;
    if (__builtin_mul_overflow(w.shape[1], groups, &channels)) {
      return Invalid("attribute 'groups' is ", groups, ", which is too large");
    }
    const TensorType x = {w.dtype, {dy.shape[0], channels, plane[0], plane[1]}};
    ASSIGN_OR_RETURN(const TensorType y, ConvolutionResult(context, x, w));
    RETURN_IF_ERROR(CheckOperandType(context, 1, y, "the result of the convolution by operand 0"));
    return std::vector<TensorType>{x};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ConvolutionRule(ConvolutionPass::kInputGradient, context.results[0], context.operands[0],
                           context.operands[1]);
  }
  OpCost Cost(const OpContext& context) const override {
    return ConvolutionCost(context, context.operands[0], context.operands[1]);
  }
};

}  // namespace

std::unique_ptr<const Op> MakeConv2dInputGrad() { return std::make_unique<Conv2dInputGradOp>(); }

}  // namespace penstock::graph::ops
