#include "planner/strategy/repeated_layers.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/op.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

// Of a layer that has several products.
constexpr int kManyNodes = 12;
// Copies longer than this are not looked for.
constexpr int kMaxNodesPerCopy = 1024;

// What a node is apart from its operands.
struct NodeKind {
  const graph::Op* op = nullptr;
  graph::Attributes attributes;
  std::vector<TensorType> results;
  std::vector<int> hints = {};  // the first of a model, and all that a user states
  friend bool operator==(const NodeKind&, const NodeKind&) = default;
};

NodeKind KindOf(const Graph& graph, const Node& node, absl::Span<const graph::SplitHint> hints) {
  NodeKind kind = {node.op, node.attributes, graph.ResultTypes(node)};
  kind.attributes.Erase("stream");
  if (node.op->has_declared_type()) kind.attributes.Erase("std");
  bool has_hint = false;  // of the model
  for (size_t h = 0; h < hints.size(); ++h) {
    const graph::SplitHint& hint = hints[h];
    const bool is_stated = !hint.sharding.empty();
    if (!is_stated && (has_hint || !node.op->has_declared_type())) continue;
    // What is made for a value, such as its gradient, is called by its name and a suffix.
    const std::string_view of_value =
        std::string_view(hint.pattern).substr(0, hint.pattern.rfind('.'));
    const bool matches = std::any_of(node.results.begin(), node.results.end(), [&](ValueId result) {
      const std::string& name = graph.value(result).name;
      return graph::MatchesPattern(hint.pattern, name) ||
             (is_stated && graph::MatchesPattern(of_value, name));
    });
    if (!matches) continue;
    kind.hints.push_back(static_cast<int>(h));
    has_hint = has_hint || !is_stated;
  }
  return kind;
}

int NumForwardNodes(const Graph& graph) {
  const auto end = std::find_if(graph.nodes().begin(), graph.nodes().end(), [](const Node& node) {
    return node.phase != graph::Phase::kForward;
  });
  return static_cast<int>(end - graph.nodes().begin());
}

class Finder {
 public:
  // Of the first `count` nodes; `may_drop`: whether copies are to be dropped.
  Finder(const Graph& graph, absl::Span<const graph::SplitHint> hints, int min_copies, int count,
         bool may_drop)
      : graph_(graph), min_copies_(min_copies), count_(count), may_drop_(may_drop) {
    std::map<const graph::Op*, std::vector<std::pair<NodeKind, int>>> known;
    int num_kinds = 0;
    for (const Node& node : graph.nodes().subspan(0, static_cast<size_t>(count))) {
      NodeKind kind = KindOf(graph, node, hints);
      auto& list = known[node.op];
      auto found = std::find_if(list.begin(), list.end(),
                                [&](const auto& entry) { return entry.first == kind; });
      if (found == list.end()) {
        list.emplace_back(std::move(kind), num_kinds++);
        found = std::prev(list.end());
      }
      kinds_.push_back(found->second);
    }
  }

  RepeatedLayers Run() const { return Longest(0, count_); }

  // In the order of the nodes.
  std::vector<RepeatedLayers> RunAll() const {
    std::vector<RepeatedLayers> runs;
    AddRuns(0, count_, &runs);
    return runs;
  }

 private:
  // That covers most of the nodes [begin, end).
  RepeatedLayers Longest(NodeId begin, NodeId end) const {
    RepeatedLayers best;
    const int count = end - begin;
    for (int period = 1; period <= std::min(count / min_copies_, kMaxNodesPerCopy); ++period) {
      int run = 0;
      for (NodeId id = begin; id + period <= end; ++id) {
        const bool is_alike = id + period < end && IsAlike(id, id + period);
        if (is_alike) {
          ++run;
          continue;
        }
        Offer({id - run, period, (run + period) / period}, &best);
        run = 0;
      }
      // A longer period can cover little more.
      if (best.num_copies > 0 && best.num_copies * best.nodes_per_copy > count / 2) break;
    }
    return best;
  }

  void AddRuns(NodeId begin, NodeId end, std::vector<RepeatedLayers>* runs) const {
    const RepeatedLayers longest = Longest(begin, end);
    const int length = longest.num_copies * longest.nodes_per_copy;
    const bool is_beside_another = end - begin < count_;
    const bool is_small = longest.nodes_per_copy == 1 || length * kLeastPartOfRun < count_;
    if (length == 0 || (is_beside_another && is_small)) return;
    AddRuns(begin, longest.first_node, runs);
    runs->push_back(longest);
    AddRuns(longest.first_node + length, end, runs);
  }

  bool IsAlike(NodeId a, NodeId b) const {
    if (kinds_[a] != kinds_[b]) return false;
    const Node& x = graph_.node(a);
    const Node& y = graph_.node(b);
    if (x.operands.size() != y.operands.size()) return false;
    for (size_t o = 0; o < x.operands.size(); ++o) {
      if (x.operands[o] == y.operands[o]) continue;
      const graph::Value& v = graph_.value(x.operands[o]);
      const graph::Value& w = graph_.value(y.operands[o]);
      if (v.result_index != w.result_index || a - v.producer != b - w.producer) return false;
    }
    return true;
  }

  void Offer(const RepeatedLayers& layers, RepeatedLayers* best) const {
    if (layers.num_copies < min_copies_) return;
    if (layers.num_copies * layers.nodes_per_copy <= best->num_copies * best->nodes_per_copy) {
      return;
    }
    if (!may_drop_ || CanDrop(layers)) *best = layers;
  }

  // Whether what follows reads only the last two copies, and what comes before.
  bool CanDrop(const RepeatedLayers& layers) const {
    const NodeId end = layers.first_node + layers.num_copies * layers.nodes_per_copy;
    const NodeId last_two = end - 2 * layers.nodes_per_copy;
    const auto is_within_reach = [&](ValueId value) {
      const NodeId producer = graph_.value(value).producer;
      return producer < layers.first_node || producer >= last_two;
    };
    for (NodeId id = end; id < graph_.num_nodes(); ++id) {
      const Node& node = graph_.node(id);
      if (!std::all_of(node.operands.begin(), node.operands.end(), is_within_reach)) return false;
    }
    return std::all_of(graph_.returns().begin(), graph_.returns().end(),
                       [&](const graph::Return& ret) { return is_within_reach(ret.value); });
  }

  const Graph& graph_;
  const int min_copies_;
  const int count_;
  const bool may_drop_;
  std::vector<int> kinds_;
};

}  // namespace

RepeatedLayers FindRepeatedLayers(const Graph& graph, absl::Span<const graph::SplitHint> hints,
                                  int min_copies) {
  return Finder(graph, hints, min_copies, graph.num_nodes(), /*may_drop=*/true).Run();
}

std::vector<RepeatedLayers> FindRepeatedRuns(const Graph& graph,
                                             absl::Span<const graph::SplitHint> hints,
                                             int min_copies) {
  return Finder(graph, hints, min_copies, graph.num_nodes(), /*may_drop=*/true).RunAll();
}

RepeatedLayers FindForwardLayers(const Graph& graph, int min_copies) {
  return Finder(graph, {}, min_copies, NumForwardNodes(graph), /*may_drop=*/false).Run();
}

std::vector<RepeatedLayers> FindForwardRuns(const Graph& graph, int min_copies) {
  return Finder(graph, {}, min_copies, NumForwardNodes(graph), /*may_drop=*/false).RunAll();
}

RepeatedLayers InPairs(const RepeatedLayers& layers) {
  if (layers.nodes_per_copy >= kManyNodes) return layers;
  const RepeatedLayers pairs = {layers.first_node, 2 * layers.nodes_per_copy,
                                layers.num_copies / 2};
  return pairs.num_copies < kLeastLayers ? RepeatedLayers() : pairs;
}

std::vector<RepeatedLayers> InPairs(absl::Span<const RepeatedLayers> runs) {
  std::vector<RepeatedLayers> pairs;
  for (const RepeatedLayers& run : runs) {
    const RepeatedLayers of_run = InPairs(run);
    if (of_run.num_copies > 0) pairs.push_back(of_run);
  }
  return pairs;
}

Graph WithCopies(Graph graph, absl::Span<const RepeatedLayers> runs, int num_copies) {
  // Runs before the one that is cut stay where they are.
  for (auto run = runs.rbegin(); run != runs.rend(); ++run) {
    graph = WithCopies(graph, *run, num_copies);
  }
  return graph;
}

Graph WithCopies(const Graph& graph, const RepeatedLayers& layers, int num_copies) {
  const NodeId end = layers.first_node + layers.num_copies * layers.nodes_per_copy;
  const NodeId kept_end = layers.first_node + num_copies * layers.nodes_per_copy;
  Graph out(graph.name());
  out.mutable_meshes() = graph.meshes();
  std::vector<ValueId> now(graph.num_values(), graph::kNoValue);
  const auto now_of = [&](ValueId value) {
    const graph::Value& v = graph.value(value);
    if (v.producer < kept_end || v.producer >= end) return now[value];
    // As far from the end of the copies that are left.
    return now[graph.node(v.producer - (end - kept_end)).results[v.result_index]];
  };
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    if (id >= kept_end && id < end) continue;
    const Node& node = graph.node(id);
    Node copy = node;
    for (ValueId& operand : copy.operands) operand = now_of(operand);
    copy.results.clear();
    std::vector<std::string> names;
    for (const ValueId result : node.results) names.push_back(graph.value(result).name);
    const NodeId made = out.AddTyped(std::move(copy), graph.ResultTypes(node), names);
    for (size_t r = 0; r < node.results.size(); ++r) {
      now[node.results[r]] = out.node(made).results[r];
      out.mutable_value(now[node.results[r]]).sharding = graph.value(node.results[r]).sharding;
    }
  }
  for (const graph::Return& ret : graph.returns()) {
    out.mutable_returns().push_back({now_of(ret.value), ret.sharding});
  }
  return out;
}

}  // namespace penstock::planner
