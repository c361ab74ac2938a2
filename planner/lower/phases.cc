#include "planner/lower/phases.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>

#include "absl/strings/str_format.h"

#include "graph/op.h"

namespace penstock::planner {
namespace {

using graph::AxisRef;
using graph::Graph;
using graph::Mesh;
using graph::Node;
using graph::NodeId;
using graph::ValueId;

constexpr int kForwardOrder = 0;
constexpr int kBackwardOrder = 1;
constexpr int kWeightOrder = 2;
constexpr int kUpdateOrder = 3;  // and more: by the stages that are crossed

bool AnyTemporal(const Mesh& mesh, absl::Span<const AxisRef> axes) {
  return std::any_of(axes.begin(), axes.end(),
                     [&](const AxisRef& axis) { return graph::IsTemporal(mesh, axis); });
}

// With one micro-batch nothing is split over time: then all but the update counts as its forwards
// and backwards.
// `phases`: of the nodes before this one.
bool RunsPerMicrobatch(const Graph& graph, const std::vector<NodePhase>& phases, const Node& node) {
  if (node.op->has_declared_type() && node.op->role() != graph::OpRole::kInput) return false;
  if (node.op->role() == graph::OpRole::kAssign) return false;
  if (node.attributes.GetBool("per_use", false)) {
    // The cast of a parameter runs once a step, even with one micro-batch: its result is gathered
    // per use. The cast of a part that is taken in every micro-batch does not.
    return graph::IsRedistribution(node.op->role()) ||
           phases[graph.value(node.operands[0]).producer].key.per_microbatch;
  }
  if (graph.meshes()[0].num_microbatches() == 1) return node.phase != graph::Phase::kUpdate;
  auto is_per_microbatch = [&](ValueId value) { return IsPerMicrobatch(graph, value); };
  return std::any_of(node.operands.begin(), node.operands.end(), is_per_microbatch) ||
         std::any_of(node.results.begin(), node.results.end(), is_per_microbatch);
}

int MicrobatchOrder(const Node& node, bool split_weight_gradients) {
  switch (node.phase) {
    case graph::Phase::kForward:
      return kForwardOrder;
    case graph::Phase::kWeightBackward:
      return split_weight_gradients ? kWeightOrder : kBackwardOrder;
    case graph::Phase::kBackward:
      return kBackwardOrder;
    case graph::Phase::kUpdate:
      return kUpdateOrder;
  }
  return kBackwardOrder;
}

std::string Describe(const Graph& graph, const Node& node) {
  if (node.results.empty()) return std::string(node.op->name());
  return "%" + graph.value(node.results[0]).name;
}

// Forwards flow to later stages and backwards to earlier ones: else a phase would wait for itself.
absl::Status CheckStageOrder(const Graph& graph, const std::vector<NodePhase>& phases) {
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const NodePhase& user = phases[id];
    if (!user.is_live || user.is_leaf || !user.key.per_microbatch) continue;
    for (ValueId operand : graph.node(id).operands) {
      const NodeId producer = graph.value(operand).producer;
      const NodePhase& source = phases[producer];
      if (source.is_leaf || !source.key.per_microbatch || source.key.level != user.key.level ||
          source.key.order != user.key.order || user.key.order >= kUpdateOrder) {
        continue;
      }
      const bool is_forward = user.key.order == kForwardOrder;
      const int from = source.virtual_stage;
      const int to = user.virtual_stage;
      if (is_forward ? from > to : from < to) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s on stage %d reads %s of stage %d: %s must not flow to %s stages",
            Describe(graph, graph.node(id)), to, Describe(graph, graph.node(producer)), from,
            is_forward ? "forward values" : "gradients", is_forward ? "earlier" : "later"));
      }
    }
  }
  return absl::OkStatus();
}

// What updates read of a state on the host is there at any time: it is copied in the phase of its
// first reader, so that the device does not hold it for longer.
void CopyForFirstReaders(const Graph& graph, std::vector<NodePhase>* phases) {
  std::vector<std::optional<PhaseKey>> first(graph.num_nodes());  // of copies: of their readers
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const NodePhase& reader = (*phases)[id];
    if (!reader.is_live) continue;
    for (const ValueId operand : graph.node(id).operands) {
      const NodeId producer = graph.value(operand).producer;
      const Node& copy = graph.node(producer);
      if (copy.op->role() != graph::OpRole::kToDevice || copy.phase != graph::Phase::kUpdate) {
        continue;
      }
      if (!graph.node(graph.value(copy.operands[0]).producer).op->has_declared_type()) continue;
      std::optional<PhaseKey>& key = first[producer];
      // On another stage it is sent to, as soon as can be.
      const PhaseKey here =
          reader.stage == (*phases)[producer].stage ? reader.key : (*phases)[producer].key;
      if (!key.has_value() || here < *key) key = here;
    }
  }
  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    NodePhase& phase = (*phases)[id];
    if (!first[id].has_value() || phase.key.per_microbatch || first[id]->per_microbatch) continue;
    phase.key = std::max(phase.key, *first[id]);
  }
}

}  // namespace

PhaseKind PhaseKey::kind() const {
  if (!per_microbatch) return level == 0 ? PhaseKind::kBeforeStep : PhaseKind::kAfterStep;
  return order == kForwardOrder    ? PhaseKind::kForward
         : order == kBackwardOrder ? PhaseKind::kBackward
                                   : PhaseKind::kWeight;
}

bool IsPerMicrobatch(const Graph& graph, ValueId value) {
  const std::optional<graph::Sharding>& sharding = graph.value(value).sharding;
  if (!sharding.has_value()) return false;
  const Mesh& mesh = graph.meshes()[graph.node(graph.value(value).producer).mesh];
  for (const graph::DimSharding& dim : sharding->dims) {
    if (AnyTemporal(mesh, dim.axes)) return true;
  }
  for (const graph::PartialSpec& partial : sharding->partials) {
    if (AnyTemporal(mesh, partial.axes)) return true;
  }
  return false;
}

int DeviceGroupOf(const PhaseOptions& options, int virtual_stage) {
  const int group =
      options.placement.has_value() ? options.placement->GroupOf(virtual_stage) : virtual_stage;
  const auto place = static_cast<size_t>(group);
  return place < options.device_groups.size() ? options.device_groups[place] : group;
}

absl::StatusOr<std::vector<NodePhase>> AssignPhases(const Graph& graph,
                                                    const PhaseOptions& options) {
  std::vector<NodePhase> phases(graph.num_nodes());

  std::vector<bool> is_needed(graph.num_values(), false);
  for (const graph::Return& ret : graph.returns()) is_needed[ret.value] = true;
  for (NodeId id = graph.num_nodes() - 1; id >= 0; --id) {
    const Node& node = graph.node(id);
    const bool live = node.op->role() == graph::OpRole::kAssign ||
                      std::any_of(node.results.begin(), node.results.end(),
                                  [&](ValueId result) { return is_needed[result]; });
    phases[id].is_live = live;
    if (!live) continue;
    for (ValueId operand : node.operands) is_needed[operand] = true;
  }

  for (NodeId id = 0; id < graph.num_nodes(); ++id) {
    const Node& node = graph.node(id);
    NodePhase& phase = phases[id];
    if (!phase.is_live) continue;
    const graph::OpRole role = node.op->role();
    phase.virtual_stage = std::max(node.stage, 0);
    const bool has_chunks = options.placement.has_value();
    phase.stage = DeviceGroupOf(options, phase.virtual_stage);
    phase.is_leaf = IsLeaf(role);
    phase.key.per_microbatch = RunsPerMicrobatch(graph, phases, node);
    if (role == graph::OpRole::kAssign) {
      // The state is written where it lives, after the step.
      phase.stage = phases[graph.value(node.operands[0]).producer].stage;
      phase.key.level = 1;
    }
    // What an update reads of a parameter is sliced where it is updated, and copied from the host
    // there.
    const bool is_fetched = role == graph::OpRole::kLocalSlice || role == graph::OpRole::kToDevice;
    if (is_fetched && node.phase == graph::Phase::kUpdate) phase.key.level = 1;
    for (ValueId operand : node.operands) {
      const NodePhase& source = phases[graph.value(operand).producer];
      if (source.is_leaf) continue;
      const bool forms_whole = source.key.per_microbatch && !phase.key.per_microbatch;
      phase.key.level = std::max(phase.key.level, source.key.level + (forms_whole ? 1 : 0));
    }
    if (phase.key.per_microbatch) {
      phase.key.order = MicrobatchOrder(node, options.split_weight_gradients);
      if (phase.key.order == kUpdateOrder) phase.key.level = std::max(phase.key.level, 1);
      // A backward node may be needed by a forward one (a returned gradient penalty, say): what
      // follows a backward is backward.
      for (ValueId operand : node.operands) {
        const NodePhase& source = phases[graph.value(operand).producer];
        if (source.is_leaf || !source.key.per_microbatch) continue;
        if (source.key.level != phase.key.level) continue;
        const bool crosses = source.key.order >= kUpdateOrder && source.stage != phase.stage;
        phase.key.order = std::max(phase.key.order, source.key.order + (crosses ? 1 : 0));
      }
      if (has_chunks && phase.key.order < kUpdateOrder) {
        phase.key.chunk = options.placement->ChunkOf(phase.virtual_stage);
      }
      continue;
    }
    for (ValueId operand : node.operands) {
      const NodePhase& source = phases[graph.value(operand).producer];
      if (source.is_leaf || source.key.per_microbatch) continue;
      if (source.key.level != phase.key.level) continue;
      phase.key.order =
          std::max(phase.key.order, source.key.order + (source.stage != phase.stage ? 1 : 0));
    }
  }
  CopyForFirstReaders(graph, &phases);
  if (absl::Status status = CheckStageOrder(graph, phases); !status.ok()) return status;
  return phases;
}

}  // namespace penstock::planner
