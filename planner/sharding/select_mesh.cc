#include "planner/sharding/select_mesh.h"

#include <algorithm>
#include <map>
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

// `first` and `other` lie on meshes that cannot be planned together, for `reason`. `remedy` is what
// else may be changed.
absl::Status LiesOnBoth(const Graph& graph, const Node& first, const Node& other,
                        std::string_view reason, std::string_view remedy = "") {
  const std::string place = PlaceOf(other);
  const std::string first_place = PlaceOf(first);
  const std::string& mesh = graph.meshes()[first.mesh].name;
  return absl::UnimplementedError(
      StrCat(place, place.empty() ? "" : ": ", "this statement lies on mesh '",
             graph.meshes()[other.mesh].name, "', one before it on '", mesh, "'",
             first_place.empty() ? "" : StrCat(" (", first_place, ")"), "; ", reason,
             "; expected 'on ", mesh, "'", remedy, "\n  in: ", graph::PrintNode(graph, other)));
}

// The used meshes with the same number of devices, which become one.
struct Group {
  NodeId first = graph::kNoNode;  // a node on one of them
  std::vector<int> members;
  std::vector<Mesh> meshes;  // of the members
  std::optional<CommonMesh> common;
};

std::string TemporalAxesText(const Mesh& mesh) {
  std::string text;
  for (const graph::MeshAxis& axis : mesh.axes) {
    if (axis.is_temporal) StrAppend(&text, text.empty() ? "" : ", ", axis.name, "=", axis.size);
  }
  return text;
}

// `group_of`: of each mesh.
absl::Status TranslateShardings(const std::vector<Group>& groups, const std::vector<int>& group_of,
                                Graph& graph) {
  const auto translate = [&](graph::ValueId value, std::optional<Sharding>* sharding) {
    if (!sharding->has_value()) return absl::OkStatus();
    const Node& producer = graph.node(graph.value(value).producer);
    const Group& group = groups[group_of[producer.mesh]];
    if (group.members.size() == 1) return absl::OkStatus();
    const auto member = std::find(group.members.begin(), group.members.end(), producer.mesh);
    absl::StatusOr<Sharding> translated =
        group.common->Translate(static_cast<int>(member - group.members.begin()), **sharding);
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
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    // An assignment has no result that a mesh could be written for.
    Node& node = graph.mutable_node(id);
    if (node.op->role() != graph::OpRole::kAssign) continue;
    node.mesh = graph.node(graph.value(node.operands[0]).producer).mesh;
  }
  std::vector<Group> groups;
  std::vector<int> group_of(graph.meshes().size(), -1);
  const auto use = [&](int mesh, NodeId node) -> absl::Status {
    const Mesh& used = graph.meshes()[mesh];
    auto group = std::find_if(groups.begin(), groups.end(), [&](const Group& other) {
      return other.meshes[0].num_devices() == used.num_devices();
    });
    if (group == groups.end()) group = groups.insert(groups.end(), Group{node, {}, {}, {}});
    group_of[mesh] = static_cast<int>(group - groups.begin());
    group->members.push_back(mesh);
    group->meshes.push_back(used);
    ASSIGN_OR_RETURN(group->common, CommonMesh::Create(group->meshes));
    return absl::OkStatus();
  };
  std::map<int, NodeId> first_of_stage;
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    if (group_of[node.mesh] < 0) {
      if (absl::Status status = use(node.mesh, id); !status.ok()) {
        const Mesh& mesh = graph.meshes()[node.mesh];
        const auto alike = std::find_if(groups.begin(), groups.end(), [&](const Group& group) {
          return group.meshes[0].num_devices() == mesh.num_devices();
        });
        return LiesOnBoth(graph, graph.node(alike->first), node, ToStd(status.message()));
      }
      const Mesh& first = groups[0].meshes[0];
      if (TemporalAxesText(graph.meshes()[node.mesh]) != TemporalAxesText(first)) {
        const auto text = [](const Mesh& mesh) {
          const std::string axes = TemporalAxesText(mesh);
          return StrCat("'", mesh.name, "' has ", axes.empty() ? "none" : axes);
        };
        return LiesOnBoth(graph, graph.node(groups[0].first), node,
                          StrCat("meshes of one program have the same temporal axes: ", text(first),
                                 " and ", text(graph.meshes()[node.mesh])),
                          ", or the same temporal axes");
      }
    }
    const auto stage = first_of_stage.try_emplace(std::max(node.stage, 0), id).first;
    const Node& other = graph.node(stage->second);
    if (group_of[other.mesh] == group_of[node.mesh]) continue;
    return LiesOnBoth(graph, other, node,
                      StrCat("the statements of a stage run on the same devices, but of stage ",
                             stage->first, " some have ", graph.meshes()[other.mesh].num_devices(),
                             " and some ", graph.meshes()[node.mesh].num_devices()),
                      ", or another stage");
  }
  if (groups.empty()) RETURN_IF_ERROR(use(0, graph::kNoNode));
  std::vector<Mesh> meshes;
  for (const Group& group : groups) {
    meshes.push_back(group.members.size() == 1 ? group.meshes[0] : group.common->mesh());
  }
  const bool is_translated = std::any_of(
      groups.begin(), groups.end(), [](const Group& group) { return group.members.size() > 1; });
  if (is_translated) RETURN_IF_ERROR(TranslateShardings(groups, group_of, graph));
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    Node& node = graph.mutable_node(id);
    node.mesh = group_of[node.mesh];
  }
  graph.mutable_meshes() = std::move(meshes);
  return absl::OkStatus();
}

}  // namespace penstock::planner
