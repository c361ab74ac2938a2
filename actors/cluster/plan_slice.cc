#include "actors/cluster/plan_slice.h"

#include <vector>

namespace penstock::actors {

using planner::kNone;

planner::Plan SlicePlan(const planner::Plan& plan, uint32_t first_device, uint32_t num_devices) {
  planner::Plan slice;
  slice.name = plan.name;
  slice.strategy = plan.strategy;
  slice.policy = plan.policy;
  slice.graph_fingerprint = plan.graph_fingerprint;
  slice.num_microbatches = plan.num_microbatches;
  slice.num_channels = plan.num_channels;
  slice.stages = plan.stages;
  slice.collectives = plan.collectives;
  slice.collective_per_microbatch = plan.collective_per_microbatch;
  slice.transfers = plan.transfers;
  slice.feeds = plan.feeds;
  slice.fetches = plan.fetches;
  slice.states = plan.states;
  slice.predicted_step_s = plan.predicted_step_s;
  slice.predicted_peak_bytes = plan.predicted_peak_bytes;

  std::vector<uint32_t> kernel_in_slice(plan.kernels.size(), kNone);
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    planner::DevicePlan& device = slice.devices.emplace_back();
    if (d - first_device >= num_devices) {
      device = plan.devices[d];
      device.actors.clear();
      device.channels.clear();
      for (planner::PhasePlan& phase : device.phases) phase.first_actor = phase.num_actors = 0;
      continue;
    }
    device = plan.devices[d];
    for (planner::ActorPlan& actor : device.actors) {
      if (actor.kernel == kNone) continue;
      uint32_t& index = kernel_in_slice[actor.kernel];
      if (index == kNone) {
        index = static_cast<uint32_t>(slice.kernels.size());
        slice.kernels.push_back(plan.kernels[actor.kernel]);
      }
      actor.kernel = index;
    }
  }
  return slice;
}

}  // namespace penstock::actors
