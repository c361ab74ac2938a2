// rms_norm_weight_grad(dy, x, rstd) {dtype} -> dscale: the sum of dy x rstd over all dimensions but
// the last.

#include "base/status_macros.h"
#include "graph/ops/norm.h"

namespace penstock::graph::ops {
namespace {

class RmsNormWeightGradOp : public Op {
 public:
  std::string_view name() const override { return "rms_norm_weight_grad"; }
  int min_operands() const override { return 3; }
  std::vector<AttrSpec> attributes() const override { return {kSumDType}; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNormOperand(context, 0));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    RETURN_IF_ERROR(CheckStatistics(context, 2, 0));
    TensorType features = FeaturesOf(context.operands[0]);
    ASSIGN_OR_RETURN(features.dtype, SumDTypeOf(context));
    return std::vector<TensorType>{features};
  }
  ShardingRule Rule(const OpContext& context) const override { return WeightGradRule(context); }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 3, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeRmsNormWeightGrad() {
  return std::make_unique<RmsNormWeightGradOp>();
}

}  // namespace penstock::graph::ops
