#include "planner/sharding/decompose.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "graph/builder.h"
#include "planner/plan/recomputed_mark.h"
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

bool IsInSpace(const Mesh& mesh, const std::vector<graph::AxisRef>& axes) {
  return std::none_of(axes.begin(), axes.end(),
                      [&](const graph::AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
}

int64_t PartsOf(const std::vector<graph::AxisRef>& axes) {
  int64_t parts = 1;
  for (const graph::AxisRef& axis : axes) parts *= axis.size;
  return parts;
}

bool DividesEvenly(const graph::Factor& factor, int64_t parts) {
  return factor.size > 0 && factor.size % parts == 0;
}

// The first pair of factors that the operator can do with split alike, and that are: the first one
// as the node runs, the second by an operand.
std::optional<graph::FactorSplit> SplitPair(const Mesh& mesh, const graph::ShardingRule& rule,
                                            const std::vector<std::pair<int, int>>& pairs,
                                            const std::vector<Sharding>& operands,
                                            const FactorAxes& chosen) {
  for (const auto& [first, second] : pairs) {
    const std::vector<graph::AxisRef>& axes = chosen[first];
    const int64_t parts = PartsOf(axes);
    if (parts == 1 || !IsInSpace(mesh, axes) || !DividesEvenly(rule.factors[first], parts) ||
        !DividesEvenly(rule.factors[second], parts)) {
      continue;
    }
    for (size_t o = 0; o < operands.size(); ++o) {
      if (AxesOn(second, operands[o], rule.operands[o], rule) == axes) {
        return graph::FactorSplit{second, parts, first, /*is_even=*/true};
      }
    }
  }
  return std::nullopt;
}

// Whether operands or results have some of the axes on a factor that passes through: the node can
// run split by that one instead, as attention by heads.
bool RunsByAnother(const graph::ShardingRule& rule, const std::vector<std::pair<int, int>>& pairs,
                   int factor, const std::vector<graph::AxisRef>& axes,
                   const std::vector<Sharding>& operands, const std::vector<Sharding>& results) {
  const auto overlaps = [&](const std::optional<std::vector<graph::AxisRef>>& others) {
    return others.has_value() &&
           std::any_of(others->begin(), others->end(), [&](const graph::AxisRef& other) {
             return std::any_of(axes.begin(), axes.end(), [&](const graph::AxisRef& axis) {
               return graph::Overlap(axis, other);
             });
           });
  };
  for (int other = 0; other < static_cast<int>(rule.factors.size()); ++other) {
    const bool is_of_pair = std::any_of(pairs.begin(), pairs.end(), [&](const auto& pair) {
      return pair == std::pair(other, factor);
    });
    if (rule.factors[other].kind != graph::FactorKind::kPassThrough || is_of_pair) continue;
    for (size_t o = 0; o < operands.size(); ++o) {
      if (overlaps(AxesOn(other, operands[o], rule.operands[o], rule))) return true;
    }
    for (size_t r = 0; r < results.size(); ++r) {
      if (overlaps(AxesOn(other, results[r], rule.results[r], rule))) return true;
    }
  }
  return false;
}

// The first factor that the kernel needs whole, that the operator can do without, and that would be
// split in space if it were a reduction; and the number of its parts. An axis that already splits
// another factor does not count, unless the operator can do with such a pair: queries and keys that
// the axis of a sequence splits alike.
std::optional<graph::FactorSplit> SplitFactor(const Graph& graph, const Node& node) {
  const Mesh& mesh = graph.meshes()[node.mesh];
  const std::vector<TensorType> operand_types = graph.OperandTypes(node);
  const std::vector<TensorType> result_types = graph.ResultTypes(node);
  const graph::OpContext context = {node.attributes, operand_types, result_types};
  const std::vector<int> factors = node.op->DecomposableFactors(context);
  const std::vector<std::pair<int, int>> pairs = node.op->PairedFactors(context);
  if (factors.empty() && pairs.empty()) return std::nullopt;
  graph::ShardingRule rule = node.op->Rule(context);
  for (int factor : factors) rule.factors[factor].kind = graph::FactorKind::kReduction;
  const auto shardings = [&](const auto& values) {
    std::vector<Sharding> closed;
    for (ValueId id : values) {
      const graph::Value& value = graph.value(id);
      // What comes from another mesh arrives as the operator needs it.
      closed.push_back(graph.node(value.producer).mesh == node.mesh
                           ? ClosedSharding(mesh, value)
                           : Sharding::Replicated(static_cast<int>(value.type.shape.size())));
    }
    return closed;
  };
  const std::vector<Sharding> operands = shardings(node.operands);
  const std::vector<Sharding> results = shardings(node.results);
  const FactorAxes chosen = ChooseFactorAxes(mesh, rule, operand_types, operands, results);
  if (std::optional<graph::FactorSplit> pair = SplitPair(mesh, rule, pairs, operands, chosen)) {
    return pair;
  }
  const ExecutionSharding execution =
      ExecutionOf(mesh, rule, operands.size(), results.size(), chosen);
  for (int factor : factors) {
    for (size_t o = 0; o < operands.size(); ++o) {
      const auto axes = AxesOn(factor, execution.operands[o], rule.operands[o], rule);
      if (!axes.has_value()) continue;
      const int64_t parts = PartsOf(*axes);
      const bool has_devices =
          std::any_of(axes->begin(), axes->end(),
                      [&](const graph::AxisRef& axis) { return !graph::IsTemporal(mesh, axis); });
      if (!has_devices || parts == 1) continue;
      if (RunsByAnother(rule, pairs, factor, *axes, operands, results)) continue;
      const bool is_even = IsInSpace(mesh, *axes) && DividesEvenly(rule.factors[factor], parts);
      return graph::FactorSplit{factor, parts, /*partner=*/-1, is_even};
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
      out.mutable_node(made).mesh = node.mesh;
      if (node.attributes.GetBool(kRecomputedMark, false)) {
        out.mutable_node(made).attributes.Set(kRecomputedMark, true);
      }
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
