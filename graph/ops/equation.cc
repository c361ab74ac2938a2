#include "graph/ops/equation.h"

#include <algorithm>
#include <cctype>
#include <cstdint>
#include <map>
#include <string_view>

#include "base/status_macros.h"

namespace penstock::graph::ops {
namespace {

absl::Status CheckLetters(std::string_view indices) {
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

// The extent of every index. An error where two differ.
absl::StatusOr<std::map<char, int64_t>> IndexExtents(const OpContext& context,
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

// The factors of the dimensions that the indices name.
TensorFactors FactorsOf(const std::map<char, int>& factors, std::string_view indices) {
  TensorFactors dims;
  for (char index : indices) dims.push_back({factors.at(index)});
  return dims;
}

}  // namespace

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
  RETURN_IF_ERROR(CheckLetters(equation.result));
  for (const std::string& indices : equation.operands) RETURN_IF_ERROR(CheckLetters(indices));
  return equation;
}

Equation EquationOf(const Attributes& attributes) { return *ParseEquation(attributes); }

absl::StatusOr<Shape> CheckProduct(const OpContext& context, const Equation& equation) {
  for (int i = 0; i < static_cast<int>(equation.operands.size()); ++i) {
    RETURN_IF_ERROR(CheckNumber(context, i));
    RETURN_IF_ERROR(CheckSameDType(context, i, 0));
    RETURN_IF_ERROR(CheckRank(context, i, static_cast<int>(equation.operands[i].size())));
  }
  ASSIGN_OR_RETURN(const auto extents, IndexExtents(context, equation));
  Shape shape;
  for (char index : equation.result) {
    const auto it = extents.find(index);
    if (it == extents.end()) {
      return Invalid("index '", std::string(1, index), "' of the result is in no operand");
    }
    shape.push_back(it->second);
  }
  return shape;
}

absl::StatusOr<Shape> CheckFloatProduct(const OpContext& context, Equation* equation) {
  ASSIGN_OR_RETURN(*equation, ParseEquation(context.attributes));
  if (equation->operands.size() != 2) {
    return Invalid("the equation is for ", equation->operands.size(), " operands, not 2");
  }
  RETURN_IF_ERROR(CheckFloat(context, 0));
  return CheckProduct(context, *equation);
}

void AddProductFactors(const OpContext& context, const Equation& equation, FactorKind summed,
                       ShardingRule* rule) {
  std::map<char, int> factors;
  const auto extents = *IndexExtents(context, equation);
  for (const auto& [index, extent] : extents) {
    const bool is_kept = equation.result.find(index) != std::string::npos;
    factors[index] = rule->AddFactor(extent, is_kept ? FactorKind::kPassThrough : summed);
  }
  for (const std::string& indices : equation.operands) {
    rule->operands.push_back(FactorsOf(factors, indices));
  }
  rule->results.push_back(FactorsOf(factors, equation.result));
}

double ProductFlops(const OpContext& context, const Equation& equation) {
  double points = 1;
  bool has_sum = false;
  const auto extents = *IndexExtents(context, equation);
  for (const auto& [index, extent] : extents) {
    points *= static_cast<double>(extent);
    has_sum = has_sum || equation.result.find(index) == std::string::npos;
  }
  return points * ((equation.operands.size() == 2 ? 1 : 0) + (has_sum ? 1 : 0));
}

Values ProductGradients(GraphBuilder& builder, const Equation& equation,
                        absl::Span<const ValueId> operands, ValueId dz) {
  std::vector<ValueId> gradients;
  for (size_t i = 0; i < equation.operands.size(); ++i) {
    const std::string& indices = equation.operands[i];
    std::vector<ValueId> factors = {dz};
    std::string sources = equation.result;
    if (equation.operands.size() == 2) {
      factors.push_back(operands[1 - i]);
      sources += "," + equation.operands[1 - i];
    }
    // An index of the operand that neither has was summed alone, so its gradient is repeated along
    // it.
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
    if (!missing.empty()) gradient = BroadcastLike(builder, gradient, operands[i], missing);
    gradients.push_back(gradient);
  }
  return gradients;
}

InferredTypes InferBiasedProduct(const OpContext& context) {
  Equation equation;
  ASSIGN_OR_RETURN(const Shape shape, CheckFloatProduct(context, &equation));
  RETURN_IF_ERROR(CheckSameDType(context, 2, 0));
  if (shape.empty()) return Invalid("the product is a scalar, which takes no bias");
  const size_t rank = std::clamp<size_t>(context.operands[2].shape.size(), 1, shape.size());
  RETURN_IF_ERROR(CheckOperandShape(
      context, 2, Shape(shape.end() - static_cast<int64_t>(rank), shape.end()),
      rank == 1 ? "the last dimension of the product of operand 0 and operand 1"
                : "the last dimensions of the product of operand 0 and operand 1"));
  return std::vector<TensorType>{{context.operands[0].dtype, shape}};
}

ShardingRule BiasedProductRule(const OpContext& context) {
  ShardingRule rule;
  AddProductFactors(context, EquationOf(context.attributes), FactorKind::kNeedReplication, &rule);
  const TensorFactors& all = rule.results[0];
  const auto rank = static_cast<int64_t>(context.operands[2].shape.size());
  rule.operands.push_back({all.end() - rank, all.end()});
  return rule;
}

Values BiasedProductGradients(GraphBuilder& builder, const Node& node, ValueId dz) {
  if (!builder.status().ok()) return builder.status();
  ASSIGN_OR_RETURN(std::vector<ValueId> gradients,
                   ProductGradients(builder, EquationOf(node.attributes), node.operands, dz));
  const size_t rank = builder.type(node.operands[2]).shape.size();
  gradients.push_back(SumLeading(builder, dz, rank));
  return gradients;
}

}  // namespace penstock::graph::ops
