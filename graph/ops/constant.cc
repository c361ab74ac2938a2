// constant {value=0, shape=[], dtype=f32}: a tensor of equal elements.

#include <cstdint>
#include <limits>
#include <utility>

#include "graph/ops/source.h"

namespace penstock::graph::ops {
namespace {

// What an integer or truth value can be; of floats any integer is taken.
std::pair<int64_t, int64_t> IntegerRange(DType dtype) {
  switch (dtype) {
    case DType::kBool:
      return {0, 1};
    case DType::kI8:
      return {-128, 127};
    case DType::kU8:
      return {0, 255};
    case DType::kI32:
      return {std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max()};
    default:
      return {std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max()};
  }
}

class ConstantOp : public Op {
 public:
  std::string_view name() const override { return "constant"; }
  OpRole role() const override { return OpRole::kConstant; }
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
    if (value != nullptr && value->AsInt() != nullptr) {
      const auto [least, most] = IntegerRange(type.dtype);
      if (*value->AsInt() < least || *value->AsInt() > most) {
        return Invalid("the value ", *value->AsInt(), " does not fit ", Name(type.dtype), ", ",
                       least, " to ", most);
      }
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
