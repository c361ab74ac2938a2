#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"

#include "base/status_macros.h"
#include "graph/text.h"
#include "planner/lower/lowering_internal.h"
#include "planner/lower/rate_copies.h"

namespace penstock::planner::internal {

absl::Status Lowering::Analyse() {
  ASSIGN_OR_RETURN(phases_, AssignPhases(graph_, PhasesToAssign()));
  node_order_ = OrderNodes(graph_, phases_, options_.buckets);
  users_ = graph_.Users();
  is_read_often_ = FindReadOften(graph_);
  root_.resize(graph_.num_values());
  for (ValueId value = 0; value < graph_.num_values(); ++value) {
    root_[value] = value;
    const Node& node = ProducerOf(value);
    if (node.op->role() != graph::OpRole::kReshape || !PhaseOf(value).is_live) continue;
    const ValueId operand = node.operands[0];
    // A leaf is made again where it is read; a reshape of it is a node like any other.
    if (PhaseOf(operand).is_leaf || PhaseOf(operand).stage != PhaseOf(value).stage) continue;
    root_[value] = root_[operand];
  }
  values_of_root_.resize(graph_.num_values());
  for (ValueId value = 0; value < graph_.num_values(); ++value) {
    values_of_root_[root_[value]].push_back(value);
  }
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const NodePhase& phase = phases_[id];
    const Node& node = graph_.node(id);
    if (!phase.is_live) continue;
    num_stages_ = std::max(num_stages_, phase.stage + 1);
    if (node.op->role() == graph::OpRole::kAssign) {
      assignments_.push_back({id, node.operands[0], node.operands[1]});
      assignments_of_[node.operands[1]].push_back(assignments_.back());
    }
    if (node.op->role() == graph::OpRole::kReceive) continue;  // NumberReceptions
    for (ValueId operand : node.operands) {
      const NodePhase& source = PhaseOf(operand);
      if (ProducerOf(operand).mesh != node.mesh) {
        return absl::InternalError(
            absl::StrCat("%", graph_.value(operand).name, " is read on mesh '",
                         graph_.meshes()[node.mesh].name, "', where nothing receives it"));
      }
      if (!source.is_leaf && source.stage != phase.stage) {
        remote_readers_[operand].insert(phase.stage);
      }
    }
  }
  RETURN_IF_ERROR(PlaceStages());
  FindKernels();
  keys_.resize(num_stages_);
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const NodePhase& phase = phases_[id];
    const Node& node = graph_.node(id);
    if (!phase.is_live || phase.is_leaf || node.op->has_declared_type()) continue;
    if (node.op->role() != graph::OpRole::kAssign) keys_[phase.stage].insert(phase.key);
  }
  for (const graph::Return& ret : graph_.returns()) {
    keys_[PhaseOf(ret.value).stage].insert(FetchKey(ret.value));
  }
  return absl::OkStatus();
}

// The mesh and the devices of each stage. Each stage of a program lies on one mesh
// (select_mesh.h), but a group of devices may run several of them.
absl::Status Lowering::PlaceStages() {
  const PhaseOptions phase_options = PhasesToAssign();
  std::vector<NodeId> first(num_stages_, graph::kNoNode);
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& node = graph_.node(id);
    const int virtual_stage = std::max(node.stage, 0);
    const int stage = DeviceGroupOf(phase_options, virtual_stage);
    if (stage >= num_stages_) continue;
    if (first[stage] == graph::kNoNode) first[stage] = id;
    const Node& other = graph_.node(first[stage]);
    if (node.mesh == other.mesh) continue;
    const graph::SourceLocation& place = node.location;
    return absl::InvalidArgumentError(absl::StrCat(
        place.line > 0 ? absl::StrCat(place.file, ":", place.line, ":", place.column, ": ") : "",
        "stages ", std::max(other.stage, 0), " and ", virtual_stage,
        " run on the same devices, but lie on '", graph_.meshes()[other.mesh].name, "' and '",
        graph_.meshes()[node.mesh].name,
        "', which have different numbers of devices\n  in: ", graph::PrintNode(graph_, node)));
  }
  first_device_ = {0};
  for (const NodeId node : first) {
    mesh_of_stage_.push_back(node == graph::kNoNode ? 0 : graph_.node(node).mesh);
    const int64_t num_devices = graph_.meshes()[mesh_of_stage_.back()].num_devices();
    first_device_.push_back(first_device_.back() +
                            static_cast<uint32_t>(num_devices / num_directions()));
  }
  return absl::OkStatus();
}

PhaseKey Lowering::FetchKey(ValueId value) const {
  const NodePhase& source = PhaseOf(value);
  const bool made_often = IsMadeOften(value);
  if (source.is_leaf || ProducerOf(value).op->has_declared_type()) {
    return made_often ? kFirstForwardKey : kBeforeStepKey;
  }
  if (!made_often && source.key.per_microbatch) return {source.key.level + 1, false, 0};
  return source.key;
}

absl::Status Lowering::ScheduleStages() {
  const Pipeline pipeline = DescribePipeline();
  ASSIGN_OR_RETURN(PipelineOrders orders, PlanPipeline(*options_.policy, pipeline));
  orders_.resize(orders.size());
  bool has_orders = true;
  for (int group = 0; group < num_stages_; ++group) {
    const StageContext context = pipeline.ContextOf(group);
    std::vector<PhaseChoice>& order = orders_[DeviceGroupAt(group)];
    if (context.has_choices()) order = std::move(orders[group]);
    if (!order.empty() || !context.has_choices()) continue;
    has_orders = false;
    ASSIGN_OR_RETURN(const int credits, ActivationCreditsOf(*options_.policy, context));
    activations_ = std::max(activations_, credits);
  }
  if (has_orders) times_ = ScheduleTimes::Of(orders_, pipeline.num_microbatches, FindReads());
  // A deadlock between the orders is for the verifier to describe.
  if (has_orders && !times_.has_value()) activations_ = pipeline.num_microbatches;
  return absl::OkStatus();
}

Pipeline Lowering::DescribePipeline() const {
  Pipeline pipeline;
  pipeline.num_groups = num_stages_;
  pipeline.num_microbatches = static_cast<int>(plan_.num_microbatches);
  pipeline.placement = options_.placement.value_or(StagePlacement{num_stages_});
  pipeline.overlaps_steps = false;
  for (int v = 0; v < pipeline.placement.num_stages(); ++v) {
    VirtualStage& stage = pipeline.stages.emplace_back();
    stage.group = pipeline.placement.GroupOf(v);
    stage.chunk = pipeline.placement.ChunkOf(v);
    stage.kinds = {};
    const int chunk = is_bidirectional() ? 0 : stage.chunk;
    for (const PhaseKey& key :
         keys_[is_bidirectional() ? v % num_stages_ : DeviceGroupAt(stage.group)]) {
      if (key.lane() != Lane::kCompute || key.chunk != chunk) continue;
      stage.kinds[static_cast<size_t>(key.kind())] = true;
    }
    stage.seconds = {1, stage.kinds[static_cast<size_t>(PhaseKind::kWeight)] ? 1.0 : 2.0, 1};
  }
  const bool has_times =
      options_.pipeline.has_value() && options_.pipeline->placement == pipeline.placement;
  if (!has_times) {
    pipeline.edges = ChainEdges(pipeline.placement, 0);
    return pipeline;
  }
  for (size_t v = 0; v < pipeline.stages.size(); ++v) {
    const VirtualStage& described = options_.pipeline->stages[v];
    pipeline.stages[v].seconds = described.seconds;
    pipeline.stages[v].core_shares = described.core_shares;
    pipeline.stages[v].ready_s = described.ready_s;
    pipeline.stages[v].activation = described.activation;
  }
  pipeline.cores = options_.pipeline->cores;
  pipeline.edges = options_.pipeline->edges;
  pipeline.memory_limit = options_.pipeline->memory_limit;
  return pipeline;
}

std::optional<StagePhase> Lowering::ComputePhaseOf(const NodePhase& phase, int direction) const {
  if (!phase.is_live || phase.is_leaf || phase.key.lane() != Lane::kCompute) return std::nullopt;
  const int chunk = is_bidirectional() ? direction : phase.key.chunk;
  return StagePhase{GroupOf(phase.stage, direction), {chunk, phase.key.kind()}};
}

PhaseReads Lowering::FindReads() const {
  PhaseReads reads;
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    for (int direction = 0; direction < num_directions(); ++direction) {
      const std::optional<StagePhase> reader = ComputePhaseOf(phases_[id], direction);
      if (!reader.has_value()) continue;
      for (const ValueId operand : graph_.node(id).operands) {
        const std::optional<StagePhase> source = ComputePhaseOf(PhaseOf(operand), direction);
        if (source.has_value() && *source != *reader) reads.insert({*source, *reader});
      }
    }
  }
  return reads;
}

}  // namespace penstock::planner::internal
