#include "planner/lower/phase_buckets.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "graph/op.h"
#include "planner/lower/communication.h"
#include "planner/sharding/execution_sharding.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

// What a phase scatters goes in at least so many parts: the link is idle while the first one is
// made.
constexpr int64_t kLeastParts = 8;

// Whether a node of the same phase reads the value, other than to add it up over micro-batches for
// later phases.
bool IsAwaited(const Graph& graph, const std::vector<NodePhase>& phases,
               const std::vector<std::vector<NodeId>>& users, ValueId value, NodeId made_by) {
  const NodePhase& phase = phases[made_by];
  return std::any_of(users[value].begin(), users[value].end(), [&](NodeId user) {
    const Node& node = graph.node(user);
    // What another mesh takes of it may be copied out in its phase.
    if (node.op->role() == graph::OpRole::kReceive) return true;
    if (!phases[user].is_live || phases[user].stage != phase.stage ||
        phases[user].key != phase.key || node.op->role() == graph::OpRole::kAssign) {
      return false;
    }
    return node.op->role() != graph::OpRole::kAccumulate ||
           IsAwaited(graph, phases, users, node.results[0], user);
  });
}

// Gradients that are scattered in the phase that makes them, and what an update makes. (What is
// scattered after sums over micro-batches, beside the phases, has buckets of its own.)
bool IsCandidate(const Graph& graph, const std::vector<NodePhase>& phases, NodeId id) {
  const NodePhase& phase = phases[id];
  if (!phase.is_live || phase.is_leaf) return false;
  switch (graph.node(id).op->role()) {
    case graph::OpRole::kReduceScatter:
      return phase.key.lane() == Lane::kCompute && phase.key.order != 0;
    case graph::OpRole::kAllGather:
      return phase.key.kind() == PhaseKind::kAfterStep;
    default:
      return false;
  }
}

}  // namespace

BucketKey BucketKeyOf(const Graph& graph, const std::vector<NodePhase>& phases, NodeId id) {
  const Node& node = graph.node(id);
  const graph::Mesh& mesh = graph.meshes()[node.mesh];
  const graph::Value& operand = graph.value(node.operands[0]);
  const graph::Sharding from = ClosedSharding(mesh, operand);
  BucketKey key;
  key.stage = phases[id].stage;
  key.phase = phases[id].key;
  key.kind = *CollectiveOf(node.op->role());
  key.axes = MovedAxes(key.kind, from, ClosedSharding(mesh, graph.value(node.results[0])));
  key.dtype = operand.type.dtype;
  if (key.kind != CollectiveKind::kReduceScatter || key.axes.empty()) return key;
  for (const graph::PartialSpec& partial : from.partials) {
    const bool is_reduced =
        std::any_of(partial.axes.begin(), partial.axes.end(),
                    [&](const graph::AxisRef& axis) { return graph::Overlap(axis, key.axes[0]); });
    if (is_reduced) key.reduction = partial.reduction;
  }
  return key;
}

int64_t WholeBytes(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  const bool is_scatter = node.op->role() == graph::OpRole::kReduceScatter;
  const graph::Value& value = graph.value(is_scatter ? node.operands[0] : node.results[0]);
  int64_t parts = 1;
  for (const graph::DimSharding& dim : value.sharding->dims) parts *= graph::NumParts(dim);
  return static_cast<int64_t>(value.type.num_bytes()) / parts;
}

std::vector<std::vector<NodeId>> FormPhaseBuckets(const Graph& graph,
                                                  const std::vector<NodePhase>& phases,
                                                  const BucketLimits& limits) {
  if (limits.bytes <= 0) return {};
  const std::vector<std::vector<NodeId>> users = graph.Users();
  struct Candidates {
    std::vector<NodeId> nodes;
    int64_t bytes = 0;
  };
  std::map<BucketKey, Candidates> candidates;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (!IsCandidate(graph, phases, id) ||
        IsAwaited(graph, phases, users, graph.node(id).results[0], id)) {
      continue;
    }
    Candidates& alike = candidates[BucketKeyOf(graph, phases, id)];
    alike.nodes.push_back(id);
    alike.bytes += WholeBytes(graph, id);
  }
  std::vector<std::vector<NodeId>> buckets;
  for (auto& [key, alike] : candidates) {
    int64_t most = limits.Over(key.kind, key.axes);
    if (key.kind == CollectiveKind::kReduceScatter)
      most = std::min(most, alike.bytes / kLeastParts);
    alike.nodes.pop_back();  // the last one of the phase
    std::vector<NodeId> bucket;
    int64_t bytes = 0;
    const auto close = [&] {
      if (bucket.size() > 1) buckets.push_back(bucket);
      bucket.clear();
      bytes = 0;
    };
    for (const NodeId id : alike.nodes) {
      const int64_t more = WholeBytes(graph, id);
      if (bytes + more > most) close();
      bucket.push_back(id);
      bytes += more;
    }
    close();
  }
  return buckets;
}

}  // namespace penstock::planner
