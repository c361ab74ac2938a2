#include "graph/ops/identity.h"

#include <utility>

namespace penstock::graph::ops {
namespace {

class IdentityOp : public Op {
 public:
  explicit IdentityOp(IdentityDef def) : def_(std::move(def)) {}
  std::string_view name() const override { return def_.name; }
  OpRole role() const override { return def_.role; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override { return def_.attributes; }
  InferredTypes InferTypes(const OpContext& context) const override {
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    rule.linear = {{0}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return def_.is_differentiable; }
  Values Gradient(GraphBuilder& /*builder*/, const Node& /*node*/,
                  absl::Span<const ValueId> grads) const override {
    return std::vector<ValueId>{grads[0]};
  }
  OpCost Cost(const OpContext& context) const override {
    const auto operand = static_cast<double>(context.operands[0].num_bytes());
    const auto result = static_cast<double>(context.results[0].num_bytes());
    switch (def_.work) {
      case IdentityWork::kMove:
        return {.bytes = operand + result};
      case IdentityWork::kTakePart:
        return {.bytes = 2 * result};
      case IdentityWork::kPlacePart:
        return {.bytes = 2 * operand};
      case IdentityWork::kFold:
        return {.flops = static_cast<double>(context.results[0].num_elements()),
                .bytes = operand + 2 * result};
    }
    return {};
  }

 private:
  const IdentityDef def_;
};

}  // namespace

std::unique_ptr<const Op> MakeIdentity(IdentityDef def) {
  return std::make_unique<IdentityOp>(std::move(def));
}

}  // namespace penstock::graph::ops
