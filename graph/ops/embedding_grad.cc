// embedding_grad(dy[..., d], ids i[...]) {rows, dtype} -> [rows, d]: each row the sum of the dy
// whose id it is.

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

class EmbeddingGradOp : public Op {
 public:
  std::string_view name() const override { return "embedding_grad"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    return {{"rows", Kind::kInt, /*is_required=*/true}, kSumDType};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckFloat(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 1));
    RETURN_IF_ERROR(CheckInteger(context, 1));
    const Shape& dy = context.operands[0].shape;
    RETURN_IF_ERROR(
        CheckOperandShape(context, 1, WithoutLast(dy), "that of operand 0 but for the last axis"));
    ASSIGN_OR_RETURN(const DType dtype, SumDTypeOf(context));
    return std::vector<TensorType>{{dtype, {context.attributes.GetInt("rows", 0), dy.back()}}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    ShardingRule rule;
    const DimFactors v = {rule.AddFactor(context.results[0].shape[0])};
    const DimFactors d = {rule.AddFactor(context.results[0].shape[1])};
    const TensorFactors ids = AddFactors(rule, context.operands[1].shape, FactorKind::kReduction);
    rule.operands = {ids, ids};
    rule.operands[0].push_back(d);
    rule.results = {{v, d}};
    rule.linear = {{0}};
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    // A tile of rows adds only what belongs to them: its share, if ids are spread evenly.
    const auto rows = static_cast<double>(context.attributes.GetInt("rows", 1));
    const double share = static_cast<double>(context.results[0].shape[0]) / rows;
    OpCost cost = CostOf(context, share, context.operands[0].num_elements());
    cost.bytes -= (1 - share) * static_cast<double>(context.operands[0].num_bytes());
    return cost;
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEmbeddingGrad() { return std::make_unique<EmbeddingGradOp>(); }

}  // namespace penstock::graph::ops
