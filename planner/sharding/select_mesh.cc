#include "planner/sharding/select_mesh.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/text.h"
#include "planner/sharding/common_mesh.h"

namespace penstock::planner {
namespace {

using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::Sharding;

// "g.pst:4:3", or nothing of a node that code built.
std::string PlaceOf(const Node& node) {
  const graph::SourceLocation& place = node.location;
  return place.line > 0 ? StrCat(place.file, ":", place.line, ":", place.column) : "";
}

// `first` and `other` lie on meshes that have none in common, for `reason`.
absl::Status LiesOnBoth(const Graph& graph, const Node& first, const Node& other,
                        std::string_view reason) {
  const std::string place = PlaceOf(other);
  const std::string first_place = PlaceOf(first);
  const std::string& mesh = graph.meshes()[first.mesh].name;
  return absl::UnimplementedError(
      StrCat(place, place.empty() ? "" : ": ", "this statement lies on mesh '",
             graph.meshes()[other.mesh].name, "', those before it on '", mesh, "'",
             first_place.empty() ? "" : StrCat(" (", first_place, ")"),
             "; meshes of one program must be of the same devices: ", reason, "; expected 'on ",
             mesh, "', or as many devices\n  in: ", graph::PrintNode(graph, other)));
}

absl::Status TranslateShardings(const CommonMesh& common, const std::vector<int>& index_of,
                                Graph& graph) {
  const auto translate = [&](graph::ValueId value, std::optional<Sharding>* sharding) {
    if (!sharding->has_value()) return absl::OkStatus();
    const Node& producer = graph.node(graph.value(value).producer);
    absl::StatusOr<Sharding> translated = common.Translate(index_of[producer.mesh], **sharding);
    if (!translated.ok()) {
      const std::string place = PlaceOf(producer);
      return absl::UnimplementedError(StrCat(place, place.empty() ? "" : ": ",
                                             ToStd(translated.status().message()),
                                             "\n  in: ", graph::PrintNode(graph, producer)));
    }
    *sharding = *std::move(translated);
    return absl::OkStatus();
  };
  std::vector<std::optional<Sharding>> shardings;
  for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
    shardings.push_back(graph.value(value).sharding);
    RETURN_IF_ERROR(translate(value, &shardings.back()));
  }
  for (graph::Return& ret : graph.mutable_returns()) {
    RETURN_IF_ERROR(translate(ret.value, &ret.sharding));
  }
  for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
    graph.mutable_value(value).sharding = std::move(shardings[value]);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status SelectMesh(Graph& graph) {
  if (graph.meshes().size() < 2) return absl::OkStatus();
  std::vector<Mesh> used;
  std::vector<int> index_of(graph.meshes().size(), -1);  // in `used`
  std::optional<CommonMesh> common;
  const auto use = [&](int mesh) -> absl::Status {
    index_of[mesh] = static_cast<int>(used.size());
    used.push_back(graph.meshes()[mesh]);
    ASSIGN_OR_RETURN(common, CommonMesh::Create(used));
    return absl::OkStatus();
  };
  for (const Node& node : graph.nodes()) {
    if (index_of[node.mesh] >= 0) continue;
    if (absl::Status status = use(node.mesh); !status.ok()) {
      return LiesOnBoth(graph, graph.node(0), node, ToStd(status.message()));
    }
  }
  if (used.empty()) RETURN_IF_ERROR(use(0));
  if (used.size() == 1) {
    graph.mutable_meshes() = std::move(used);
  } else {
    RETURN_IF_ERROR(TranslateShardings(*common, index_of, graph));
    graph.mutable_meshes() = {common->mesh()};
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) graph.mutable_node(id).mesh = 0;
  return absl::OkStatus();
}

}  // namespace penstock::planner
