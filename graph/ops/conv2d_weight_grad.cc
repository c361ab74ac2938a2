// conv2d_weight_grad(x[n, c, h, w], dy[n, o, oh, ow]) {kernel=[kh, kw], dtype, ...} -> dw[o, c /
// groups, kh, kw]: the gradient of conv2d with these attributes. A split batch leaves a partial
// sum.

#include "base/status_macros.h"
#include "graph/ops/image.h"

namespace penstock::graph::ops {
namespace {

class Conv2dWeightGradOp : public Op {
 public:
  std::string_view name() const override { return "conv2d_weight_grad"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    std::vector<AttrSpec> specs = ConvolutionAttributes();
    specs.push_back({"kernel", Kind::kInts, /*is_required=*/true});
    specs.push_back(kSumDType);
    return specs;
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    for (const int operand : {0, 1}) RETURN_IF_ERROR(CheckImages(context, operand));
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    ASSIGN_OR_RETURN(const auto kernel, ReadPlane(context.attributes, "kernel"));
    const TensorType& x = context.operands[0];
    const int64_t groups = context.attributes.GetInt("groups", 1);
    if (groups < 1) return Invalid("attribute 'groups' is ", groups, "; expected at least 1");
    TensorType w = {x.dtype,
                    {context.operands[1].shape[1], x.shape[1] / groups, kernel[0], kernel[1]}};
    ASSIGN_OR_RETURN(const TensorType y, ConvolutionResult(context, x, w));
    RETURN_IF_ERROR(CheckOperandType(context, 1, y, "the result of the convolution of operand 0"));
    ASSIGN_OR_RETURN(w.dtype, SumDTypeOf(context));
    return std::vector<TensorType>{w};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ConvolutionRule(ConvolutionPass::kWeightGradient, context.operands[0],
                           context.results[0], context.operands[1]);
  }
  OpCost Cost(const OpContext& context) const override {
    return ConvolutionCost(context, context.results[0], context.operands[1]);
  }
};

}  // namespace

std::unique_ptr<const Op> MakeConv2dWeightGrad() { return std::make_unique<Conv2dWeightGradOp>(); }

}  // namespace penstock::graph::ops
