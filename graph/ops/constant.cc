// constant {value=0, shape=[], dtype=f32}: a tensor of equal elements.

#include "graph/ops/source.h"

namespace penstock::graph::ops {
namespace {

class ConstantOp : public Op {
 public:
  std::string_view name() const override { return "constant"; }
  int min_operands() const override { return 0; }
  std::vector<AttrSpec> attributes() const override {
    return {{"value", Kind::kAny}, {"shape", Kind::kInts}, {"dtype", Kind::kDType}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    const TensorType type = AttributeType(context.attributes, DType::kF32);
    const AttrValue* value = context.attributes.Find("value");
    const bool is_number =
        value == nullptr || value->AsInt() != nullptr || value->AsDouble() != nullptr;
    if (!is_number && value->AsBool() == nullptr) {
      return Invalid("attribute 'value' must be a number, true or false");
    }
    if (IsInteger(type.dtype) && value != nullptr && value->AsInt() == nullptr) {
      return Invalid("the value of ", ToString(type), " must be an integer");
    }
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

std::unique_ptr<const Op> MakeConstant() { return std::make_unique<ConstantOp>(); }

}  // namespace penstock::graph::ops
