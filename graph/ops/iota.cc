// iota {axis, shape, dtype=i64}: each element is its global index along the axis.

#include "base/status_macros.h"
#include "graph/ops/source.h"

namespace penstock::graph::ops {
namespace {

class IotaOp : public Op {
 public:
  std::string_view name() const override { return "iota"; }
  OpRole role() const override { return OpRole::kConstant; }
  int min_operands() const override { return 0; }
  std::vector<AttrSpec> attributes() const override {
    return {{"axis", Kind::kInt, /*is_required=*/true},
            {"shape", Kind::kInts},
            {"dtype", Kind::kDType}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    const TensorType type = AttributeType(context.attributes, DType::kI64);
    if (type.dtype == DType::kBool) return Invalid("needs a float or integer type, not bool");
    ASSIGN_OR_RETURN(
        [[maybe_unused]] const int axis,
        NormalizeAxis(context.attributes.GetInt("axis", 0), static_cast<int>(type.shape.size())));
    return std::vector<TensorType>{type};
  }
  void CompleteAttributes(const TensorType& declared, Attributes& attributes) const override {
    AdoptType(declared, attributes);
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ShardingRule::Elementwise(context.operands, context.results);
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kLast; }
};

}  // namespace

std::unique_ptr<const Op> MakeIota() { return std::make_unique<IotaOp>(); }

}  // namespace penstock::graph::ops
