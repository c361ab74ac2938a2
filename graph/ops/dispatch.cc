// dispatch(x[..., s, d], slots i[..., s, k], [weights[..., s, k]]) {experts, capacity} ->
// [experts, ..., capacity, d]: every place holds the token that goes there, times its weight; zeros
// if there is none, and the sum if there are several. See routing.h.

#include "base/status_macros.h"
#include "graph/ops/routing.h"

namespace penstock::graph::ops {
namespace {

class DispatchOp : public Op {
 public:
  std::string_view name() const override { return "dispatch"; }
  int min_operands() const override { return 2; }
  int max_operands() const override { return 3; }
  std::vector<AttrSpec> attributes() const override { return PlaceAttributes(); }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckPlaceAttributes(context.attributes));
    RETURN_IF_ERROR(CheckTokens(context, 0));
    RETURN_IF_ERROR(CheckSlotsOfTokens(context, 1, 0));
    if (context.operands.size() > 2) RETURN_IF_ERROR(CheckWeights(context, 2, 1, 0));
    const TensorType& x = context.operands[0];
    Shape shape = WithoutLast(WithoutLast(x.shape));
    shape.insert(shape.begin(), NumExperts(context.attributes));
    shape.insert(shape.end(), {Capacity(context.attributes), x.shape.back()});
    RETURN_IF_ERROR(CheckShape(shape));
    return std::vector<TensorType>{{x.dtype, shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    ShardingRule rule;
    const RoutingFactors factors = AddRoutingFactors(rule,
                                                     {.groups = WithoutLast(WithoutLast(x)),
                                                      .s = x[x.size() - 2],
                                                      .k = context.operands[1].shape.back(),
                                                      .d = x.back(),
                                                      .e = NumExperts(context.attributes),
                                                      .c = Capacity(context.attributes)},
                                                     "sk");
    rule.operands = {factors.tokens, factors.slots};
    rule.linear = {{0}};
    if (context.operands.size() > 2) {
      rule.operands.push_back(factors.slots);
      rule.linear.push_back({2});
    }
    rule.results = {factors.places};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId x = node.operands[0];
    const ValueId slots = node.operands[1];
    std::vector<ValueId> operands(node.operands.begin(), node.operands.end());
    operands[0] = grads[0];
    std::vector<ValueId> gradients = {builder.Add("combine", operands), kNoValue};
    if (operands.size() > 2) {
      gradients.push_back(builder.Add("combine_weight_grad", {x, grads[0], slots}));
    }
    return gradients;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeDispatch() { return std::make_unique<DispatchOp>(); }

}  // namespace penstock::graph::ops
