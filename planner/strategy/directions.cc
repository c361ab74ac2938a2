#include "planner/strategy/directions.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/sharding.h"
#include "planner/policy/placement.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Mesh;
using graph::MeshAxis;
using graph::Sharding;

constexpr char kDirection[] = "direction";
constexpr int64_t kNumDirections = 2;

// How the axes of the mesh change.
struct AxisSplit {
  int temporal = 0;      // what is split
  int direction = 0;     // the place of the new axis; those from here on move by one
  int64_t num_left = 1;  // parts of the temporal axis afterwards
};

std::vector<AxisRef> SplitAxes(const AxisSplit& split, const std::vector<AxisRef>& axes) {
  std::vector<AxisRef> now;
  for (AxisRef axis : axes) {
    const bool is_split = axis.axis == split.temporal;
    if (axis.axis >= split.direction) ++axis.axis;
    if (!is_split) {
      now.push_back(axis);
      continue;
    }
    const int moved = split.temporal + (split.temporal >= split.direction ? 1 : 0);
    if (split.num_left > 1) now.push_back({moved, 1, split.num_left});
    now.push_back({split.direction, 1, kNumDirections});
  }
  return now;
}

void SplitSharding(const AxisSplit& split, const Mesh& mesh, std::optional<Sharding>* sharding) {
  if (!sharding->has_value()) return;
  for (graph::DimSharding& dim : (*sharding)->dims) dim.axes = SplitAxes(split, dim.axes);
  for (graph::PartialSpec& partial : (*sharding)->partials) {
    partial.axes = SplitAxes(split, partial.axes);
  }
  (*sharding)->replicated = SplitAxes(split, (*sharding)->replicated);
  graph::Canonicalize(mesh, &**sharding);
}

}  // namespace

int StagesPerGroup(const Policy& policy) {
  const PolicyNeeds needs = policy.needs();
  return needs.placement == Placement::kBidirectional ? 1 : needs.min_chunks;
}

absl::Status CheckDirections(int64_t num_microbatches) {
  // With one in each direction, sums over the directions would be part of their phases.
  if (num_microbatches % kNumDirections == 0 && num_microbatches > kNumDirections) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      StrCat("micro-batches that enter at both ends of a pipeline must be an even number, at least "
             "4; there ",
             num_microbatches == 1 ? "is " : "are ", num_microbatches));
}

absl::Status SplitDirections(graph::Graph& graph) {
  if (graph.meshes().size() != 1) {
    return absl::InvalidArgumentError(
        "micro-batches that enter at both ends of a pipeline need stages that lie on one mesh: "
        "each stage is on two groups of devices");
  }
  Mesh& mesh = graph.mutable_meshes()[0];
  RETURN_IF_ERROR(CheckDirections(mesh.num_microbatches()));
  const auto temporal = std::find_if(mesh.axes.begin(), mesh.axes.end(), [](const MeshAxis& axis) {
    return axis.is_temporal && axis.size % kNumDirections == 0;
  });
  if (mesh.FindAxis(kDirection) >= 0) {
    return absl::InvalidArgumentError(
        StrCat("mesh ", mesh.name, " has an axis '", kDirection,
               "', which is the name of the one that micro-batches from both ends need"));
  }
  const auto first_with_devices = std::find_if(
      mesh.axes.begin(), mesh.axes.end(), [](const MeshAxis& axis) { return !axis.is_temporal; });
  AxisSplit split;
  split.temporal = static_cast<int>(temporal - mesh.axes.begin());
  split.direction = static_cast<int>(first_with_devices - mesh.axes.begin());
  split.num_left = temporal->size / kNumDirections;
  temporal->size = split.num_left;
  mesh.axes.insert(first_with_devices, {kDirection, kNumDirections, false});

  for (graph::ValueId value = 0; value < graph.num_values(); ++value) {
    SplitSharding(split, mesh, &graph.mutable_value(value).sharding);
  }
  for (graph::Return& ret : graph.mutable_returns()) SplitSharding(split, mesh, &ret.sharding);
  return absl::OkStatus();
}

}  // namespace penstock::planner
