// roll(x) {axis, shift}: y[i] = x[(i - shift) mod n] along the axis, which has n elements. With g =
// gcd(shift, n) the axis is n / g parts that move round. Split into those over devices, each device
// passes its part to another one (lower-reshards makes it a permute); else the axis is needed
// whole.

#include <numeric>

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class RollOp : public Op {
 public:
  std::string_view name() const override { return "roll"; }
  OpRole role() const override { return OpRole::kRoll; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"axis", Kind::kInt, /*is_required=*/true},
            {"shift", Kind::kInt, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(NormalizeOperandAxis(context, context.attributes.GetInt("axis", 0)).status());
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& x = context.operands[0].shape;
    const size_t axis = AxisOf(context.attributes, 0, static_cast<int>(x.size()));
    ShardingRule rule;
    TensorFactors dims;
    for (size_t d = 0; d < x.size(); ++d) {
      const int64_t part = d == axis ? std::gcd(context.attributes.GetInt("shift", 0), x[d]) : x[d];
      if (part == x[d]) {
        dims.push_back({rule.AddFactor(x[d])});
      } else {
        const int parts = rule.AddFactor(x[d] / part, FactorKind::kRoll);
        dims.push_back({parts, rule.AddFactor(part)});
      }
    }
    rule.operands = {dims};
    rule.results = {dims};
    rule.linear = {{0}};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    Attributes attributes = node.attributes;
    attributes.Set("shift", -node.attributes.GetInt("shift", 0));
    return std::vector<ValueId>{builder.Add("roll", {grads[0]}, attributes)};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeRoll() { return std::make_unique<RollOp>(); }

}  // namespace penstock::graph::ops
