#include "graph/verify.h"

#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_set.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"

namespace penstock::graph {
namespace {

class Verifier {
 public:
  explicit Verifier(const Graph& graph) : graph_(graph) {}

  absl::Status Run() {
    RETURN_IF_ERROR(CheckMeshes());
    // Ids first: every later message may print the statement.
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) RETURN_IF_ERROR(CheckIds(id));
    RETURN_IF_ERROR(CheckValues());
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const Node& node = graph_.node(id);
      RETURN_IF_ERROR(At(node, CheckPlacement(id)));
      RETURN_IF_ERROR(At(node, CheckTypes(node)));
      RETURN_IF_ERROR(At(node, CheckShardings(node)));
      if (node.op->role() == OpRole::kAssign) RETURN_IF_ERROR(At(node, CheckAssign(node)));
    }
    return CheckReturns();
  }

 private:
  bool IsValue(ValueId id) const { return id >= 0 && id < graph_.num_values(); }

  absl::Status At(const Node& node, const absl::Status& status) const {
    if (status.ok()) return status;
    const SourceLocation& place = node.location;
    const std::string where =
        place.line > 0 ? StrCat(place.file, ":", place.line, ":", place.column, ": ") : "";
    return absl::Status(status.code(),
                        StrCat(where, status.message(), "\n  in: ", PrintNode(graph_, node)));
  }

  absl::Status CheckMeshes() const {
    absl::flat_hash_set<std::string> names;
    for (const Mesh& mesh : graph_.meshes()) {
      RETURN_IF_ERROR(CheckMesh(mesh));
      if (!names.insert(mesh.name).second) {
        return absl::InvalidArgumentError(StrCat("two meshes are named ", mesh.name));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckIds(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.op == nullptr) return absl::InternalError(StrCat("node ", id, " has no operator"));
    for (ValueId operand : node.operands) {
      if (!IsValue(operand)) {
        return absl::InternalError(StrCat("node ", id, " (", node.op->name(), ") reads value ",
                                          operand, " of ", graph_.num_values()));
      }
      if (graph_.value(operand).producer >= id) {
        return absl::InternalError(StrCat("node ", id, " (", node.op->name(), ") reads %",
                                          graph_.value(operand).name, " before it is produced"));
      }
    }
    for (size_t i = 0; i < node.results.size(); ++i) {
      const ValueId result = node.results[i];
      if (!IsValue(result) || graph_.value(result).producer != id ||
          graph_.value(result).result_index != static_cast<int>(i)) {
        return absl::InternalError(
            StrCat("result ", i, " of node ", id, " (", node.op->name(), ") is not its own"));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckValues() const {
    absl::flat_hash_set<std::string> names;
    for (ValueId id = 0; id < graph_.num_values(); ++id) {
      const Value& value = graph_.value(id);
      const bool is_produced =
          value.producer >= 0 && value.producer < graph_.num_nodes() && value.result_index >= 0 &&
          value.result_index < static_cast<int>(graph_.node(value.producer).results.size()) &&
          graph_.node(value.producer).results[value.result_index] == id;
      if (!is_produced) {
        return absl::InternalError(StrCat("value %", value.name, " is not produced by any node"));
      }
      if (value.name.empty()) return absl::InvalidArgumentError("a value has no name");
      if (!names.insert(value.name).second) {
        return absl::InvalidArgumentError(StrCat("two values are named %", value.name));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckPlacement(NodeId id) const {
    const Node& node = graph_.node(id);
    const int num_meshes = static_cast<int>(graph_.meshes().size());
    if (node.mesh != 0 && (node.mesh < 0 || node.mesh >= num_meshes)) {
      return absl::InternalError(StrCat("mesh ", node.mesh, " of ", num_meshes));
    }
    if (node.stage < -1 || node.stage > kMaxStage) {
      return absl::InvalidArgumentError(
          StrCat("stage ", node.stage, " is not in [0, ", kMaxStage, "]"));
    }
    if (node.forward != kNoNode && (node.forward < 0 || node.forward >= id)) {
      return absl::InternalError(
          StrCat("its forward node, ", node.forward, ", is not before node ", id));
    }
    return absl::OkStatus();
  }

  absl::Status CheckTypes(const Node& node) const {
    if (node.op->has_declared_type()) {
      RETURN_IF_ERROR(CheckAttributes(*node.op, node.attributes));
      if (!node.operands.empty() || node.results.size() != 1) {
        return absl::InvalidArgumentError(
            StrCat(node.op->name(), ": takes no operands and has one result"));
      }
      return CheckShape(graph_.value(node.results[0]).type.shape);
    }
    ASSIGN_OR_RETURN(const std::vector<TensorType> types,
                     InferResultTypes(*node.op, node.attributes, graph_.OperandTypes(node)));
    const size_t num_required = types.size() - node.op->num_optional_results();
    if (node.results.size() < num_required || node.results.size() > types.size()) {
      return absl::InvalidArgumentError(StrCat(node.op->name(), ": binds ", node.results.size(),
                                               " results of ", types.size(), ", of which ",
                                               num_required, " are required"));
    }
    for (size_t i = 0; i < node.results.size(); ++i) {
      const Value& value = graph_.value(node.results[i]);
      if (!(value.type == types[i])) {
        return absl::InvalidArgumentError(
            StrCat("%", value.name, " has type ", penstock::ToString(value.type), ", but ",
                   node.op->name(), " gives ", penstock::ToString(types[i])));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckShardings(const Node& node) const {
    const Mesh none;
    const Mesh& mesh = MeshOf(graph_, node, none);
    for (ValueId id : node.results) {
      const Value& value = graph_.value(id);
      if (!value.sharding.has_value()) continue;
      const absl::Status status = CheckSharding(mesh, *value.sharding, value.type.shape);
      if (!status.ok()) {
        return absl::InvalidArgumentError(StrCat("%", value.name, ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckAssign(const Node& node) {
    const Value& target = graph_.value(node.operands[0]);
    const std::string_view made_by = graph_.node(target.producer).op->name();
    if (made_by != "parameter" && made_by != "state") {
      return absl::InvalidArgumentError(StrCat("assign: %", target.name, " is made by ", made_by,
                                               "; only a parameter or a state can be assigned"));
    }
    if (!assigned_.insert(node.operands[0]).second) {
      return absl::InvalidArgumentError(StrCat("assign: %", target.name, " is assigned twice"));
    }
    return absl::OkStatus();
  }

  absl::Status CheckReturns() const {
    for (size_t i = 0; i < graph_.returns().size(); ++i) {
      const Return& returned = graph_.returns()[i];
      if (!IsValue(returned.value)) {
        return absl::InternalError(
            StrCat("return ", i, " is value ", returned.value, " of ", graph_.num_values()));
      }
      if (!returned.sharding.has_value()) continue;
      const Value& value = graph_.value(returned.value);
      const Mesh none;
      const Mesh& mesh = MeshOf(graph_, graph_.node(value.producer), none);
      const absl::Status status = CheckSharding(mesh, *returned.sharding, value.type.shape);
      if (!status.ok()) {
        return absl::InvalidArgumentError(
            StrCat("return ", i, ", %", value.name, ": ", status.message()));
      }
    }
    return absl::OkStatus();
  }

  const Graph& graph_;
  absl::flat_hash_set<ValueId> assigned_;
};

}  // namespace

absl::Status VerifyGraph(const Graph& graph) { return Verifier(graph).Run(); }

}  // namespace penstock::graph
