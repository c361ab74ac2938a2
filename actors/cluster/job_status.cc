#include "actors/cluster/job_status.h"

#include <utility>

namespace penstock::actors {

void AddDevices(const planner::Plan& plan, EngineSnapshot snapshot, JobStatus* status) {
  snapshot.devices.resize(plan.devices.size());
  WaitChains chains = FindWaitChains(plan, snapshot.devices);
  status->waits = std::move(chains.waits);
  status->roots = std::move(chains.roots);
  status->cycles = std::move(chains.cycles);
  status->processes = std::move(snapshot.processes);
  status->microbatches = plan.num_microbatches;
  status->devices.clear();
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    const planner::DevicePlan& device = plan.devices[d];
    JobStatus::Device& out = status->devices.emplace_back();
    out.state = std::move(snapshot.devices[d]);
    out.state.device = d;
    for (const uint64_t count : out.state.communications) out.num_pending += count % 2;
    out.state.communications.clear();
    out.state.waits.clear();
    out.stage = device.stage;
    out.memory_bytes = device.arena_bytes + device.host_bytes;
    out.waits_for = std::move(chains.waits_for[d]);
  }
}

}  // namespace penstock::actors
