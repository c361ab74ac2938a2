#include "planner/simulator/planned_pipeline.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>

namespace penstock::planner {
namespace {

// The slowest message from one stage of the plan to another.
using MessageSeconds = std::map<std::pair<uint32_t, uint32_t>, double>;

MessageSeconds SlowestMessages(const Plan& plan) {
  MessageSeconds slowest;
  for (const DevicePlan& device : plan.devices) {
    for (const PhasePlan& phase : device.phases) {
      if (!phase.per_microbatch || phase.num_actors != 1) continue;
      const ActorPlan& actor = device.actors[phase.first_actor];
      if (actor.kind != ActorKind::kSend) continue;
      const uint32_t destination = plan.transfers[actor.target].destination;
      double& seconds = slowest[{device.stage, plan.devices[destination].stage}];
      seconds = std::max(seconds, phase.predicted_s);
    }
  }
  return slowest;
}

}  // namespace

Pipeline PipelineOfPlan(const Plan& plan, const StagePlacement& placement,
                        const std::vector<int>& device_groups) {
  const auto stage_of_group = [&](int group) {
    return static_cast<uint32_t>(device_groups.empty() ? group
                                                       : device_groups[static_cast<size_t>(group)]);
  };
  Pipeline pipeline;
  pipeline.num_groups = placement.num_groups;
  pipeline.num_microbatches = static_cast<int>(plan.num_microbatches);
  pipeline.placement = placement;
  pipeline.overlaps_steps = false;
  for (int v = 0; v < placement.num_stages(); ++v) {
    VirtualStage& stage = pipeline.stages.emplace_back();
    stage.group = placement.GroupOf(v);
    stage.chunk = placement.ChunkOf(v);
    stage.kinds = {};
    stage.seconds = {};
    for (const uint32_t device : plan.stages[stage_of_group(stage.group)].devices) {
      for (const PhasePlan& phase : plan.devices[device].phases) {
        const auto kind = static_cast<size_t>(phase.kind);
        if (phase.lane != Lane::kCompute || static_cast<int>(phase.chunk) != stage.chunk) continue;
        stage.kinds[kind] = true;
        stage.seconds[kind] = std::max(stage.seconds[kind], phase.predicted_s);
      }
    }
  }
  pipeline.edges = ChainEdges(placement, 0);
  const MessageSeconds slowest = SlowestMessages(plan);
  for (PipelineEdge& edge : pipeline.edges) {
    const auto found = slowest.find({stage_of_group(pipeline.stages[edge.from].group),
                                     stage_of_group(pipeline.stages[edge.to].group)});
    if (found != slowest.end()) edge.transfer_s = found->second;
  }
  return pipeline;
}

}  // namespace penstock::planner
