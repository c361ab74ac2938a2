// sgd(w, g, lr f[], scale f[][, buffer]) {momentum=0, weight_decay=0, nesterov=false} -> w'[,
// buffer']: one step of gradient descent; g is multiplied by scale first. Momentum needs the
// buffer. g and the buffer have the type of w; lr and scale are f32, f64 or of w's element type. A
// negative scale says that g is of no use: the results are w and the buffer.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

constexpr std::string_view kSgdNames[] = {"w", "g", "lr", "scale", "buffer"};

class SgdOp : public Op {
 public:
  std::string_view name() const override { return "sgd"; }
  int min_operands() const override { return 4; }
  int max_operands() const override { return 5; }
  std::vector<AttrSpec> attributes() const override {
    return {
        {"momentum", Kind::kDouble}, {"weight_decay", Kind::kDouble}, {"nesterov", Kind::kBool}};
  }
  int num_results(const OpContext& context) const override {
    return context.operands.size() == 5 ? 2 : 1;
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckSameType(context, 1, 0, kSgdNames));
    for (int i : {2, 3}) RETURN_IF_ERROR(CheckFloatScalar(context, i, 0, kSgdNames));
    if (context.operands.size() == 4) {
      if (context.attributes.GetDouble("momentum", 0) != 0) {
        return Invalid("momentum needs a buffer as operand 4");
      }
      return std::vector<TensorType>{context.operands[0]};
    }
    RETURN_IF_ERROR(CheckSameType(context, 4, 0, kSgdNames));
    return std::vector<TensorType>{context.operands[0], context.operands[4]};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const TensorFactors all = AddFactors(rule, context.operands[0].shape);
    for (int i = 0; i < static_cast<int>(context.operands.size()); ++i) {
      rule.operands.push_back(i == 2 || i == 3 ? TensorFactors() : all);
    }
    rule.results.assign(context.results.size(), all);
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  std::vector<int> updated_operands() const override { return {0, 4}; }
  OpCost Cost(const OpContext& context) const override {
    const bool is_nesterov = context.attributes.GetBool("nesterov", false);
    const double flops = context.operands.size() == 4 ? 5 : is_nesterov ? 12 : 7;
    return CostOf(context, flops, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeSgd() { return std::make_unique<SgdOp>(); }

}  // namespace penstock::graph::ops
