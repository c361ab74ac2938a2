#include "planner/draw/drawn_graph.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/op.h"
#include "graph/text.h"
#include "planner/lower/communication.h"
#include "planner/search/stage_work.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/strategy/repeated_layers.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Phase;
using graph::Sharding;
using graph::ValueId;

constexpr size_t kMaxTitleBytes = 400;
constexpr int kLeastCopies = 2;

// `copy` passes on what all micro-batches form (lower/rate_copies.h).
bool IsStepOf(const Node& node) {
  const graph::OpRole role = node.op->role();
  return IsRedistribution(role) || role == graph::OpRole::kReceive || node.op->name() == "copy";
}

DrawnColumn ColumnOf(const Node& node) {
  switch (node.phase) {
    case Phase::kForward:
      return DrawnColumn::kForward;
    case Phase::kBackward:
      return DrawnColumn::kBackward;
    case Phase::kWeightBackward:
      return DrawnColumn::kWeightBackward;
    case Phase::kUpdate:
      return DrawnColumn::kUpdate;
  }
  return DrawnColumn::kForward;
}

class Drawer {
 public:
  Drawer(const Graph& graph, int max_boxes_in_full)
      : graph_(graph),
        max_boxes_in_full_(max_boxes_in_full),
        users_(graph.Users()),
        routes_(static_cast<size_t>(graph.num_values())),
        places_(static_cast<size_t>(graph.num_nodes())) {}

  absl::StatusOr<DrawnGraph> Run() {
    FindPlaces();
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      drawn_.num_stages = std::max(drawn_.num_stages, graph_.node(id).stage + 1);
      RETURN_IF_ERROR(AddNode(id));
    }
    for (DrawnEdge& edge : drawn_.edges) edge.is_loop = edge.from >= edge.to;
    return std::move(drawn_);
  }

 private:
  // One communication on the way of a value.
  struct Step {
    std::string op;
    int64_t bytes = 0;
    std::string title;
  };

  // Where a value comes from: a box, or a value that has none yet, and the steps since.
  struct Route {
    int box = -1;
    NodeId hidden = graph::kNoNode;
    std::vector<Step> steps;
  };

  // Where a node stands in the repeated layers.
  struct Place {
    int copy = -1;
    int position = 0;
  };

  bool IsHidden(const Node& node) const {
    const graph::OpRole role = node.op->role();
    if (role == graph::OpRole::kInput) return false;
    return HoldsState(role) || node.operands.empty() || role == graph::OpRole::kAssign;
  }

  bool IsStep(const Node& node) const {
    return IsStepOf(node) && !TileRollOf(graph_, node).has_value();
  }

  void FindPlaces() {
    int num_boxes = 0;
    for (const Node& node : graph_.nodes()) num_boxes += IsHidden(node) || IsStep(node) ? 0 : 1;
    if (num_boxes <= max_boxes_in_full_) return;
    const RepeatedLayers layers = FindForwardLayers(graph_, kLeastCopies);
    const NodeId end = layers.first_node + layers.num_copies * layers.nodes_per_copy;
    for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
      const Node& node = graph_.node(id);
      if (id >= layers.first_node && id < end) {
        const int offset = id - layers.first_node;
        places_[id] = {offset / layers.nodes_per_copy, offset % layers.nodes_per_copy};
      } else if (node.phase == Phase::kBackward || node.phase == Phase::kWeightBackward) {
        places_[id] = PlaceOfBackward(id);
      }
    }
  }

  // Sums of gradients have no forward node: they belong to what made their last term.
  Place PlaceOfBackward(NodeId id) const {
    const Node& node = graph_.node(id);
    if (node.forward != graph::kNoNode && places_[node.forward].copy >= 0) {
      return places_[node.forward];
    }
    Place place;
    NodeId last = -1;
    for (const ValueId operand : node.operands) {
      const NodeId producer = graph_.value(operand).producer;
      if (graph_.node(producer).phase == Phase::kForward || producer <= last) continue;
      last = producer;
      place = places_[producer];
    }
    return place;
  }

  // Nodes with the same key are drawn as one.
  std::string KeyOf(NodeId id) {
    const Node& node = graph_.node(id);
    const std::string_view op = node.op->name();
    if (node.phase == Phase::kUpdate) return StrCat("update ", node.stage, " ", op);
    const Place& place = places_[id];
    if (place.copy < 0) return StrCat("node ", id);
    const std::string key = StrCat(node.phase == Phase::kForward ? "forward " : "backward ",
                                   node.stage, " ", place.position, " ", op);
    return StrCat(key, " ", occurrences_[{place.copy, key}]++);
  }

  std::string TitleOf(const Node& node) const {
    std::string title = graph::PrintNode(graph_, node);
    if (title.size() <= kMaxTitleBytes) return title;
    size_t end = kMaxTitleBytes;
    while ((static_cast<unsigned char>(title[end]) & 0xC0) == 0x80) --end;  // inside a character
    return title.substr(0, end) + " ...";
  }

  std::string ShardingOf(const Node& node, const graph::Value& value) const {
    if (graph_.meshes().empty()) return "";
    const Mesh& mesh = graph_.meshes()[static_cast<size_t>(node.mesh)];
    return ToString(mesh, ClosedSharding(mesh, value));
  }

  int BoxOf(NodeId id, bool is_junction) {
    const Node& node = graph_.node(id);
    const auto [it, is_new] = boxes_.try_emplace(KeyOf(id), static_cast<int>(drawn_.boxes.size()));
    if (!is_new) {
      ++drawn_.boxes[static_cast<size_t>(it->second)].count;
      return it->second;
    }
    DrawnBox& box = drawn_.boxes.emplace_back();
    box.column = ColumnOf(node);
    box.stage = std::max(node.stage, 0);
    box.is_junction = is_junction;
    box.op = std::string(node.op->name());
    const ValueId value = node.results.empty() ? node.operands[0] : node.results[0];
    box.name = graph_.value(value).name;
    box.title = TitleOf(node);
    box.type = penstock::ToString(graph_.value(value).type);
    box.sharding = ShardingOf(node, graph_.value(value));
    return it->second;
  }

  // The route of a value to a reader in this stage.
  Route RouteTo(ValueId value, int stage) {
    Route route = routes_[static_cast<size_t>(value)];
    const Node& producer = graph_.node(graph_.value(value).producer);
    const bool is_made_anywhere = producer.operands.empty() && !HoldsState(producer.op->role());
    const bool is_sent =
        producer.stage != stage && !is_made_anywhere && sent_.insert({value, stage}).second;
    if (is_sent) {
      const graph::Value& v = graph_.value(value);
      const Mesh& mesh = graph_.meshes()[producer.mesh];
      const int64_t bytes = LargestTile(v.type, ClosedSharding(mesh, v)).num_bytes();
      route.steps.push_back({"send", bytes, StrCat("%", v.name, " to stage ", stage)});
      ShowSource(&route);
    }
    return route;
  }

  // What is communicated comes from a box.
  void ShowSource(Route* route) {
    if (route->box >= 0) return;
    int& box = shown_.try_emplace(route->hidden, -1).first->second;
    if (box < 0) box = BoxOf(route->hidden, /*is_junction=*/false);
    route->box = box;
  }

  // The bytes of a redistribution; steps alike were planned before.
  absl::StatusOr<int64_t> BytesOf(const Node& node) {
    const std::optional<CollectiveKind> kind = CollectiveOf(node.op->role());
    if (!kind.has_value()) return 0;
    const Mesh& mesh = graph_.meshes()[node.mesh];
    const graph::Value& result = graph_.value(node.results[0]);
    const Sharding from = ClosedSharding(mesh, graph_.value(node.operands[0]));
    const Sharding to = ClosedSharding(mesh, result);
    const std::optional<TileRoll> roll = TileRollOf(graph_, node);
    std::string key = StrCat(Name(*kind), " ", penstock::ToString(result.type), " ", node.mesh, " ",
                             ToString(mesh, from), " ", ToString(mesh, to));
    if (roll.has_value()) StrAppend(&key, " ", roll->dim, " ", roll->by, "/", roll->parts);
    const auto [it, is_new] = bytes_.try_emplace(std::move(key), 0);
    if (!is_new) return it->second;
    ASSIGN_OR_RETURN(const Communication communication,
                     PlanCommunication(mesh, *kind, result.type, from, to, roll));
    for (const CollectiveSpec& spec : communication.groups) {
      for (size_t rank = 0; rank < spec.devices.size(); ++rank) {
        it->second = std::max(it->second, ReceivedBytes(spec, static_cast<int>(rank)));
      }
    }
    return it->second;
  }

  absl::Status AddNode(NodeId id) {
    const Node& node = graph_.node(id);
    if (node.op->role() == graph::OpRole::kAssign) {
      AddAssign(id);
      return absl::OkStatus();
    }
    if (IsHidden(node)) {
      for (const ValueId result : node.results) {
        routes_[static_cast<size_t>(result)].hidden = id;
      }
      return absl::OkStatus();
    }
    if (IsStep(node)) return AddStep(id);
    const std::vector<Route> routes = RoutesTo(node);
    const int box = BoxOf(id, /*is_junction=*/false);
    for (const Route& route : routes) {
      if (route.box >= 0) AddEdge(route, box);
    }
    // A roll over devices is a computation and a communication.
    if (CollectiveOf(node.op->role()).has_value()) {
      ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(node));
      for (const ValueId result : node.results) {
        routes_[static_cast<size_t>(result)].steps = {
            {std::string(node.op->name()), bytes, TitleOf(node)}};
      }
    }
    for (const ValueId result : node.results) routes_[static_cast<size_t>(result)].box = box;
    return absl::OkStatus();
  }

  absl::Status AddStep(NodeId id) {
    const Node& node = graph_.node(id);
    const ValueId result = node.results[0];
    Route route = RouteTo(node.operands[0], node.stage);
    if (CollectiveOf(node.op->role()).has_value()) {
      ASSIGN_OR_RETURN(const int64_t bytes, BytesOf(node));
      route.steps.push_back({std::string(node.op->name()), bytes, TitleOf(node)});
      ShowSource(&route);
    }
    if (!route.steps.empty() && users_[result].size() != 1) {
      const int junction = BoxOf(id, /*is_junction=*/true);
      AddEdge(route, junction);
      route = {.box = junction, .hidden = graph::kNoNode, .steps = {}};
    }
    routes_[static_cast<size_t>(result)] = std::move(route);
    return absl::OkStatus();
  }

  void AddAssign(NodeId id) {
    const Node& node = graph_.node(id);
    const Route route = RouteTo(node.operands[1], node.stage);
    if (route.box < 0 || route.steps.empty()) return;
    AddEdge(route, BoxOf(id, /*is_junction=*/false));
  }

  std::vector<Route> RoutesTo(const Node& node) {
    std::vector<Route> routes;
    std::set<ValueId> read;
    for (const ValueId operand : node.operands) {
      if (read.insert(operand).second) routes.push_back(RouteTo(operand, node.stage));
    }
    return routes;
  }

  void AddEdge(const Route& route, int box) {
    DrawnEdge edge;
    edge.from = route.box;
    edge.to = box;
    std::vector<std::string_view> names;
    for (const Step& step : route.steps) {
      names.push_back(step.op);
      edge.bytes += step.bytes;
      StrAppend(&edge.title, edge.title.empty() ? "" : "\n", step.title);
    }
    edge.label = StrJoin(names, ", ");
    const auto [it, is_new] =
        edges_.try_emplace({edge.from, edge.to, edge.label, edge.bytes}, drawn_.edges.size());
    if (is_new) {
      drawn_.edges.push_back(std::move(edge));
    } else {
      ++drawn_.edges[it->second].count;
    }
  }

  const Graph& graph_;
  const int max_boxes_in_full_;
  const std::vector<std::vector<NodeId>> users_;
  std::vector<Route> routes_;  // by value
  std::vector<Place> places_;  // by node
  std::map<std::pair<int, std::string>, int> occurrences_;
  std::map<std::string, int> boxes_;
  std::map<NodeId, int> shown_;  // of parameters and states
  std::map<std::tuple<int, int, std::string, int64_t>, size_t> edges_;
  std::set<std::pair<ValueId, int>> sent_;  // to a stage
  std::map<std::string, int64_t> bytes_;    // by step
  DrawnGraph drawn_;
};

}  // namespace

absl::StatusOr<DrawnGraph> ToDraw(const Graph& graph, int max_boxes_in_full) {
  return Drawer(graph, max_boxes_in_full).Run();
}

int64_t ReceivedBytes(const CollectiveSpec& spec, int rank) {
  const auto n = static_cast<int64_t>(spec.devices.size());
  const auto at = static_cast<size_t>(rank);
  const int64_t total = std::accumulate(spec.counts.begin(), spec.counts.end(), int64_t{0});
  int64_t elements = 0;
  switch (spec.kind) {
    case CollectiveKind::kAllReduce:
      // Its piece of the others' terms, then the other pieces.
      elements = (n - 1) * spec.counts[at] + total - spec.counts[at];
      break;
    case CollectiveKind::kReduceScatter:
      elements = (n - 1) * spec.counts[at];
      break;
    case CollectiveKind::kAllGather:
      elements = total - spec.counts[at];
      break;
    case CollectiveKind::kAllToAll:
      for (int64_t from = 0; from < n; ++from) {
        if (from != rank) elements += spec.counts[static_cast<size_t>(from * n + rank)];
      }
      break;
    case CollectiveKind::kBroadcast:
      elements = static_cast<uint32_t>(rank) == spec.root ? 0 : spec.counts[0];
      break;
    case CollectiveKind::kPermute:
      for (size_t from = 0; from < spec.peers.size(); ++from) {
        if (from != at && spec.peers[from] == at) elements += spec.counts[from];
      }
      break;
  }
  return elements * static_cast<int64_t>(ByteSize(spec.dtype));
}

}  // namespace penstock::planner
