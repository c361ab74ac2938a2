#include "planner/lower/prefetch.h"

#include <algorithm>
#include <deque>
#include <map>
#include <utility>
#include <vector>

#include "graph/op.h"
#include "planner/lower/communication.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;

// What such a gather reads is there when its phase starts: a parameter, or the cast of one, which
// runs once a step.
bool IsGatheredPerUse(const Graph& graph, const std::vector<NodePhase>& phases, NodeId id) {
  const Node& node = graph.node(id);
  if (!phases[id].is_live || phases[id].key.lane() != Lane::kCompute ||
      !node.attributes.GetBool("per_use", false) || !CollectiveOf(node.op->role())) {
    return false;
  }
  const NodeId made = graph.value(node.operands[0]).producer;
  return graph.node(made).op->has_declared_type() || phases[made].key != phases[id].key;
}

// Whether the node passes on what the device has just been passed. It waits for the kernel before
// it, which needs what was passed before: a ring holds two parts at a time.
bool IsPassedOn(const Graph& graph, NodeId id) {
  const Node& node = graph.node(id);
  if (!TileRollOf(graph, node).has_value()) return false;
  const Node& producer = graph.node(graph.value(node.operands[0]).producer);
  return TileRollOf(graph, producer).has_value();
}

// Gathers of one bucket, among the other nodes of their phase, which are counted from 0.
struct Gather {
  struct Member {
    NodeId node = graph::kNoNode;
    int64_t bytes = 0;
    int first_use = 0;
    int last_use = 0;
  };
  std::vector<Member> members;  // in the order of their first use
  int start = 0;

  int first_use() const { return members[0].first_use; }
  int64_t bytes() const { return HeldAt(first_use()); }
  // By what is needed there or later.
  int64_t HeldAt(int position) const {
    int64_t held = 0;
    for (const Member& member : members) {
      if (position <= member.last_use) held += member.bytes;
    }
    return held;
  }
};

// Joins gathers of one parameter each, in the order of their first use.
std::vector<Gather> JoinGathers(const Graph& graph, const std::vector<NodePhase>& phases,
                                const BucketLimits& limits, std::vector<Gather> gathers) {
  std::vector<Gather> joined;
  BucketKey last;
  for (Gather& gather : gathers) {
    const NodeId id = gather.members[0].node;
    if (graph.node(id).op->role() != graph::OpRole::kAllGather) {
      joined.push_back(std::move(gather));
      last = {};
      continue;
    }
    BucketKey key = BucketKeyOf(graph, phases, id);
    const int64_t most = std::min(limits.bytes / 2, limits.Over(key.kind, key.axes));
    const bool fits =
        joined.size() > 1 && key == last && joined.back().bytes() + gather.bytes() <= most;
    if (fits) {
      joined.back().members.push_back(gather.members[0]);
    } else {
      joined.push_back(std::move(gather));
    }
    last = std::move(key);
  }
  return joined;
}

// Decides when the gathers of one phase start. They are in the order of their first use.
void ChooseStarts(int64_t bytes_ahead, std::vector<Gather>* gathers) {
  for (size_t j = 0; j < gathers->size(); ++j) {
    Gather& gather = (*gathers)[j];
    if (j == 0) continue;
    const Gather& before = (*gathers)[j - 1];
    const auto fits = [&](int position) {
      int64_t held = gather.bytes();
      for (size_t i = 0; i < j; ++i) {
        const Gather& other = (*gathers)[i];
        if (other.start <= position) held += other.HeldAt(position);
      }
      return held <= bytes_ahead;
    };
    gather.start = gather.first_use();
    while (gather.start > before.start && fits(gather.start - 1)) --gather.start;
    gather.start = std::max(std::min(gather.start, before.first_use()), before.start);
  }
}

// Puts nodes into their order, where some start later than they stand: what reads their results
// follows them.
class NodeOrder {
 public:
  using Nodes = std::vector<ScheduledNode>;  // that follow each other

  explicit NodeOrder(const Graph& graph) : graph_(graph), waiting_(graph.num_nodes()) {}

  // The node has not been added yet when those that read its result may be.
  void Delay(NodeId id) { waiting_[id].is_delayed = true; }

  void Add(Nodes nodes) {
    std::deque<Nodes> ready;
    ready.push_back(std::move(nodes));
    for (; !ready.empty(); ready.pop_front()) {
      Nodes& next = ready.front();
      const NodeId awaited = DelayedOperandOf(next);
      if (awaited == graph::kNoNode) {
        for (const ScheduledNode& scheduled : next) Release(scheduled.node, &ready);
        order_.insert(order_.end(), next.begin(), next.end());
        continue;
      }
      for (const ScheduledNode& scheduled : next) Delay(scheduled.node);
      waiting_[awaited].nodes.push_back(std::move(next));
    }
  }

  std::vector<ScheduledNode> Take() { return std::move(order_); }

 private:
  struct Waiting {
    bool is_delayed = false;
    std::vector<Nodes> nodes;  // that wait for this one
  };

  NodeId DelayedOperandOf(const Nodes& nodes) const {
    for (const ScheduledNode& scheduled : nodes) {
      for (const graph::ValueId operand : graph_.node(scheduled.node).operands) {
        const NodeId producer = graph_.value(operand).producer;
        if (waiting_[producer].is_delayed) return producer;
      }
    }
    return graph::kNoNode;
  }

  void Release(NodeId id, std::deque<Nodes>* ready) {
    Waiting& waiting = waiting_[id];
    waiting.is_delayed = false;
    for (Nodes& nodes : waiting.nodes) ready->push_back(std::move(nodes));
    waiting.nodes.clear();
  }

  const Graph& graph_;
  std::vector<Waiting> waiting_;  // by node
  std::vector<ScheduledNode> order_;
};

}  // namespace

std::vector<ScheduledNode> OrderNodes(const Graph& graph, const std::vector<NodePhase>& phases,
                                      const BucketLimits& limits) {
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
      nodes.gathers.push_back({{{id, WholeBytes(graph, id)}}});
    } else {
      position[id] = static_cast<int>(nodes.others.size());
      nodes.others.push_back(id);
    }
  }
  const std::vector<std::vector<NodeId>> users = graph.Users();
  struct Start {
    std::vector<NodeId> nodes;
    int bucket = -1;
    bool is_gated = false;
  };
  std::map<NodeId, std::vector<Start>> starts_before;                // a node
  std::vector<NodeId> starts_at(graph.num_nodes(), graph::kNoNode);  // the node before it
  std::vector<bool> is_gated(graph.num_nodes(), false);
  int num_buckets = 0;
  for (auto& [key, nodes] : nodes_of) {
    const auto num_others = static_cast<int>(nodes.others.size());
    for (Gather& gather : nodes.gathers) {
      Gather::Member& member = gather.members[0];
      member.first_use = num_others;
      for (const NodeId user : users[graph.node(member.node).results[0]]) {
        if (position[user] < 0 || phases[user].stage != key.first ||
            phases[user].key != key.second) {
          continue;
        }
        member.first_use = std::min(member.first_use, position[user]);
        member.last_use = std::max(member.last_use, position[user]);
      }
    }
    std::erase_if(nodes.gathers,
                  [&](const Gather& gather) { return gather.first_use() == num_others; });
    std::stable_sort(
        nodes.gathers.begin(), nodes.gathers.end(),
        [](const Gather& a, const Gather& b) { return a.first_use() < b.first_use(); });
    nodes.gathers = JoinGathers(graph, phases, limits, std::move(nodes.gathers));
    ChooseStarts(limits.bytes, &nodes.gathers);
    for (const Gather& gather : nodes.gathers) {
      const NodeId next = nodes.others[gather.start];
      const NodeId first = gather.members[0].node;
      const bool is_alone = gather.members.size() == 1;
      is_gated[first] = gather.start > 0;
      if (is_alone && next > first) continue;  // it stands right before that
      Start& start = starts_before[next].emplace_back();
      start.is_gated = is_gated[first];
      if (!is_alone) start.bucket = num_buckets++;
      for (const Gather::Member& member : gather.members) {
        start.nodes.push_back(member.node);
        starts_at[member.node] = next;
      }
    }
  }
  // All collectives of a bucket, then what they leave to do.
  const auto together = [](const std::vector<NodeId>& nodes, int bucket, bool gated) {
    NodeOrder::Nodes scheduled;
    for (const NodeId id : nodes) {
      scheduled.push_back(
          {id, ScheduledNode::Part::kStart, gated, bucket, /*ends_bucket=*/id == nodes.back()});
    }
    return scheduled;
  };
  // What is gathered early is made early: by nodes of other phases, and what they read.
  std::vector<bool> is_read_early(graph.num_nodes(), false);
  for (const auto& [next, starts] : starts_before) {
    for (const Start& start : starts) {
      for (const NodeId id : start.nodes) {
        is_read_early[graph.value(graph.node(id).operands[0]).producer] = true;
      }
    }
  }
  for (NodeId id = graph.num_nodes() - 1; id >= 0; --id) {
    if (!is_read_early[id]) continue;
    for (const graph::ValueId operand : graph.node(id).operands) {
      is_read_early[graph.value(operand).producer] = true;
    }
  }
  NodeOrder order(graph);
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (is_read_early[id]) order.Add({{id, ScheduledNode::Part::kAll}});
  }
  std::map<NodeId, NodeOrder::Nodes> bucket_at;  // its last node
  std::vector<bool> is_in_bucket(graph.num_nodes(), false);
  for (const std::vector<NodeId>& bucket : FormPhaseBuckets(graph, phases, limits)) {
    NodeOrder::Nodes& nodes = bucket_at[bucket.back()];
    nodes = together(bucket, num_buckets++, false);
    for (const NodeId id : bucket) {
      nodes.push_back({id, ScheduledNode::Part::kFinish});
      is_in_bucket[id] = true;
      order.Delay(id);
    }
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const auto starts = starts_before.find(id);
    if (starts != starts_before.end()) {
      for (const Start& start : starts->second) {
        NodeOrder::Nodes nodes = together(start.nodes, start.bucket, start.is_gated);
        for (const NodeId node : start.nodes) {
          if (node < id) nodes.push_back({node, ScheduledNode::Part::kFinish});
        }
        order.Add(std::move(nodes));
      }
    }
    if (const auto bucket = bucket_at.find(id); bucket != bucket_at.end()) {
      order.Add(std::move(bucket->second));
    } else if (starts_at[id] != graph::kNoNode) {
      if (id > starts_at[id]) order.Add({{id, ScheduledNode::Part::kFinish}});
    } else if (!is_in_bucket[id] && !is_read_early[id]) {
      order.Add({{id, ScheduledNode::Part::kAll, is_gated[id] || IsPassedOn(graph, id)}});
    }
  }
  return order.Take();
}

}  // namespace penstock::planner
