#include "graph/builder.h"

#include <utility>

#include "base/strings.h"

namespace penstock::graph {
namespace {

std::string UnknownOperator(const OpRegistry& ops, std::string_view name) {
  std::string message = StrCat("unknown operator '", name, "'");
  const std::string nearest = NearestName(name, ops.Names());
  if (!nearest.empty()) StrAppend(&message, "; did you mean '", nearest, "'?");
  return message;
}

}  // namespace

void GraphBuilder::Fail(absl::Status status) { status_.Update(status); }

ValueId GraphBuilder::Add(std::string_view op, absl::Span<const ValueId> operands,
                          Attributes attributes, std::string_view name) {
  const std::vector<ValueId> results = AddMulti(op, operands, std::move(attributes), name);
  return results.empty() ? kNoValue : results[0];
}

std::vector<ValueId> GraphBuilder::AddMulti(std::string_view op, absl::Span<const ValueId> operands,
                                            Attributes attributes, std::string_view name,
                                            int num_results) {
  if (!status_.ok()) return {};
  const Op* found = ops_.Find(op);
  if (found == nullptr) {
    Fail(absl::InvalidArgumentError(UnknownOperator(ops_, op)));
    return {};
  }
  const std::string base = graph_.UniqueName(StrCat(scope_, name.empty() ? op : name));
  absl::StatusOr<NodeId> id = graph_.Add(found, operands, std::move(attributes),
                                         absl::MakeConstSpan(&base, 1), num_results);
  if (!id.ok()) {
    Fail(id.status());
    return {};
  }
  Node& node = graph_.mutable_node(*id);
  node.phase = phase_;
  node.forward = forward_;
  node.stage = stage_;
  return {node.results.begin(), node.results.end()};
}

ValueId GraphBuilder::Declare(std::string_view op, std::string_view name, TensorType type,
                              Attributes attributes) {
  if (!status_.ok()) return kNoValue;
  const Op* found = ops_.Find(op);
  if (found == nullptr) {
    Fail(absl::InvalidArgumentError(UnknownOperator(ops_, op)));
  } else if (!found->has_declared_type()) {
    Fail(absl::InvalidArgumentError(StrCat(op, ": its type is inferred, not declared")));
  } else {
    Fail(CheckAttributes(*found, attributes));
    Fail(CheckShape(type.shape));
  }
  if (!status_.ok()) return kNoValue;
  Node node;
  node.op = found;
  node.attributes = std::move(attributes);
  node.stage = stage_;
  node.phase = phase_;
  node.forward = forward_;
  const std::string unique = graph_.UniqueName(StrCat(scope_, name.empty() ? op : name));
  const NodeId id = graph_.AddTyped(std::move(node), absl::MakeConstSpan(&type, 1),
                                    absl::MakeConstSpan(&unique, 1));
  return graph_.node(id).results[0];
}

ValueId GraphBuilder::Constant(double value, TensorType type) {
  AttrValue attribute = value;
  if (!IsFloat(type.dtype)) attribute = static_cast<int64_t>(value);
  return Add("constant", {},
             {{"value", std::move(attribute)},
              {"shape", AttrValue::Ints(type.shape)},
              {"dtype", type.dtype}});
}

}  // namespace penstock::graph
