#include "planner/search/alike_nodes.h"

#include <map>
#include <string>
#include <utility>

#include "base/strings.h"
#include "graph/op.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::kNoNode;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

constexpr int kNoCopy = -1;

class Finder {
 public:
  Finder(const Graph& graph, absl::Span<const RepeatedLayers> runs) : graph_(graph), runs_(runs) {}

  std::vector<AlikeNode> Run() {
    users_ = graph_.Users();
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) nodes_.push_back({id, kNoCopy});
    if (runs_.empty()) return std::move(nodes_);
    int copies_before = 0;
    for (const RepeatedLayers& run : runs_) {
      for (int i = 0; i < run.num_copies * run.nodes_per_copy; ++i) {
        nodes_[run.first_node + i] = {run.first_node + i % run.nodes_per_copy,
                                      copies_before + i / run.nodes_per_copy};
      }
      copies_before += run.num_copies;
    }
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      if (nodes_[id].copy != kNoCopy) continue;
      if (IsDeclared(id) || graph_.node(id).phase == graph::Phase::kForward) continue;
      const NodeId forward = graph_.node(id).forward;
      if (forward != kNoNode && nodes_[forward].copy != kNoCopy) {
        const std::string kind = Kind(id);
        const int index = num_of_forward_[{forward, kind}]++;
        Join(id, StrCat("g", nodes_[forward].first, " ", index, " ", kind), nodes_[forward].copy);
      } else {
        JoinByOperands(id);
      }
    }
    return std::move(nodes_);
  }

 private:
  bool IsDeclared(NodeId id) const { return graph_.node(id).op->has_declared_type(); }

  // Operator, and types of operands and results.
  std::string Kind(NodeId id) const {
    const Node& node = graph_.node(id);
    std::string kind = StrCat(node.op->name(), " ", static_cast<int>(node.phase));
    for (const ValueId operand : node.operands) {
      StrAppend(&kind, " ", ToString(graph_.value(operand).type));
    }
    for (const ValueId result : node.results) {
      StrAppend(&kind, " -> ", ToString(graph_.value(result).type));
    }
    return kind;
  }

  // A state that only this node and its assignment touch.
  bool IsOwnState(ValueId value) const {
    const NodeId producer = graph_.value(value).producer;
    return IsDeclared(producer) && nodes_[producer].copy == kNoCopy && users_[value].size() <= 2;
  }

  void JoinByOperands(NodeId id) {
    const Node& node = graph_.node(id);
    std::string key = StrCat("o", Kind(id));
    int copy = kNoCopy;
    for (const ValueId operand : node.operands) {
      if (IsOwnState(operand)) {
        StrAppend(&key, " own");
        continue;
      }
      const graph::Value& value = graph_.value(operand);
      // Sums over layers, such as the norm of all gradients, are scalars.
      if (value.type.shape.empty()) {
        StrAppend(&key, " scalar ", operand);
        continue;
      }
      const AlikeNode& producer = nodes_[value.producer];
      if (producer.copy != kNoCopy) {
        // What joins two layers belongs to neither.
        if (copy != kNoCopy && copy != producer.copy) return;
        copy = producer.copy;
      }
      StrAppend(&key, " ", producer.first, ".", value.result_index);
    }
    if (copy != kNoCopy) Join(id, key, copy);
  }

  // Streams of random numbers do not count.
  bool HasAttributesOf(NodeId a, NodeId b) const {
    graph::Attributes attributes = graph_.node(a).attributes;
    graph::Attributes others = graph_.node(b).attributes;
    attributes.Erase("stream");
    others.Erase("stream");
    return attributes == others;
  }

  void Join(NodeId id, const std::string& key, int copy) {
    const auto [it, is_new] = first_.try_emplace(key, id);
    const NodeId first = it->second;
    if (!HasAttributesOf(id, first)) return;
    // A second one of the same copy is another node.
    if (!is_new && !copies_[first].try_emplace(copy, id).second) return;
    if (is_new) copies_[first].try_emplace(copy, id);
    nodes_[id] = {first, copy};
    const Node& node = graph_.node(id);
    const Node& like = graph_.node(first);
    for (size_t o = 0; o < node.operands.size(); ++o) {
      if (!IsOwnState(node.operands[o])) continue;
      nodes_[graph_.value(node.operands[o]).producer] = {graph_.value(like.operands[o]).producer,
                                                         copy};
    }
  }

  const Graph& graph_;
  const absl::Span<const RepeatedLayers> runs_;
  std::vector<std::vector<NodeId>> users_;
  std::vector<AlikeNode> nodes_;
  std::map<std::string, NodeId> first_;
  std::map<NodeId, std::map<int, NodeId>> copies_;  // of the first of each kind
  std::map<std::pair<NodeId, std::string>, int> num_of_forward_;
};

}  // namespace

std::vector<AlikeNode> FindAlikeNodes(const Graph& graph, absl::Span<const RepeatedLayers> runs) {
  return Finder(graph, runs).Run();
}

}  // namespace penstock::planner
