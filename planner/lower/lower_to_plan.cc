#include "planner/lower/lower_to_plan.h"

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/status_macros.h"
#include "graph/init_streams.h"
#include "planner/cost/predict_step.h"
#include "planner/lower/device_lowering_internal.h"
#include "planner/lower/lowering_internal.h"
#include "planner/lower/rate_copies.h"
#include "planner/plan/access_order.h"

namespace penstock::planner {
namespace internal {

absl::StatusOr<FoldedPlan> Lowering::Run() {
  RETURN_IF_ERROR(Analyse());
  if (is_folded()) folded_.mesh = graph_.meshes()[0];
  plan_.name = graph_.name();
  plan_.num_microbatches = static_cast<uint32_t>(num_microbatches());
  plan_.policy = std::string(options_.policy->name());
  const std::vector<uint32_t> init_streams = graph::InitStreams(graph_);
  for (NodeId id = 0; id < graph_.num_nodes(); ++id) {
    const Node& node = graph_.node(id);
    if (!node.op->has_declared_type()) continue;
    const graph::Value& value = graph_.value(node.results[0]);
    if (node.op->role() == graph::OpRole::kInput) {
      if (node.attributes.Find("feed") == nullptr) {
        plan_.feeds.push_back({value.name, value.type});
      }
    } else if (phases_[id].is_live) {
      StatePlan state;
      state.name = value.name;
      state.type = value.type;
      state.is_parameter = node.op->role() == graph::OpRole::kParameter;
      state.init = node.attributes.GetString("init", state.is_parameter ? "normal" : "zeros");
      state.std = node.attributes.GetDouble("std", 0.02);
      state.stream = init_streams[id];
      state_index_[node.results[0]] = static_cast<int>(plan_.states.size());
      plan_.states.push_back(std::move(state));
      folded_.states.push_back(
          {static_cast<uint32_t>(phases_[id].stage), ShardingIndex(node.results[0], true), {}});
    }
  }
  for (const graph::Return& ret : graph_.returns()) {
    const graph::Value& value = graph_.value(ret.value);
    plan_.fetches.push_back({value.name, value.type, 0});
  }
  RETURN_IF_ERROR(ScheduleStages());
  RETURN_IF_ERROR(NumberTransfers());
  RETURN_IF_ERROR(NumberReceptions());
  RETURN_IF_ERROR(FormBuckets());
  RETURN_IF_ERROR(NumberCollectives());
  FindClasses();
  if (!is_folded()) RETURN_IF_ERROR(SpellOut());
  for (int group = 0; group < num_stages_; ++group) {
    StagePlan& stage_plan = plan_.stages.emplace_back();
    stage_plan.order = orders_[group];
    std::vector<uint32_t> devices = folded_.FirstOfClasses();
    for (uint32_t d = 0; d < NumDevicesOfGroup(group) && !is_folded(); ++d) {
      devices.push_back(d);
      stage_plan.devices.push_back(first_device_[group] + d);
    }
    for (const uint32_t d : devices) {
      ASSIGN_OR_RETURN(DevicePlan program, LowerDevice(group, d));
      folded_.programs.push_back(std::move(program));
    }
  }
  RETURN_IF_ERROR(CheckKernels());
  if (!is_folded()) RETURN_IF_ERROR(FinishSpelledOut());
  plan_.predicted_step_s = PredictStepSeconds(PlanOfPrograms(folded_));
  return std::move(folded_);
}

std::vector<ProgramPart> Lowering::PartsOf(int group, uint32_t device) const {
  if (!is_bidirectional()) return {ProgramPart{group, device}};
  std::vector<ProgramPart> parts;
  for (int stage = 0; stage < num_stages_; ++stage) {
    for (int direction = 0; direction < num_directions(); ++direction) {
      if (GroupOf(stage, direction) != group) continue;
      const uint32_t mesh_device = static_cast<uint32_t>(direction) * NumDevicesOfGroup(group);
      parts.push_back({stage, mesh_device + device, direction});
    }
  }
  return parts;
}

absl::StatusOr<DevicePlan> Lowering::LowerDevice(int group, uint32_t device) {
  DeviceDraft draft;
  std::vector<std::unique_ptr<DeviceLowering>> parts;
  for (const ProgramPart& part : PartsOf(group, device)) {
    parts.push_back(std::make_unique<DeviceLowering>(*this, part, draft));
    parts.back()->FindPhases();
  }
  draft.AddPhases();
  for (const auto& part : parts) RETURN_IF_ERROR(part->Begin());
  for (const ScheduledNode& scheduled : node_order_) {
    for (const auto& part : parts) RETURN_IF_ERROR(part->Add(scheduled));
  }
  for (const auto& part : parts) RETURN_IF_ERROR(part->End());

  draft.program.OrderCommunication(options_.buckets.bytes);
  DeviceProgram::Credits credits;
  credits.microbatches = static_cast<int>(plan_.num_microbatches);
  credits.stage = group;
  credits.times = times_.has_value() ? &*times_ : nullptr;
  credits.activations = activations_;
  credits.order = orders_[group];
  std::vector<uint32_t> state_registers(plan_.states.size(), kNone);
  DevicePlan plan =
      draft.program.Finish(credits, &state_registers, &folded_.view_operands.emplace_back());
  plan.stage = static_cast<uint32_t>(group);
  AddOrderChannels(folded_.kernels, &plan);
  for (const auto& part : parts) part->KeepStateRegisters(state_registers);
  return plan;
}

}  // namespace internal

absl::StatusOr<FoldedPlan> LowerToPlan(const graph::OpRegistry& ops, const graph::Graph& graph,
                                       const LowerOptions& options) {
  if (options.policy == nullptr) return absl::InvalidArgumentError("no scheduling policy is given");
  graph::Graph with_mesh = graph;
  if (with_mesh.meshes().empty()) with_mesh.mutable_meshes().push_back({"m", {}});
  ASSIGN_OR_RETURN(graph::Graph prepared, AddRateCopies(ops, with_mesh));
  return internal::Lowering(ops, std::move(prepared), options).Run();
}

}  // namespace penstock::planner
