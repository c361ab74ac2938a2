// einsum(x[, y]) {equation, dtype}: a sum of products, "bmk,bkn->bmn". An index is a letter; one
// that the result lacks is summed over. No ellipsis, no index twice in one operand.

#include <algorithm>
#include <cctype>
#include <map>

#include "base/status_macros.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {
namespace {

struct Equation {
  std::vector<std::string> operands;
  std::string result;
};

absl::Status CheckIndices(std::string_view indices) {
  for (size_t i = 0; i < indices.size(); ++i) {
    if (std::isalpha(static_cast<unsigned char>(indices[i])) == 0) {
      return Invalid("'", indices.substr(i, 1), "' in the equation is not a letter");
    }
    if (indices.find(indices[i], i + 1) != std::string_view::npos) {
      return Invalid("index '", indices.substr(i, 1), "' stands twice in '", indices, "'");
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<Equation> ParseEquation(const Attributes& attributes) {
  std::string text = attributes.GetString("equation", "");
  text.erase(std::remove(text.begin(), text.end(), ' '), text.end());
  const size_t arrow = text.find("->");
  if (arrow == std::string::npos) return Invalid("the equation '", text, "' has no '->'");
  Equation equation;
  equation.result = text.substr(arrow + 2);
  size_t begin = 0;
  for (size_t end = 0; end < arrow; begin = end + 1) {
    end = std::min(text.find(',', begin), arrow);
    equation.operands.push_back(text.substr(begin, end - begin));
  }
  if (equation.operands.empty()) equation.operands.emplace_back();  // one scalar
  RETURN_IF_ERROR(CheckIndices(equation.result));
  for (const std::string& indices : equation.operands) RETURN_IF_ERROR(CheckIndices(indices));
  return equation;
}

// REQUIRES: the equation was checked when the node was built.
Equation EquationOf(const Attributes& attributes) { return *ParseEquation(attributes); }

// The extent of every index. An error where two differ.
absl::StatusOr<std::map<char, int64_t>> ExtentsOf(const OpContext& context,
                                                  const Equation& equation) {
  std::map<char, int64_t> extents;
  for (size_t i = 0; i < equation.operands.size(); ++i) {
    for (size_t d = 0; d < equation.operands[i].size(); ++d) {
      const char index = equation.operands[i][d];
      const auto [it, is_new] = extents.emplace(index, context.operands[i].shape[d]);
      if (!is_new && it->second != context.operands[i].shape[d]) {
        return Invalid("index '", std::string(1, index), "' has extent ", it->second,
                       " in operand 0, ", context.operands[i].shape[d], " in ",
                       Describe(context, static_cast<int>(i)));
      }
    }
  }
  return extents;
}

class EinsumOp : public Op {
 public:
  std::string_view name() const override { return "einsum"; }
  int min_operands() const override { return 1; }
  int max_operands() const override { return 2; }
  std::vector<AttrSpec> attributes() const override {
    return {{"equation", Kind::kString, /*is_required=*/true}, kSumDType};
  }
  InferredTypes InferTypes(const OpContext& context) const override {
    ASSIGN_OR_RETURN(const Equation equation, ParseEquation(context.attributes));
    if (equation.operands.size() != context.operands.size()) {
      return Invalid("the equation is for ", equation.operands.size(), " operands, not ",
                     context.operands.size());
    }
    for (int i = 0; i < static_cast<int>(context.operands.size()); ++i) {
      RETURN_IF_ERROR(CheckNumber(context, i));
      RETURN_IF_ERROR(CheckSameDType(context, i, 0));
      RETURN_IF_ERROR(CheckRank(context, i, static_cast<int>(equation.operands[i].size())));
    }
    ASSIGN_OR_RETURN(const auto extents, ExtentsOf(context, equation));
    ASSIGN_OR_RETURN(const DType dtype, SumDTypeOf(context));
    TensorType type{dtype, {}};
    for (char index : equation.result) {
      const auto it = extents.find(index);
      if (it == extents.end()) {
        return Invalid("index '", std::string(1, index), "' of the result is in no operand");
      }
      type.shape.push_back(it->second);
    }
    return std::vector<TensorType>{type};
  }
  ShardingRule Rule(const OpContext& context) const override {
    const Equation equation = EquationOf(context.attributes);
    ShardingRule rule;
    std::map<char, int> factors;
    const auto extents = *ExtentsOf(context, equation);
    for (const auto& [index, extent] : extents) {
      const bool is_kept = equation.result.find(index) != std::string::npos;
      factors[index] =
          rule.AddFactor(extent, is_kept ? FactorKind::kPassThrough : FactorKind::kReduction);
    }
    auto factors_of = [&](std::string_view indices) {
      TensorFactors dims;
      for (char index : indices) dims.push_back({factors[index]});
      return dims;
    };
    for (size_t i = 0; i < equation.operands.size(); ++i) {
      rule.operands.push_back(factors_of(equation.operands[i]));
      rule.linear.push_back({static_cast<int>(i)});
    }
    rule.results = {factors_of(equation.result)};
    return rule;
  }
  // d(operand) is the einsum of dz and the other operand; an index of the operand that neither has
  // was summed alone, so its gradient is repeated along it.
  bool is_differentiable() const override { return true; }
  Values Gradient(GraphBuilder& builder, const Node& node,
                  absl::Span<const ValueId> grads) const override {
    const Equation equation = EquationOf(node.attributes);
    if (!builder.status().ok()) return builder.status();
    const ValueId dz = CastTo(builder, grads[0], builder.type(node.operands[0]).dtype);
    std::vector<ValueId> gradients;
    for (size_t i = 0; i < equation.operands.size(); ++i) {
      const std::string& indices = equation.operands[i];
      std::vector<ValueId> factors = {dz};
      std::string sources = equation.result;
      if (equation.operands.size() == 2) {
        factors.push_back(node.operands[1 - i]);
        sources += "," + equation.operands[1 - i];
      }
      std::string reached;
      std::vector<int64_t> missing;
      for (size_t d = 0; d < indices.size(); ++d) {
        if (sources.find(indices[d]) != std::string::npos) {
          reached += indices[d];
        } else {
          missing.push_back(static_cast<int64_t>(d));
        }
      }
      ValueId gradient =
          builder.Add("einsum", factors, {{"equation", StrCat(sources, "->", reached)}});
      if (!missing.empty()) {
        gradient = BroadcastLike(builder, gradient, node.operands[i], missing);
      }
      gradients.push_back(gradient);
    }
    return gradients;
  }
  OpCost Cost(const OpContext& context) const override {
    // A product at every point of the index space, a sum where an index is summed over.
    const Equation equation = EquationOf(context.attributes);
    int64_t points = 1;
    bool has_sum = false;
    const auto extents = *ExtentsOf(context, equation);
    for (const auto& [index, extent] : extents) {
      points *= extent;
      has_sum = has_sum || equation.result.find(index) == std::string::npos;
    }
    return CostOf(context, (context.operands.size() == 2 ? 1 : 0) + (has_sum ? 1 : 0), points);
  }
};

}  // namespace

std::unique_ptr<const Op> MakeEinsum() { return std::make_unique<EinsumOp>(); }

}  // namespace penstock::graph::ops
