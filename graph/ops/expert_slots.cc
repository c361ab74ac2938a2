// expert_slots(choices i[..., s, k]) {experts, capacity} -> slots i64[..., s, k], [load
// i64[..., experts]]: where each of the k choices of an expert by each of s tokens goes. Expert e
// has the slots from e * capacity to (e + 1) * capacity - 1. They are given to the first choices of
// all tokens in order, then to the second ones, and so on (Lepikhin et al., "GShard", 2020). A
// choice of an expert whose slots are all taken gets -1. `load` counts the choices of each expert,
// also those without a slot. A choice outside [0, experts) is an error when it runs.
//
// Slots depend on the choices of one group alone (routing.h), so they do not change with the size
// of the batch, nor with how it is split over devices and micro-batches.

#include "base/status_macros.h"
#include "graph/ops/routing.h"

namespace penstock::graph::ops {
namespace {

class ExpertSlotsOp : public Op {
 public:
  std::string_view name() const override { return "expert_slots"; }
  int min_operands() const override { return 1; }
  int num_optional_results() const override { return 1; }
  std::vector<AttrSpec> attributes() const override { return PlaceAttributes(); }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckInteger(context, 0));
    RETURN_IF_ERROR(CheckMinRank(context, 0, 2));
    RETURN_IF_ERROR(CheckPlaceAttributes(context.attributes));
    const Shape& choices = context.operands[0].shape;
    Shape load = WithoutLast(WithoutLast(choices));
    load.push_back(NumExperts(context.attributes));
    return std::vector<TensorType>{{DType::kI64, choices}, {DType::kI64, load}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& choices = context.operands[0].shape;
    ShardingRule rule;
    const TensorFactors groups = AddFactors(rule, WithoutLast(WithoutLast(choices)));
    const auto add = [&](int64_t size) -> DimFactors {
      return {rule.AddFactor(size, FactorKind::kNeedReplication)};
    };
    TensorFactors slots = groups;
    slots.push_back(add(choices[choices.size() - 2]));
    slots.push_back(add(choices.back()));
    rule.operands = {slots};
    rule.results = {slots};
    if (context.results.size() > 1) {
      TensorFactors load = groups;
      load.push_back(add(NumExperts(context.attributes)));
      rule.results.push_back(std::move(load));
    }
    return rule;
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 2, context.operands[0].num_elements());
  }
};

}  // namespace

std::unique_ptr<const Op> MakeExpertSlots() { return std::make_unique<ExpertSlotsOp>(); }

}  // namespace penstock::graph::ops
