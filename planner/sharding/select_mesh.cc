#include "planner/sharding/select_mesh.h"

#include <string>
#include <utility>

#include "base/strings.h"
#include "graph/text.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Node;
using graph::NodeId;

// "g.pst:4:3", or nothing of a node that code built.
std::string PlaceOf(const Node& node) {
  const graph::SourceLocation& place = node.location;
  return place.line > 0 ? StrCat(place.file, ":", place.line, ":", place.column) : "";
}

absl::Status LiesOnBoth(const Graph& graph, const Node& first, const Node& other) {
  const std::string place = PlaceOf(other);
  const std::string first_place = PlaceOf(first);
  const std::string& mesh = graph.meshes()[first.mesh].name;
  return absl::UnimplementedError(
      StrCat(place, place.empty() ? "" : ": ", "this statement lies on mesh '",
             graph.meshes()[other.mesh].name, "', those before it on '", mesh, "'",
             first_place.empty() ? "" : StrCat(" (", first_place, ")"),
             "; a program compiles for one mesh: expected 'on ", mesh,
             "', and stages for devices of its own\n  in: ", graph::PrintNode(graph, other)));
}

}  // namespace

absl::Status SelectMesh(Graph& graph) {
  if (graph.meshes().size() < 2) return absl::OkStatus();
  const int kept = graph.num_nodes() > 0 ? graph.node(0).mesh : 0;
  for (const Node& node : graph.nodes()) {
    if (node.mesh != kept) return LiesOnBoth(graph, graph.node(0), node);
  }
  graph.mutable_meshes() = {graph.meshes()[kept]};
  for (NodeId id = 0; id < graph.num_nodes(); ++id) graph.mutable_node(id).mesh = 0;
  return absl::OkStatus();
}

}  // namespace penstock::planner
