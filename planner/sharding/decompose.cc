#include "planner/sharding/decompose.h"

#include <optional>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "graph/builder.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/propagate.h"
#include "planner/sharding/select_mesh.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

// The first factor that the kernel needs whole, that the operator can do without, and that would be
// split in space if it were a reduction; and the number of its parts. An axis that already splits
// another factor does not count, such as the axis of a sequence that splits queries and keys alike.
std::optional<graph::FactorSplit> SplitFactor(const Graph& graph, const Node& node) {
  const Mesh& mesh = graph.meshes()[0];
  const std::vector<TensorType> operand_types = graph.OperandTypes(node);
  const std::vector<TensorType> result_types = graph.ResultTypes(node);
  const graph::OpContext context = {node.attributes, operand_types, result_types};
  const std::vector<int> factors = node.op->DecomposableFactors(context);
  if (factors.empty()) return std::nullopt;
  graph::ShardingRule rule = node.op->Rule(context);
  for (int factor : factors) rule.factors[factor].kind = graph::FactorKind::kReduction;
  const auto shardings = [&](const auto& values) {
    std::vector<Sharding> closed;
    for (ValueId value : values) closed.push_back(ClosedSharding(mesh, graph.value(value)));
    return closed;
  };
  const std::vector<Sharding> operands = shardings(node.operands);
  const std::vector<Sharding> results = shardings(node.results);
  const ExecutionSharding execution = ChooseExecution(mesh, rule, operand_types, operands, results);
  for (int factor : factors) {
    for (size_t o = 0; o < operands.size(); ++o) {
      const auto axes = AxesOn(factor, execution.operands[o], rule.operands[o], rule);
      if (!axes.has_value()) continue;
      int64_t parts = 1;
      bool in_space = false;
      for (const graph::AxisRef& axis : *axes) {
        in_space = in_space || !graph::IsTemporal(mesh, axis);
        parts *= axis.size;
      }
      if (in_space && parts > 1) return graph::FactorSplit{factor, parts};
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status DecomposeSplitFactors(const graph::OpRegistry& ops, Graph& graph) {
  RETURN_IF_ERROR(SelectMesh(graph));
  if (graph.meshes().empty()) return absl::OkStatus();
  std::vector<std::optional<graph::FactorSplit>> splits(graph.num_nodes());
  bool any = false;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    splits[id] = SplitFactor(graph, graph.node(id));
    any = any || splits[id].has_value();
  }
  if (!any) return absl::OkStatus();

  Graph out(graph.name());
  out.mutable_meshes() = graph.meshes();
  out.ReserveNames(graph);
  graph::GraphBuilder builder(ops, out);
  std::vector<ValueId> now(graph.num_values(), graph::kNoValue);
  std::vector<NodeId> now_node;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    Node copy = node;
    for (ValueId& operand : copy.operands) operand = now[operand];
    if (copy.forward != graph::kNoNode) copy.forward = now_node[copy.forward];
    if (!splits[id].has_value()) {
      copy.results.clear();
      std::vector<std::string> names;
      for (ValueId result : node.results) names.push_back(graph.value(result).name);
      const NodeId made = out.AddTyped(std::move(copy), graph.ResultTypes(node), names);
      now_node.push_back(made);
      for (size_t r = 0; r < node.results.size(); ++r) {
        now[node.results[r]] = out.node(made).results[r];
        out.mutable_value(now[node.results[r]]).sharding = graph.value(node.results[r]).sharding;
      }
      continue;
    }
    builder.set_phase(node.phase);
    builder.set_forward(copy.forward);
    builder.set_stage(node.stage);
    builder.set_scope(absl::StrCat(graph.value(node.results[0]).name, "."));
    const NodeId first = out.num_nodes();
    absl::StatusOr<std::vector<ValueId>> results = node.op->Decompose(builder, copy, *splits[id]);
    if (!results.ok()) return results.status();
    RETURN_IF_ERROR(builder.status());
    for (NodeId made = first; made < out.num_nodes(); ++made) {
      out.mutable_node(made).location = node.location;
    }
    for (size_t r = 0; r < node.results.size(); ++r) {
      now[node.results[r]] = (*results)[r];
      out.mutable_value((*results)[r]).sharding = graph.value(node.results[r]).sharding;
    }
    now_node.push_back(out.value((*results)[0]).producer);
  }
  for (const graph::Return& ret : graph.returns()) {
    out.mutable_returns().push_back({now[ret.value], ret.sharding});
  }
  graph = std::move(out);
  return Propagate(PropagationLevel::kUserPriority, &graph);
}

}  // namespace penstock::planner
