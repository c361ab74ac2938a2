// matmul(a[..., m, k], b[..., k, n]) {transpose_a, transpose_b, dtype}: the product of matrices,
// for equal leading dimensions, or one b[k, n] for all of them. A transposed operand is stored
// [..., k, m] or
// [..., n, k]. Integers wrap.

#include <algorithm>
#include <utility>

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

struct Extents {
  int64_t m, k, b_k, n;
};

bool IsTransposed(const Attributes& attributes, int operand) {
  return attributes.GetBool(operand == 0 ? "transpose_a" : "transpose_b", false);
}

Extents ExtentsOf(const OpContext& context) {
  const Shape& a = context.operands[0].shape;
  const Shape& b = context.operands[1].shape;
  Extents extents{a[a.size() - 2], a.back(), b[b.size() - 2], b.back()};
  if (IsTransposed(context.attributes, 0)) std::swap(extents.m, extents.k);
  if (IsTransposed(context.attributes, 1)) std::swap(extents.b_k, extents.n);
  return extents;
}

// Indices of einsum for one operand of the broadcast form: leading dimensions, then the pair.
std::string Indices(size_t num_leading, bool is_transposed, std::string pair) {
  std::string indices;
  for (size_t i = 0; i < num_leading; ++i) indices += static_cast<char>('A' + i);
  if (is_transposed) std::swap(pair[0], pair[1]);
  return indices + pair;
}

class MatmulOp : public Op {
 public:
  std::string_view name() const override { return "matmul"; }
  int min_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    return {{"transpose_a", Kind::kBool}, {"transpose_b", Kind::kBool}, kSumDType};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    for (int i : {0, 1}) {
      RETURN_IF_ERROR(CheckNumber(context, i));
      RETURN_IF_ERROR(CheckMinRank(context, i, 2));
    }
    RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
    const Shape& a = context.operands[0].shape;
    const Shape& b = context.operands[1].shape;
    const auto [m, k, b_k, n] = ExtentsOf(context);
    if (k != b_k) {
      return Invalid("the inner dimensions differ: ", k, " in ", Describe(context, 0), ", ", b_k,
                     " in ", Describe(context, 1));
    }
    if (b.size() != 2 && (b.size() != a.size() || !std::equal(a.begin(), a.end() - 2, b.begin()))) {
      return Invalid("the leading dimensions differ: ", Describe(context, 0), ", ",
                     Describe(context, 1));
    }
    Shape shape(a.begin(), a.end() - 2);
    shape.insert(shape.end(), {m, n});
    ASSIGN_OR_RETURN(const DType dtype, SumDTypeOf(context));
    return std::vector<TensorType>{{dtype, shape}};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const auto [m_extent, k_extent, b_k, n_extent] = ExtentsOf(context);
    const Shape& a_shape = context.operands[0].shape;
    ShardingRule rule;
    TensorFactors a = AddFactors(rule, absl::MakeConstSpan(a_shape).first(a_shape.size() - 2));
    TensorFactors b = context.operands[1].shape.size() == 2 ? TensorFactors() : a;
    TensorFactors y = a;
    const DimFactors m = {rule.AddFactor(m_extent)};
    const DimFactors n = {rule.AddFactor(n_extent)};
    const DimFactors k = {rule.AddFactor(k_extent, FactorKind::kReduction)};
    const bool is_a_transposed = IsTransposed(context.attributes, 0);
    const bool is_b_transposed = IsTransposed(context.attributes, 1);
    a.insert(a.end(), {is_a_transposed ? k : m, is_a_transposed ? m : k});
    b.insert(b.end(), {is_b_transposed ? n : k, is_b_transposed ? k : n});
    y.insert(y.end(), {m, n});
    rule.operands = {a, b};
    rule.results = {y};
    rule.linear = {{0}, {1}};
    return rule;
  }
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const ValueId a = node.operands[0];
    const ValueId b = node.operands[1];
    if (!builder.status().ok()) return builder.status();
    const ValueId dy = CastTo(builder, grads[0], builder.type(a).dtype);
    const bool ta = IsTransposed(node.attributes, 0);
    const bool tb = IsTransposed(node.attributes, 1);
    const size_t a_rank = builder.type(a).shape.size();
    if (builder.type(b).shape.size() == a_rank) {
      const ValueId da =
          ta ? Product(builder, b, dy, tb, true) : Product(builder, dy, b, false, !tb);
      const ValueId db =
          tb ? Product(builder, dy, a, true, ta) : Product(builder, a, dy, !ta, false);
      return std::vector<ValueId>{da, db};
    }
    // One b for all leading dimensions: db sums over them, which einsum does without a reshape that
    // would hide how they are split.
    const size_t num_leading = a_rank - 2;
    const std::string a_indices = Indices(num_leading, ta, "mk");
    const std::string b_indices = Indices(0, tb, "kn");
    const std::string y_indices = Indices(num_leading, false, "mn");
    const ValueId da =
        ta ? builder.Add("einsum", {dy, b},
                         {{"equation", StrCat(y_indices, ",", b_indices, "->", a_indices)}})
           : Product(builder, dy, b, false, !tb);
    const ValueId db = builder.Add(
        "einsum", {a, dy}, {{"equation", StrCat(a_indices, ",", y_indices, "->", b_indices)}});
    return std::vector<ValueId>{da, db};
  }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, 2.0 * ExtentsOf(context).k, context.results[0].num_elements());
  }

 private:
  static ValueId Product(GraphBuilder& builder, ValueId a, ValueId b, bool is_a_transposed,
                         bool is_b_transposed) {
    Attributes attributes;
    if (is_a_transposed) attributes.Set("transpose_a", true);
    if (is_b_transposed) attributes.Set("transpose_b", true);
    return builder.Add("matmul", {a, b}, std::move(attributes));
  }
};

}  // namespace

std::unique_ptr<const Op> MakeMatmul() { return std::make_unique<MatmulOp>(); }

}  // namespace penstock::graph::ops
