#include "graph/op.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/builder.h"

namespace penstock::graph {
namespace {

std::string_view Describe(AttrSpec::Kind kind) {
  switch (kind) {
    case AttrSpec::Kind::kInt:
      return "an integer";
    case AttrSpec::Kind::kDouble:
      return "a number";
    case AttrSpec::Kind::kBool:
      return "true or false";
    case AttrSpec::Kind::kString:
      return "a string";
    case AttrSpec::Kind::kDType:
      return "an element type";
    case AttrSpec::Kind::kInts:
      return "a list of integers";
    case AttrSpec::Kind::kAny:
      return "a value";
  }
  return "";
}

bool HasKind(const AttrValue& value, AttrSpec::Kind kind) {
  switch (kind) {
    case AttrSpec::Kind::kInt:
      return value.AsInt() != nullptr;
    case AttrSpec::Kind::kDouble:
      return value.AsDouble() != nullptr || value.AsInt() != nullptr;
    case AttrSpec::Kind::kBool:
      return value.AsBool() != nullptr;
    case AttrSpec::Kind::kString:
      return value.AsString() != nullptr;
    case AttrSpec::Kind::kDType:
      return value.AsDType() != nullptr;
    case AttrSpec::Kind::kInts:
      return value.AsList() != nullptr &&
             std::all_of(value.AsList()->begin(), value.AsList()->end(),
                         [](const AttrValue& element) { return element.AsInt() != nullptr; });
    case AttrSpec::Kind::kAny:
      return true;
  }
  return false;
}

int EditDistance(std::string_view a, std::string_view b) {
  std::vector<int> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i) + 1;
    for (size_t j = 0; j < b.size(); ++j) {
      const int substituted = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({substituted, diagonal + 1, row[j] + 1});
    }
  }
  return row.back();
}

}  // namespace

ShardingRule ShardingRule::Elementwise(absl::Span<const TensorType> operands,
                                       absl::Span<const TensorType> results) {
  ShardingRule rule;
  const Shape* widest = nullptr;
  for (absl::Span<const TensorType> types : {operands, results}) {
    for (const TensorType& type : types) {
      if (widest == nullptr || type.shape.size() > widest->size()) widest = &type.shape;
    }
  }
  if (widest == nullptr) return rule;
  TensorFactors all;
  for (int64_t extent : *widest) all.push_back({rule.AddFactor(extent)});
  auto factors_of = [&](const TensorType& type) {
    return type.shape.empty() ? TensorFactors() : all;
  };
  for (const TensorType& type : operands) rule.operands.push_back(factors_of(type));
  for (const TensorType& type : results) rule.results.push_back(factors_of(type));
  return rule;
}

int ShardingRule::AddFactor(int64_t size, FactorKind kind, Reduction reduction) {
  factors.push_back({size, kind, reduction});
  return static_cast<int>(factors.size()) - 1;
}

const Window* ShardingRule::FindWindow(int operand, int factor) const {
  for (const OperandWindow& each : windows) {
    if (each.operand == operand && each.factor == factor) return &each.window;
  }
  return nullptr;
}

bool ShardingRule::MaySplit(int factor) const {
  switch (factors[factor].kind) {
    case FactorKind::kPassThrough:
    case FactorKind::kReduction:
    case FactorKind::kRoll:
      return true;
    case FactorKind::kNeedReplication:
      return false;
    case FactorKind::kPermutation:
      return std::any_of(windows.begin(), windows.end(),
                         [factor](const OperandWindow& each) { return each.factor == factor; });
  }
  return false;
}

absl::StatusOr<std::vector<ValueId>> Op::Gradient(GraphBuilder& /*builder*/, const Node& /*node*/,
                                                  absl::Span<const ValueId> /*grads*/) const {
  return absl::UnimplementedError(StrCat(name(), ": has no gradient"));
}

absl::StatusOr<std::vector<ValueId>> Op::Decompose(GraphBuilder& /*builder*/, const Node& /*node*/,
                                                   const FactorSplit& /*split*/) const {
  return absl::UnimplementedError(StrCat(name(), ": has no decomposition"));
}

OpCost Op::Cost(const OpContext& context) const {
  OpCost cost;
  for (const TensorType& type : context.operands) cost.bytes += type.num_bytes();
  for (const TensorType& type : context.results) cost.bytes += type.num_bytes();
  return cost;
}

absl::Status CheckAttributes(const Op& op, const Attributes& attributes) {
  const std::vector<AttrSpec> specs = op.attributes();
  for (const auto& [name, value] : attributes.entries()) {
    auto spec = std::find_if(specs.begin(), specs.end(),
                             [&name = name](const AttrSpec& s) { return s.name == name; });
    if (spec == specs.end()) {
      // Any operator may be computed again (planner/strategy/recompute.h), and what it makes may
      // go to the host in between (planner/strategy/offload.h).
      const bool is_mark = name == "recompute" || name == "offload";
      if (is_mark && value.AsInt() != nullptr && !op.has_declared_type()) continue;
      if (name == "recomputed" && value.AsBool() != nullptr && !op.has_declared_type()) continue;
      std::vector<std::string_view> known;
      for (const AttrSpec& s : specs) known.push_back(s.name);
      std::string message = StrCat(op.name(), ": unknown attribute '", name, "'");
      const std::string nearest = NearestName(name, known);
      if (!nearest.empty()) {
        StrAppend(&message, "; did you mean '", nearest, "'?");
      } else if (known.empty()) {
        StrAppend(&message, "; the operator takes none");
      } else {
        StrAppend(&message, "; the operator takes ", StrJoin(known, ", "));
      }
      return absl::InvalidArgumentError(message);
    }
    if (!HasKind(value, spec->kind)) {
      return absl::InvalidArgumentError(
          StrCat(op.name(), ": attribute '", name, "' must be ", Describe(spec->kind)));
    }
  }
  for (const AttrSpec& spec : specs) {
    if (spec.is_required && attributes.Find(spec.name) == nullptr) {
      return absl::InvalidArgumentError(StrCat(op.name(), ": attribute '", spec.name,
                                               "' is missing; it is ", Describe(spec.kind)));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TensorType>> InferResultTypes(const Op& op, const Attributes& attributes,
                                                         absl::Span<const TensorType> operands) {
  const int count = static_cast<int>(operands.size());
  const int min = op.min_operands();
  const int max = op.max_operands();
  if (count < min || (max >= 0 && count > max)) {
    const int last = max > min ? max : min;
    std::string expected = StrCat(max < 0 ? "at least " : "", min);
    if (max > min) expected += StrCat(" to ", max);
    return absl::InvalidArgumentError(StrCat(
        op.name(), ": takes ", expected, last == 1 ? " operand" : " operands", ", not ", count));
  }
  RETURN_IF_ERROR(CheckAttributes(op, attributes));
  absl::StatusOr<std::vector<TensorType>> types = op.InferTypes({attributes, operands, {}});
  if (!types.ok()) {
    return absl::Status(types.status().code(), StrCat(op.name(), ": ", types.status().message()));
  }
  for (const TensorType& type : *types) {
    absl::Status status = CheckShape(type.shape);
    if (!status.ok()) {
      return absl::Status(status.code(), StrCat(op.name(), ": the result: ", status.message()));
    }
  }
  return types;
}

absl::Status OpRegistry::Add(std::unique_ptr<const Op> op) {
  std::string name(op->name());
  auto [it, is_new] = ops_.try_emplace(std::move(name), std::move(op));
  if (!is_new) {
    return absl::AlreadyExistsError(StrCat("there is an operator '", it->first, "' already"));
  }
  return absl::OkStatus();
}

const Op* OpRegistry::Find(std::string_view name) const {
  auto it = ops_.find(ToAbsl(name));
  return it == ops_.end() ? nullptr : it->second.get();
}

std::vector<std::string_view> OpRegistry::Names() const {
  std::vector<std::string_view> names;
  names.reserve(ops_.size());
  for (const auto& [name, op] : ops_) names.push_back(name);
  std::sort(names.begin(), names.end());
  return names;
}

std::string NearestName(std::string_view name, absl::Span<const std::string_view> known) {
  std::string_view nearest;
  int least = static_cast<int>(name.size() + 2) / 3 + 1;
  for (std::string_view candidate : known) {
    const int distance = EditDistance(name, candidate);
    if (distance < least) {
      least = distance;
      nearest = candidate;
    }
  }
  return std::string(nearest);
}

}  // namespace penstock::graph
