// embedding(table[v, d], ids i[...]) -> [..., d]: rows of the table. A tile of a split v gives
// zeros for ids outside it, so that the parts add up; an id outside [0, v) is an error when it
// runs.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class EmbeddingOp : public Op {
 public:
  std::string_view name() const override { return "embedding"; }
  int min_operands() const override { return 2; }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckNumber(context, 0));
    RETURN_IF_ERROR(CheckRank(context, 0, 2));
    RETURN_IF_ERROR(CheckInteger(context, 1));
    TensorType type{context.operands[0].dtype, context.operands[1].shape};
    type.shape.push_back(context.operands[0].shape[1]);
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const DimFactors v = {rule.AddFactor(context.operands[0].shape[0], FactorKind::kReduction)};
    const DimFactors d = {rule.AddFactor(context.operands[0].shape[1])};
    const TensorFactors ids = AddFactors(rule, context.operands[1].shape);
    rule.operands = {{v, d}, ids};
    rule.results = {ids};
    rule.results[0].push_back(d);
    rule.linear = {{0}};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const int64_t rows = builder.type(node.operands[0]).shape[0];
    return std::vector<ValueId>{
        builder.Add("embedding_grad", {grads[0], node.operands[1]}, {{"rows", rows}}), kNoValue};
  }
  OpCost Cost(const OpContext& context) const override {
    return {.flops = 0,
            .bytes = 2.0 * context.results[0].num_bytes() + context.operands[1].num_bytes()};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEmbedding() { return std::make_unique<EmbeddingOp>(); }

}  // namespace penstock::graph::ops
