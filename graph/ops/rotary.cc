// rotary(x[b, s, ..., d], [start i[b]]) {base=10000, scaling="none", factor, low_factor,
// high_factor, context, inverse=false} -> T: rotary position embedding (Su et al.,
// arXiv:2104.09864). The pair of elements i and i + d / 2 of each row is a point, which
// is rotated by the angle p base^(-2 i / d), where p is the position of the row: its global index
// in s, counted from start[b]. With `inverse` it is rotated back, which is the gradient. `scaling`
// is "linear" or "llama3" for angles that are made smaller: see rotary_scaling.h, also for the
// attributes that go with it.
//
// The pairs are those of the halves of a row, as in the weights that are published for Llama; the
// paper pairs neighbours.

#include <cmath>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/ops/common.h"
#include "graph/rotary_scaling.h"

namespace penstock::graph::ops {
namespace {

class RotaryOp : public Op {
 public:
  std::string_view name() const override { return "rotary"; }
  int min_operands() const override { return 1; }
  int max_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    return {{"base", Kind::kDouble},       {"inverse", Kind::kBool},
            {"scaling", Kind::kString},    {"factor", Kind::kDouble},
            {"low_factor", Kind::kDouble}, {"high_factor", Kind::kDouble},
            {"context", Kind::kInt}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 3));
    const Shape& x = context.operands[0].shape;
    if (x.back() % 2 != 0) {
      return Invalid("the last dimension of ", Describe(context, 0), " is odd: it holds pairs");
    }
    const double base = context.attributes.GetDouble("base", 1e4);
    if (!(base > 0 && std::isfinite(base))) return Invalid("base ", base, " is not positive");
    const RotaryScaling scaling = RotaryScalingOf(context.attributes);
    if (scaling.type == "dynamic") {
      return Invalid(
          "scaling \"dynamic\" depends on more than the position; expected \"none\", "
          "\"linear\" or \"llama3\"");
    }
    if (const absl::Status status = CheckRotaryScaling(scaling, 0, ""); !status.ok()) {
      return Invalid(ToStd(status.message()));
    }
    if (context.operands.size() > 1) {
      RETURN_IF_ERROR(CheckInteger(context, 1));
      RETURN_IF_ERROR(CheckOperandShape(context, 1, {x[0]}, "one for each sequence of operand 0"));
    }
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    TensorFactors x = AddFactors(rule, WithoutLast(context.operands[0].shape));
    x.push_back({rule.AddFactor(context.operands[0].shape.back(), FactorKind::kNeedReplication)});
    rule.operands = {x};
    if (context.operands.size() > 1) rule.operands.push_back({x[0]});
    rule.results = {x};
    rule.linear = {{0}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    std::vector<ValueId> operands(node.operands.begin(), node.operands.end());
    operands[0] = grads[0];
    Attributes attributes = node.attributes;
    attributes.Set("inverse", !node.attributes.GetBool("inverse", false));
    std::vector<ValueId> gradients(node.operands.size(), kNoValue);
    gradients[0] = builder.Add("rotary", operands, attributes);
    return gradients;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 3, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeRotary() { return std::make_unique<RotaryOp>(); }

}  // namespace penstock::graph::ops
