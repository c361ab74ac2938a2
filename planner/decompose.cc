#include "planner/decompose.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "graph/builder.h"
#include "planner/execution_sharding.h"
#include "planner/propagate.h"
#include "planner/select_mesh.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;
using graph::ValueId;

// The first factor that some operand splits in space, that the kernel needs whole and that the
// operator can do without.
std::optional<int> SplitFactor(const Graph& graph, const Node& node) {
  const Mesh& mesh = graph.meshes()[0];
  const std::vector<TensorType> operands = graph.OperandTypes(node);
  const std::vector<TensorType> results = graph.ResultTypes(node);
  const graph::OpContext context = {node.attributes, operands, results};
  const std::vector<int> factors = node.op->DecomposableFactors(context);
  if (factors.empty()) return std::nullopt;
  const graph::ShardingRule rule = node.op->Rule(context);
  for (size_t o = 0; o < node.operands.size(); ++o) {
    const Sharding sharding = ClosedSharding(mesh, graph.value(node.operands[o]));
    for (size_t d = 0; d < sharding.dims.size(); ++d) {
      const auto& dim = rule.operands[o][d];
      const auto split = SplitOverFactors(sharding.dims[d].axes, dim, rule);
      for (size_t i = 0; i < dim.size(); ++i) {
        const bool in_space =
            std::any_of(split[i].begin(), split[i].end(), [&](const graph::AxisRef& axis) {
              return !graph::IsTemporal(mesh, axis) && axis.size > 1;
            });
        if (in_space && std::find(factors.begin(), factors.end(), dim[i]) != factors.end()) {
          return dim[i];
        }
      }
    }
  }
  return std::nullopt;
}

}  // namespace

absl::Status DecomposeSplitFactors(const graph::OpRegistry& ops, Graph& graph) {
  RETURN_IF_ERROR(SelectMesh(graph));
  if (graph.meshes().empty()) return absl::OkStatus();
  std::vector<std::optional<int>> factors(graph.num_nodes());
  bool any = false;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    factors[id] = SplitFactor(graph, graph.node(id));
    any = any || factors[id].has_value();
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
    if (!factors[id].has_value()) {
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
    absl::StatusOr<std::vector<ValueId>> results = node.op->Decompose(builder, copy, *factors[id]);
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
