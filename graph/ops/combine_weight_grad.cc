// combine_weight_grad(x[..., s, d], y[e, ..., c, d], slots i[..., s, k]) -> [..., s, k]: the
// product of every token with each place that it went to; 0 for none. It is the gradient of the
// weights of combine (x is that of the result) and of dispatch (y is that of the result). See
// routing.h.

#include "base/status_macros.h"
#include "graph/ops/routing.h"

namespace penstock::graph::ops {
namespace {

class CombineWeightGradOp : public Op {
 public:
  std::string_view name() const override { return "combine_weight_grad"; }
  int min_operands() const override { return 3; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckTokens(context, 0));
    RETURN_IF_ERROR(CheckPlacesOf(context, 1, 0));
    RETURN_IF_ERROR(CheckSlotsOfTokens(context, 2, 0));
    return std::vector<TensorType>{{context.operands[0].dtype, context.operands[2].shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    const Shape& y = context.operands[1].shape;
    ShardingRule rule;
    const RoutingFactors factors = AddRoutingFactors(rule,
                                                     {.groups = WithoutLast(WithoutLast(x)),
                                                      .s = x[x.size() - 2],
                                                      .k = context.operands[2].shape.back(),
                                                      .d = x.back(),
                                                      .e = y[0],
                                                      .c = y[y.size() - 2]},
                                                     "dec");
    rule.operands = {factors.tokens, factors.places, factors.slots};
    rule.results = {factors.slots};
    rule.linear = {{0}, {1}};
    return rule;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCombineWeightGrad() {
  return std::make_unique<CombineWeightGradOp>();
}

}  // namespace penstock::graph::ops
