#include "graph/ops/routing.h"

#include "base/status_macros.h"

namespace penstock::graph::ops {
namespace {

// `shape` without its first and last dimensions, as many as said, and with others behind.
Shape Join(const Shape& shape, int first, int last, absl::Span<const int64_t> more) {
  Shape joined(shape.begin() + first, shape.end() - last);
  joined.insert(joined.end(), more.begin(), more.end());
  return joined;
}

}  // namespace

std::vector<AttrSpec> PlaceAttributes() {
  return {{"experts", Kind::kInt, /*is_required=*/true},
          {"capacity", Kind::kInt, /*is_required=*/true}};
}

absl::Status CheckPlaceAttributes(const Attributes& attributes) {
  for (const std::string_view name : {"experts", "capacity"}) {
    const int64_t value = attributes.GetInt(name, 0);
    if (value < 1) return Invalid(name, " = ", value, " should be at least 1");
  }
  return CheckShape({NumExperts(attributes), Capacity(attributes)});
}

absl::Status CheckTokens(const OpContext& context, int tokens) {
  RETURN_IF_ERROR(CheckFloat(context, tokens));
  return CheckMinRank(context, tokens, 2);
}

absl::Status CheckPlaces(const OpContext& context, int places) {
  RETURN_IF_ERROR(CheckFloat(context, places));
  return CheckMinRank(context, places, 3);
}

absl::Status CheckPlacesOf(const OpContext& context, int places, int tokens) {
  RETURN_IF_ERROR(CheckPlaces(context, places));
  RETURN_IF_ERROR(CheckSameDType(context, places, tokens));
  const Shape& x = context.operands[tokens].shape;
  const Shape& y = context.operands[places].shape;
  Shape expected = Join(x, 0, 2, {y[y.size() - 2], x.back()});
  expected.insert(expected.begin(), y[0]);
  return CheckOperandShape(context, places, expected,
                           StrCat("with the groups and the width of operand ", tokens));
}

absl::Status CheckSlotsOfTokens(const OpContext& context, int slots, int tokens) {
  RETURN_IF_ERROR(CheckInteger(context, slots));
  RETURN_IF_ERROR(CheckMinRank(context, slots, 2));
  const Shape& x = context.operands[tokens].shape;
  return CheckOperandShape(context, slots, Join(x, 0, 1, {context.operands[slots].shape.back()}),
                           StrCat("that of operand ", tokens, " but for the last axis"));
}

absl::Status CheckSlotsOfPlaces(const OpContext& context, int slots, int places) {
  RETURN_IF_ERROR(CheckInteger(context, slots));
  RETURN_IF_ERROR(CheckMinRank(context, slots, 2));
  const Shape& y = context.operands[places].shape;
  const Shape& shape = context.operands[slots].shape;
  return CheckOperandShape(context, slots, Join(y, 1, 2, {shape[shape.size() - 2], shape.back()}),
                           StrCat("with the groups of operand ", places));
}

absl::Status CheckWeights(const OpContext& context, int weights, int slots, int dtype_of) {
  RETURN_IF_ERROR(CheckSameDType(context, weights, dtype_of));
  return CheckOperandShape(context, weights, context.operands[slots].shape,
                           StrCat("one weight for each slot of operand ", slots));
}

RoutingFactors AddRoutingFactors(ShardingRule& rule, const RoutingExtents& extents,
                                 std::string_view reduced) {
  const TensorFactors groups = AddFactors(rule, extents.groups);
  const auto add = [&](char letter, int64_t size) -> DimFactors {
    const bool is_reduced = reduced.find(letter) != std::string_view::npos;
    return {rule.AddFactor(size, is_reduced ? FactorKind::kReduction : FactorKind::kPassThrough)};
  };
  const DimFactors s = add('s', extents.s);
  const DimFactors k = add('k', extents.k);
  const DimFactors d = add('d', extents.d);
  const DimFactors e = add('e', extents.e);
  const DimFactors c = add('c', extents.c);
  RoutingFactors factors = {.tokens = groups, .slots = groups, .places = {e}};
  for (const DimFactors& dim : {s, d}) factors.tokens.push_back(dim);
  for (const DimFactors& dim : {s, k}) factors.slots.push_back(dim);
  factors.places.insert(factors.places.end(), groups.begin(), groups.end());
  for (const DimFactors& dim : {c, d}) factors.places.push_back(dim);
  return factors;
}

}  // namespace penstock::graph::ops
