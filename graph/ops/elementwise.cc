#include "graph/ops/elementwise.h"

#include <utility>

#include "base/status_macros.h"

namespace penstock::graph::ops {
namespace {

class UnaryOp : public Op {
 public:
  explicit UnaryOp(UnaryDef def) : def_(def) {}
  std::string_view name() const override { return def_.name; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    if (def_.has_approximate) return {{"approximate", Kind::kString}};
    return {};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(def_.takes_integers ? CheckNumber(context, 0) : CheckFloat(context, 0));
    if (def_.has_approximate) RETURN_IF_ERROR(CheckApproximate(context.attributes));
    return std::vector<TensorType>{context.operands[0]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    if (def_.is_linear) rule.linear = {{0}};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return def_.gradient != nullptr; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    return std::vector<ValueId>{def_.gradient(builder, node, grads[0])};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, def_.flops, context.operands[0].num_elements());
  }

 private:
  const UnaryDef def_;
};

class BinaryOp : public Op {
 public:
  explicit BinaryOp(BinaryDef def) : def_(std::move(def)) {}
  std::string_view name() const override { return def_.name; }
  OpRole role() const override { return def_.role; }
  int min_operands() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    RETURN_IF_ERROR(CheckNumber(context, 0));
    ASSIGN_OR_RETURN(Shape shape, CommonShape(context));
    return std::vector<TensorType>{{context.operands[0].dtype, std::move(shape)}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule = ShardingRule::Elementwise(context.operands, context.results);
    if (!def_.rounds_integers || IsFloat(context.operands[0].dtype)) rule.linear = def_.linear;
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    std::vector<ValueId> gradients = def_.gradient(builder, node, grads[0]);
    for (size_t i = 0; i < gradients.size(); ++i) {
      gradients[i] = SumToOperand(builder, gradients[i], node.operands[i]);
    }
    return gradients;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, def_.flops, context.results[0].num_elements());
  }

 private:
  const BinaryDef def_;
};

class ComparisonOp : public Op {
 public:
  explicit ComparisonOp(std::string_view name) : name_(name) {}
  std::string_view name() const override { return name_; }
  int min_operands() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    ASSIGN_OR_RETURN(Shape shape, CommonShape(context));
    return std::vector<TensorType>{{DType::kBool, std::move(shape)}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ShardingRule::Elementwise(context.operands, context.results);
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 1, context.results[0].num_elements());
  }

 private:
  const std::string_view name_;
};

}  // namespace

std::unique_ptr<const Op> MakeUnary(UnaryDef def) { return std::make_unique<UnaryOp>(def); }

std::unique_ptr<const Op> MakeBinary(BinaryDef def) {
  return std::make_unique<BinaryOp>(std::move(def));
}

std::unique_ptr<const Op> MakeComparison(std::string_view name) {
  return std::make_unique<ComparisonOp>(name);
}

absl::StatusOr<Shape> CommonShape(const OpContext& context) {
  int widest = 0;
  for (int i = 1; i < static_cast<int>(context.operands.size()); ++i) {
    const Shape& shape = context.operands[i].shape;
    if (shape.empty()) continue;
    if (context.operands[widest].shape.empty()) {
      widest = i;
    } else if (shape != context.operands[widest].shape) {
      return Invalid("the shapes differ: ", Describe(context, widest), ", ", Describe(context, i),
                     " (only a scalar is broadcast)");
    }
  }
  return context.operands[widest].shape;
}

}  // namespace penstock::graph::ops
