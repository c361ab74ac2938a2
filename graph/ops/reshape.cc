// reshape(x) {shape}: the same elements in row-major order.
//
// The sharding rule factors the dimensions of both shapes against each other from the major end, as
// Shardy does (openxla/shardy, op_sharding_rule_registry.cc): the common divisor of what is left of
// the two current dimensions is a factor of both. f32[8] -> f32[2, 4] has the factors 2 and 4;
// f32[6, 4] -> f32[8, 3] shares the major factor 2 of dimensions 0, and what remains up to the
// point where the shapes meet again (3 and 4; 4 and 3) needs replication.

#include <numeric>
#include <utility>

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

// Appends to `tensor` what is left of its current dimensions, from `dim` on, up to where `left`
// elements are used up.
void AddUnmatched(ShardingRule& rule, TensorFactors& tensor, absl::Span<const int64_t> shape,
                  size_t& dim, int64_t& rest, int64_t left) {
  while (left > 1) {
    if (rest > 1) tensor[dim].push_back(rule.AddFactor(rest, FactorKind::kNeedReplication));
    left /= rest;
    rest = ++dim < shape.size() ? shape[dim] : 1;
  }
}

// Elements from the point (dim, rest) in `a` and in `b` to the next boundary of dimensions that
// both share. REQUIRES: as many elements are left in both.
int64_t ElementsToBoundary(absl::Span<const int64_t> a, size_t a_dim, int64_t a_rest,
                           absl::Span<const int64_t> b, size_t b_dim, int64_t b_rest) {
  int64_t a_count = a_rest;
  int64_t b_count = b_rest;
  while (a_count != b_count) {
    if (a_count < b_count) {
      a_count *= a[++a_dim];
    } else {
      b_count *= b[++b_dim];
    }
  }
  return a_count;
}

class ReshapeOp : public Op {
 public:
  std::string_view name() const override { return "reshape"; }
  OpRole role() const override { return OpRole::kReshape; }
  int min_operands() const override { return 1; }
  std::vector<AttrSpec> attributes() const override {
    return {{"shape", Kind::kInts, /*is_required=*/true}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    const Shape shape = context.attributes.GetInts("shape");
    RETURN_IF_ERROR(CheckShape(shape));
    const TensorType& x = context.operands[0];
    if (NumElements(shape) != x.num_elements()) {
      return Invalid(Describe(context, 0), " has ", x.num_elements(), " elements, the shape ",
                     penstock::ToString(shape), " has ", NumElements(shape));
    }
    return std::vector<TensorType>{{x.dtype, shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Shape& a = context.operands[0].shape;
    const Shape& b = context.results[0].shape;
    ShardingRule rule;
    rule.linear = {{0}};
    TensorFactors a_factors(a.size());
    TensorFactors b_factors(b.size());
    size_t i = 0;
    size_t j = 0;
    int64_t a_rest = a.empty() ? 1 : a[0];  // what is left of dimension i
    int64_t b_rest = b.empty() ? 1 : b[0];
    const bool is_empty = context.operands[0].num_elements() == 0;
    while (!is_empty && (i < a.size() || j < b.size())) {
      if (i < a.size() && a_rest == 1) {
        a_rest = ++i < a.size() ? a[i] : 1;
      } else if (j < b.size() && b_rest == 1) {
        b_rest = ++j < b.size() ? b[j] : 1;
      } else if (const int64_t common = std::gcd(a_rest, b_rest); common > 1) {
        const int factor = rule.AddFactor(common);
        a_factors[i].push_back(factor);
        b_factors[j].push_back(factor);
        a_rest /= common;
        b_rest /= common;
      } else {
        const int64_t left = ElementsToBoundary(a, i, a_rest, b, j, b_rest);
        AddUnmatched(rule, a_factors, a, i, a_rest, left);
        AddUnmatched(rule, b_factors, b, j, b_rest, left);
      }
    }
    rule.operands = {std::move(a_factors)};
    rule.results = {std::move(b_factors)};
    return rule;
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kFirst; }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const Shape shape = builder.type(node.operands[0]).shape;
    return std::vector<ValueId>{
        builder.Add("reshape", {grads[0]}, {{"shape", AttrValue::Ints(shape)}})};
  }
};

}  // namespace

std::unique_ptr<const Op> MakeReshape() { return std::make_unique<ReshapeOp>(); }

}  // namespace penstock::graph::ops
