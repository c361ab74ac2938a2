#include "planner/strategy/zero.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "graph/op.h"
#include "planner/sharding/execution_sharding.h"
#include "planner/sharding/propagate.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::kNoValue;
using graph::Mesh;
using graph::Node;
using graph::Sharding;
using graph::ValueId;

// Batches, and all else that a strategy splits, reach what they reach before these splits do.
constexpr int kAfterTheBatch = 2;

// What an update node works on.
struct Update {
  ValueId parameter = kNoValue;
  ValueId gradient = kNoValue;
  std::vector<ValueId> states;
};

std::vector<Update> FindUpdates(const Graph& graph) {
  std::vector<Update> updates;
  for (const Node& node : graph.nodes()) {
    const std::vector<int> overwritten = node.op->updated_operands();
    if (node.phase != graph::Phase::kUpdate || overwritten.empty()) continue;
    Update update;
    update.parameter = node.operands[overwritten[0]];
    const graph::Value& parameter = graph.value(update.parameter);
    if (graph.node(parameter.producer).op->role() != graph::OpRole::kParameter) continue;
    for (int o = 0; o < static_cast<int>(node.operands.size()); ++o) {
      const graph::Value& operand = graph.value(node.operands[o]);
      if (operand.type != parameter.type || node.operands[o] == update.parameter) continue;
      const bool is_overwritten =
          std::find(overwritten.begin(), overwritten.end(), o) != overwritten.end();
      if (is_overwritten) {
        update.states.push_back(node.operands[o]);
      } else if (update.gradient == kNoValue) {
        update.gradient = node.operands[o];
      }
    }
    updates.push_back(std::move(update));
  }
  return updates;
}

// The dimension in which a tensor with this sharding is split over dp too: one that parts divide,
// the outermost of those, so that a part is contiguous. Nothing if parts would be too small.
// `alone`: no dimension that other axes split.
std::optional<size_t> ChooseDim(const Sharding& sharding, const TensorType& type, int64_t replicas,
                                bool alone) {
  int64_t parts = replicas;
  for (const graph::DimSharding& dim : sharding.dims) parts *= graph::NumParts(dim);
  if (static_cast<int64_t>(type.num_bytes()) / parts < kMinPartBytes) return std::nullopt;
  std::optional<size_t> uneven;
  for (size_t d = 0; d < sharding.dims.size(); ++d) {
    const int64_t here = graph::NumParts(sharding.dims[d]);
    if ((alone && here > 1) || type.shape[d] < here * replicas) continue;
    if (type.shape[d] % (here * replicas) == 0) return d;
    // The longest dimension has the least uneven parts.
    if (!uneven ||
        type.shape[d] / here > type.shape[*uneven] / graph::NumParts(sharding.dims[*uneven])) {
      uneven = d;
    }
  }
  return uneven;
}

// The axes over which a tensor has replicas: those of the batch and of sequences that do not split
// it, as "ep" does experts.
std::vector<AxisRef> ReplicaAxes(const Mesh& mesh, const Sharding& layout) {
  std::vector<AxisRef> axes;
  for (const char* name : {"dp", "ep", "cp"}) {
    const int index = mesh.FindAxis(name);
    if (index < 0 || mesh.axes[static_cast<size_t>(index)].size == 1) continue;
    const AxisRef axis = graph::WholeAxis(mesh, index);
    const bool is_used =
        std::any_of(layout.dims.begin(), layout.dims.end(), [&](const graph::DimSharding& dim) {
          return std::any_of(dim.axes.begin(), dim.axes.end(),
                             [&](const AxisRef& other) { return graph::Overlap(axis, other); });
        });
    if (!is_used) axes.push_back(axis);
  }
  return axes;
}

int64_t SizeOf(const std::vector<AxisRef>& axes) {
  int64_t size = 1;
  for (const AxisRef& axis : axes) size *= axis.size;
  return size;
}

}  // namespace

absl::Status SplitOverReplicas(int level, Graph& graph) {
  const Mesh mesh = graph.meshes()[0];
  std::vector<AxisRef> microbatches;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    if (mesh.axes[axis].is_temporal && mesh.axes[axis].size > 1) {
      microbatches.push_back(graph::WholeAxis(mesh, axis));
    }
  }
  // How other axes split the parameters follows by propagation.
  Graph propagated = graph;
  RETURN_IF_ERROR(Propagate(PropagationLevel::kUserPriority, &propagated));
  const auto layout_of = [&](ValueId value) {
    return ClosedSharding(mesh, propagated.value(value));
  };

  for (const Node& node : graph.nodes()) {
    if (node.op->role() != graph::OpRole::kParameter) continue;
    graph::Value& parameter = graph.mutable_value(node.results[0]);
    const Sharding layout = layout_of(node.results[0]);
    const std::vector<AxisRef> replicas = ReplicaAxes(mesh, layout);
    const std::optional<size_t> dim =
        level == 3 && !replicas.empty()
            ? ChooseDim(layout, parameter.type, SizeOf(replicas), /*alone=*/true)
            : std::nullopt;
    if (dim.has_value()) {
      Sharding split = layout;
      split.dims[*dim].axes.insert(split.dims[*dim].axes.end(), replicas.begin(), replicas.end());
      split.dims[*dim].priority = kAfterTheBatch;
      parameter.sharding = std::move(split);
      graph.mutable_node(parameter.producer).attributes.Set("per_use", true);
    } else if (!parameter.sharding.has_value()) {
      parameter.sharding = Sharding::Open(static_cast<int>(parameter.type.shape.size()));
      parameter.sharding->replicated = replicas;
    }
  }
  for (const Update& update : FindUpdates(graph)) {
    const graph::Value& parameter = graph.value(update.parameter);
    const Sharding layout = layout_of(update.parameter);
    const std::vector<AxisRef> replicas = ReplicaAxes(mesh, layout);
    if (replicas.empty()) continue;
    const std::optional<size_t> dim =
        ChooseDim(layout, parameter.type, SizeOf(replicas), /*alone=*/level == 3);
    if (!dim.has_value()) continue;
    Sharding split = layout;
    split.dims[*dim].axes.insert(split.dims[*dim].axes.end(), replicas.begin(), replicas.end());
    for (graph::DimSharding& each : split.dims) each.priority = kAfterTheBatch;
    for (const ValueId state : update.states) graph.mutable_value(state).sharding = split;
    if (update.gradient == kNoValue) continue;
    const bool scatters_each = level >= 2 && !microbatches.empty();
    if (scatters_each) split.partials.push_back({graph::Reduction::kSum, microbatches});
    // What devices add up in fewer bits is scattered in those. Where each micro-batch is, the parts
    // are added up over micro-batches in all bits.
    graph::Node& producer = graph.mutable_node(graph.value(update.gradient).producer);
    if (producer.attributes.GetString("partial_sums", "") == "add") {
      graph.mutable_value(producer.operands[0]).sharding = split;
      if (scatters_each) producer.attributes.Erase("partial_sums");
    }
    graph.mutable_value(update.gradient).sharding = std::move(split);
  }
  return absl::OkStatus();
}

}  // namespace penstock::planner
