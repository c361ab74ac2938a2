#include "planner/lower/prefetch.h"

#include <algorithm>
#include <map>
#include <utility>

#include "graph/op.h"
#include "planner/lower/communication.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;

bool IsGatheredPerUse(const Graph& graph, const std::vector<NodePhase>& phases, NodeId id) {
  const Node& node = graph.node(id);
  if (!phases[id].is_live || phases[id].key.lane() != Lane::kCompute ||
      !node.attributes.GetBool("per_use", false) || !CollectiveOf(node.op->role())) {
    return false;
  }
  return graph.node(graph.value(node.operands[0]).producer).op->has_declared_type();
}

// Whether the node passes on what the device has just been passed. It waits for the kernel before
// it, which needs what was passed before: a ring holds two parts at a time.
bool IsPassedOn(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!TileRollOf(graph, node).has_value()) return false;
  const Node& producer = graph.node(graph.value(node.operands[0]).producer);
  return TileRollOf(graph, producer).has_value();
}

// The bytes of the result on a device, the same for all.
int64_t BytesOf(const Graph& graph, NodeId id) {
  const graph::Value& value = graph.value(graph.node(id).results[0]);
  int64_t parts = 1;
  for (const graph::DimSharding& dim : value.sharding->dims) parts *= graph::NumParts(dim);
  return static_cast<int64_t>(value.type.num_bytes()) / parts;
}

// A gather among the other nodes of its phase, which are counted from 0.
struct Gather {
  NodeId node = graph::kNoNode;
  int64_t bytes = 0;
  int start = 0;
  int first_use = 0;
  int last_use = 0;
};

// Decides when the gathers of one phase start. They are in the order of their first use.
void ChooseStarts(int64_t bytes_ahead, std::vector<Gather>* gathers) {
  for (size_t j = 0; j < gathers->size(); ++j) {
    Gather& gather = (*gathers)[j];
    if (j == 0) continue;
    const Gather& before = (*gathers)[j - 1];
    const auto fits = [&](int position) {
      int64_t held = gather.bytes;
      for (size_t i = 0; i < j; ++i) {
        const Gather& other = (*gathers)[i];
        if (other.start <= position && position <= other.last_use) held += other.bytes;
      }
      return held <= bytes_ahead;
    };
    gather.start = gather.first_use;
    while (gather.start > before.start && fits(gather.start - 1)) --gather.start;
    gather.start = std::max(std::min(gather.start, before.first_use), before.start);
  }
}

}  // namespace

std::vector<ScheduledNode> OrderNodes(const Graph& graph, const std::vector<NodePhase>& phases,
                                      int64_t bytes_ahead) {
  struct PhaseNodes {
    std::vector<NodeId> others;
    std::vector<Gather> gathers;
  };
  std::map<std::pair<int, PhaseKey>, PhaseNodes> nodes_of;
  std::vector<int> position(graph.num_nodes(), -1);  // of the others
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const NodePhase& phase = phases[id];
    if (!phase.is_live || phase.is_leaf || graph.node(id).op->has_declared_type()) continue;
    PhaseNodes& nodes = nodes_of[{phase.stage, phase.key}];
    if (IsGatheredPerUse(graph, phases, id)) {
      nodes.gathers.push_back({id, BytesOf(graph, id)});
    } else {
      position[id] = static_cast<int>(nodes.others.size());
      nodes.others.push_back(id);
    }
  }
  const std::vector<std::vector<NodeId>> users = graph.Users();
  std::map<NodeId, std::vector<ScheduledNode>> starts_before;  // a node
  std::vector<bool> is_early(graph.num_nodes(), false);
  std::vector<bool> is_gated(graph.num_nodes(), false);
  for (auto& [key, nodes] : nodes_of) {
    for (Gather& gather : nodes.gathers) {
      gather.first_use = static_cast<int>(nodes.others.size());
      for (const NodeId user : users[graph.node(gather.node).results[0]]) {
        if (position[user] < 0 || phases[user].stage != key.first ||
            phases[user].key != key.second) {
          continue;
        }
        gather.first_use = std::min(gather.first_use, position[user]);
        gather.last_use = std::max(gather.last_use, position[user]);
      }
    }
    std::erase_if(nodes.gathers, [&](const Gather& gather) {
      return gather.first_use == static_cast<int>(nodes.others.size());
    });
    std::stable_sort(nodes.gathers.begin(), nodes.gathers.end(),
                     [](const Gather& a, const Gather& b) { return a.first_use < b.first_use; });
    ChooseStarts(bytes_ahead, &nodes.gathers);
    for (const Gather& gather : nodes.gathers) {
      const NodeId next = nodes.others[gather.start];
      is_gated[gather.node] = gather.start > 0;
      if (next > gather.node) continue;  // it stands right before that
      is_early[gather.node] = true;
      starts_before[next].push_back(
          {gather.node, ScheduledNode::Part::kStart, is_gated[gather.node]});
    }
  }
  std::vector<ScheduledNode> order;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const auto starts = starts_before.find(id);
    if (starts != starts_before.end()) {
      order.insert(order.end(), starts->second.begin(), starts->second.end());
    }
    order.push_back({id, is_early[id] ? ScheduledNode::Part::kFinish : ScheduledNode::Part::kAll,
                     (is_gated[id] && !is_early[id]) || IsPassedOn(graph, id)});
  }
  return order;
}

}  // namespace penstock::planner
