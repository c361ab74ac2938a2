#include "graph/graph.h"

#include <utility>

#include "absl/status/status.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"

namespace penstock::graph {

absl::StatusOr<NodeId> Graph::Add(const Op* op, absl::Span<const ValueId> operands,
                                  Attributes attributes, absl::Span<const std::string> names,
                                  int num_results) {
  if (op->has_declared_type()) {
    return absl::InvalidArgumentError(
        StrCat(op->name(), ": the type of its result must be declared"));
  }
  Node node;
  node.op = op;
  for (size_t i = 0; i < operands.size(); ++i) {
    if (operands[i] < 0 || operands[i] >= num_values()) {
      return absl::InvalidArgumentError(
          StrCat(op->name(), ": operand ", i, " is not a value of this graph"));
    }
    node.operands.push_back(operands[i]);
  }
  const std::vector<TensorType> operand_types = OperandTypes(node);
  ASSIGN_OR_RETURN(std::vector<TensorType> types, InferResultTypes(*op, attributes, operand_types));

  const int num_all = static_cast<int>(types.size());
  const int num_required = num_all - op->num_optional_results();
  if (num_results < 0) num_results = num_required;
  if (num_results < num_required || num_results > num_all) {
    return absl::InvalidArgumentError(StrCat(
        op->name(), ": has ", num_required, num_required == num_all ? "" : StrCat(" to ", num_all),
        num_all == 1 ? " result" : " results", ", not ", num_results));
  }
  types.resize(num_results);

  for (size_t i = 0; i < names.size(); ++i) {
    bool is_taken = by_name_.contains(names[i]);
    for (size_t j = 0; j < i; ++j) is_taken = is_taken || names[i] == names[j];
    if (is_taken) {
      return absl::InvalidArgumentError(StrCat(op->name(), ": the name %", names[i], " is taken"));
    }
  }
  node.attributes = std::move(attributes);
  return AddTyped(std::move(node), types, names);
}

NodeId Graph::AddTyped(Node node, absl::Span<const TensorType> types,
                       absl::Span<const std::string> names) {
  const NodeId id = num_nodes();
  node.results.clear();
  for (size_t i = 0; i < types.size(); ++i) {
    Value value;
    if (i < names.size()) {
      value.name = names[i];
    } else {
      const std::string_view base = names.empty() ? node.op->name() : names[0];
      value.name = UniqueName(i == 0 ? std::string(base) : StrCat(base, ".", i));
    }
    value.producer = id;
    value.result_index = static_cast<int>(i);
    value.type = types[i];
    node.results.push_back(num_values());
    by_name_.emplace(value.name, num_values());
    values_.push_back(std::move(value));
  }
  nodes_.push_back(std::move(node));
  return id;
}

std::string Graph::UniqueName(std::string_view base) const {
  const auto is_taken = [&](const std::string& name) {
    return by_name_.contains(name) || reserved_names_.contains(name);
  };
  std::string name(base);
  if (!is_taken(name)) return name;
  int& suffix = next_suffix_[name];
  do {
    name = StrCat(base, "_", ++suffix);
  } while (is_taken(name));
  return name;
}

void Graph::ReserveNames(const Graph& other) {
  for (const Value& value : other.values_) reserved_names_.insert(value.name);
}

ValueId Graph::FindValue(std::string_view name) const {
  auto it = by_name_.find(ToAbsl(name));
  return it == by_name_.end() ? kNoValue : it->second;
}

std::vector<TensorType> Graph::OperandTypes(const Node& node) const {
  std::vector<TensorType> types;
  types.reserve(node.operands.size());
  for (ValueId operand : node.operands) types.push_back(values_[operand].type);
  return types;
}

std::vector<TensorType> Graph::ResultTypes(const Node& node) const {
  std::vector<TensorType> types;
  types.reserve(node.results.size());
  for (ValueId result : node.results) types.push_back(values_[result].type);
  return types;
}

std::vector<std::vector<NodeId>> Graph::Users() const {
  std::vector<std::vector<NodeId>> users(values_.size());
  for (NodeId id = 0; id < num_nodes(); ++id) {
    for (ValueId operand : nodes_[id].operands) {
      if (users[operand].empty() || users[operand].back() != id) users[operand].push_back(id);
    }
  }
  return users;
}

}  // namespace penstock::graph
