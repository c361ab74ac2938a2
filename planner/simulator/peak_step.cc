#include "planner/simulator/peak_step.h"

#include <cstdint>
#include <numeric>
#include <vector>

#include "planner/plan/recomputed_mark.h"
#include "planner/simulator/kernel_table.h"

namespace penstock::planner {

double PeakStepSeconds(const Plan& plan, const graph::OpRegistry& ops, const Machine& machine) {
  if (plan.devices.empty()) return 0;
  std::vector<uint32_t> devices(plan.devices.size());
  std::iota(devices.begin(), devices.end(), 0u);
  const KernelTable kernels(plan.kernels, ops, machine, devices);
  double seconds = 0;
  for (uint32_t d = 0; d < plan.devices.size(); ++d) {
    const DevicePlan& device = plan.devices[d];
    for (const PhasePlan& phase : device.phases) {
      const auto firings = static_cast<double>(FiringsPerStep(plan, phase));
      for (uint32_t a = phase.first_actor; a < phase.first_actor + phase.num_actors; ++a) {
        const ActorPlan& actor = device.actors[a];
        if (actor.kind != ActorKind::kKernel) continue;
        if (plan.kernels[actor.kernel].attributes.GetBool(kRecomputedMark, false)) continue;
        seconds += firings * kernels.PeakSeconds(actor.kernel, d);
      }
    }
  }
  return seconds / static_cast<double>(plan.devices.size());
}

}  // namespace penstock::planner
