// combine(y[e, ..., c, d], slots i[..., s, k], [weights[..., s, k]]) -> [..., s, d]: for every
// token the sum over the k places that it went to, each times its weight. See routing.h.

#include "base/status_macros.h"
#include "graph/ops/routing.h"

namespace penstock::graph::ops {
namespace {

class CombineOp : public Op {
 public:
  std::string_view name() const override { return "combine"; }
  int min_operands() const override { return 2; }
  int max_operands() const override { return 3; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckPlaces(context, 0));
    RETURN_IF_ERROR(CheckSlotsOfPlaces(context, 1, 0));
    if (context.operands.size() > 2) RETURN_IF_ERROR(CheckWeights(context, 2, 1, 0));
    Shape shape = WithoutLast(context.operands[1].shape);
    shape.push_back(context.operands[0].shape.back());
    return std::vector<TensorType>{{context.operands[0].dtype, shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& y = context.operands[0].shape;
    const Shape& slots = context.operands[1].shape;
    ShardingRule rule;
    const RoutingFactors factors = AddRoutingFactors(rule,
                                                     {.groups = WithoutLast(WithoutLast(slots)),
                                                      .s = slots[slots.size() - 2],
                                                      .k = slots.back(),
                                                      .d = y.back(),
                                                      .e = y[0],
                                                      .c = y[y.size() - 2]},
                                                     "kec");
    rule.operands = {factors.places, factors.slots};
    rule.linear = {{0}};
    if (context.operands.size() > 2) {
      rule.operands.push_back(factors.slots);
      rule.linear.push_back({2});
    }
    rule.results = {factors.tokens};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId y = node.operands[0];
    const ValueId slots = node.operands[1];
    const Shape places = builder.type(y).shape;
    std::vector<ValueId> operands(node.operands.begin(), node.operands.end());
    operands[0] = grads[0];
    std::vector<ValueId> gradients = {
        builder.Add("dispatch", operands,
                    {{"experts", places[0]}, {"capacity", places[places.size() - 2]}}),
        kNoValue};
    if (operands.size() > 2) {
      gradients.push_back(builder.Add("combine_weight_grad", {grads[0], y, slots}));
    }
    return gradients;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeCombine() { return std::make_unique<CombineOp>(); }

}  // namespace penstock::graph::ops
