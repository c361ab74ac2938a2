// layer_norm_weight_grad(dy, x, mean, rstd) {dtype} -> dscale, dbias: the sums of dy (x - mean)
// rstd and of dy over all dimensions but the last.

#include "base/status_macros.h"
#include "graph/ops/norm.h"

namespace penstock::graph::ops {
namespace {

class LayerNormWeightGradOp : public Op {
 public:
  std::string_view name() const override { return "layer_norm_weight_grad"; }
  int min_operands() const override { return 4; }
  std::vector<AttrSpec> attributes() const override { return {kSumDType}; }
  int num_results(const OpContext&) const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNormOperand(context, 0));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0));
    RETURN_IF_ERROR(CheckStatistics(context, 2, 0));
    RETURN_IF_ERROR(CheckStatistics(context, 3, 0));
    TensorType features = FeaturesOf(context.operands[0]);
    ASSIGN_OR_RETURN(features.dtype, SumDTypeOf(context));
    return std::vector<TensorType>{features, features};
  }
  ShardingRule Rule(const OpContext& context) const override { return WeightGradRule(context); }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 5, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeLayerNormWeightGrad() {
  return std::make_unique<LayerNormWeightGradOp>();
}

}  // namespace penstock::graph::ops
