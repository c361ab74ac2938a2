#include <algorithm>
#include <map>

#include "base/status_macros.h"
#include "graph/op.h"
#include "planner/lower/sub_batches.h"
#include "planner/search/staged_graph_internal.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

Moment MomentOf(const PhaseKey& key) {
  if (key.lane() != Lane::kCompute) return Moment::kUpdate;
  return key.order == 0 ? Moment::kForward : Moment::kBackward;
}

absl::StatusOr<StagedGraph> StagedGraph::Create(const Graph& graph) {
  StagedGraph staged;
  staged.graph = &graph;
  staged.mesh = &graph.meshes()[0];
  ASSIGN_OR_RETURN(staged.phases, AssignPhases(graph, {}));
  staged.users = graph.Users();
  staged.types.reserve(graph.num_values());
  for (ValueId id = 0; id < graph.num_values(); ++id) {
    const graph::Value& value = graph.value(id);
    staged.types.push_back(value.sharding.has_value() ? LargestTile(value.type, *value.sharding)
                                                      : value.type);
  }
  staged.FindRoots();
  return staged;
}

bool StagedGraph::IsState(ValueId value) const {
  const Node& node = ProducerOf(value);
  return node.op->has_declared_type() && node.op->role() != graph::OpRole::kInput;
}

bool StagedGraph::IsFromHost(ValueId value) const {
  return ProducerOf(value).op->role() == graph::OpRole::kToDevice;
}

void StagedGraph::FindRoots() {
  roots.resize(graph->num_values());
  for (ValueId value = 0; value < graph->num_values(); ++value) {
    roots[value] = value;
    const Node& node = ProducerOf(value);
    if (!PhaseOf(value).is_live || node.operands.empty()) continue;
    const graph::OpRole role = node.op->role();
    ValueId source = graph::kNoValue;
    if (role == graph::OpRole::kReshape || TakesSubBatch(*graph, node)) {
      source = node.operands[0];
    }
    if ((role == graph::OpRole::kAllReduce || role == graph::OpRole::kAccumulate) &&
        users[node.operands[0]].size() == 1) {
      source = node.operands[0];
    }
    const std::vector<int> updated = node.op->updated_operands();
    const auto result = static_cast<size_t>(graph->value(value).result_index);
    if (result < updated.size() &&
        (IsState(node.operands[updated[result]]) || IsFromHost(node.operands[updated[result]]))) {
      source = node.operands[updated[result]];
    }
    if (source == graph::kNoValue || PhaseOf(source).is_leaf) continue;
    if (PhaseOf(source).virtual_stage != PhaseOf(value).virtual_stage) continue;
    if (IsState(source) && role != graph::OpRole::kReshape && updated.empty()) continue;
    roots[value] = roots[source];
  }
  std::map<ValueId, ValueId> joined;  // roots of sub-batches, and the whole
  for (const Node& node : graph->nodes()) {
    if (node.op->role() != graph::OpRole::kJoinSubBatches) continue;
    for (const ValueId part : node.operands) joined[roots[part]] = node.results[0];
  }
  for (ValueId value = 0; !joined.empty() && value < graph->num_values(); ++value) {
    const auto whole = joined.find(roots[value]);
    if (whole != joined.end()) roots[value] = whole->second;
  }
}

bool StagedGraph::IsFree(NodeId id) const {
  const Node& node = graph->node(id);
  if (node.op->has_declared_type() || node.op->role() == graph::OpRole::kAssign) return true;
  if (node.op->role() == graph::OpRole::kJoinSubBatches) return true;
  const bool may_share = node.op->role() == graph::OpRole::kReshape || TakesSubBatch(*graph, node);
  return may_share && roots[node.results[0]] != node.results[0];
}

}  // namespace penstock::planner
