#include "graph/ops/source.h"

#include <limits>

#include "base/status_macros.h"

namespace penstock::graph::ops {
namespace {

class DeclaredOp : public Op {
 public:
  explicit DeclaredOp(DeclaredDef def) : def_(def) {}
  std::string_view name() const override { return def_.name; }
  OpRole role() const override { return def_.role; }
  int min_operands() const override { return 0; }
  std::vector<AttrSpec> attributes() const override {
    if (!def_.has_initializer) return {{"feed", Kind::kString}, {"sub_batches", Kind::kInt}};
    return {{"init", Kind::kString},
            {"std", Kind::kDouble},
            {"stream", Kind::kInt},
            {"per_use", Kind::kBool},
            {"memory", Kind::kString}};
  }
  bool has_declared_type() const override { return true; }
  InferredTypes InferTypes(const OpContext&) const override {
    return absl::InternalError(StrCat("the type of ", name(), " is declared"));
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ShardingRule::Elementwise(context.operands, context.results);
  }
  OpCost Cost(const OpContext&) const override { return {}; }

 private:
  const DeclaredDef def_;
};

class RandomOp : public Op {
 public:
  RandomOp(std::string_view name, double flops) : name_(name), flops_(flops) {}
  std::string_view name() const override { return name_; }
  int min_operands() const override { return 0; }
  std::vector<AttrSpec> attributes() const override {
    return {{"shape", Kind::kInts},
            {"stream", Kind::kInt, /*is_required=*/true},
            {"dtype", Kind::kDType}};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    RETURN_IF_ERROR(CheckStream(context.attributes));
    const TensorType type = AttributeType(context.attributes, DType::kF32);
    if (!IsFloat(type.dtype)) return Invalid("needs a float type, not ", Name(type.dtype));
    return std::vector<TensorType>{type};
  }
  void CompleteAttributes(const TensorType& declared, Attributes& attributes) const override {
    AdoptType(declared, attributes);
  }
  ShardingRule Rule(const OpContext& context) const override {
    return ShardingRule::Elementwise(context.operands, context.results);
  }
  PropagationPriority propagation_priority() const override { return PropagationPriority::kLast; }
  OpCost Cost(const OpContext& context) const override {
    return CostOf(context, flops_, context.results[0].num_elements());
  }
  bool is_random() const override { return true; }

 private:
  const std::string_view name_;
  const double flops_;
};

}  // namespace

std::unique_ptr<const Op> MakeDeclared(DeclaredDef def) {
  return std::make_unique<DeclaredOp>(def);
}

std::unique_ptr<const Op> MakeRandom(std::string_view name, double flops) {
  return std::make_unique<RandomOp>(name, flops);
}

TensorType AttributeType(const Attributes& attributes, DType default_dtype) {
  return {attributes.GetDType("dtype", default_dtype), attributes.GetInts("shape")};
}

void AdoptType(const TensorType& declared, Attributes& attributes) {
  if (attributes.Find("shape") == nullptr) attributes.Set("shape", AttrValue::Ints(declared.shape));
  if (attributes.Find("dtype") == nullptr) attributes.Set("dtype", declared.dtype);
}

absl::Status CheckStream(const Attributes& attributes) {
  const int64_t stream = attributes.GetInt("stream", 0);
  if (stream >= 0 && stream <= std::numeric_limits<uint32_t>::max()) return absl::OkStatus();
  return Invalid("stream ", stream, " does not fit 32 bits");
}

}  // namespace penstock::graph::ops
