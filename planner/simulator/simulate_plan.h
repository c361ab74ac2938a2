// A plan on a machine that need not be at hand, in virtual time.
//
// The plan is fired under the engine's rules (plan/fire_plan.h): lanes in the orders of the stages,
// gates, tokens and credits. Time comes from the machine:
//   kernels         take what kernel_seconds.h says, on the device's kind, and at least a launch
//   messages        take the latency and the rate of the path between two devices
//   collectives     take what collective_cost.h says of the group
//   copies          between a device with memory of its own and its host, which `offload` makes,
//                   take the link between the two, in each direction one after the other, and go on
//                   beside kernels (plan/fire_plan.h). Others take turns with kernels
// Kernels and communication wait for each other on cores that devices share and on links
// (machine_resources.h). If communication takes a part of a core (Machine::core_shares), kernels
// wait for that part.
//
// Steps are submitted ahead, so they overlap as far as the plan lets them. The step that is
// described is the last but one, which has others before and behind it.
//
// An aggregated simulation fires one device of each class of devices that do the same at the same
// times (replica_classes.h), so that it takes as long as the plan has different devices. Its
// figures are those of the exact one, but where communication that begins at the same time waits
// for each other at several links: which goes first may then differ from link to link.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SIMULATOR_SIMULATE_PLAN_H_
#define PENSTOCK_PLANNER_SIMULATOR_SIMULATE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "graph/op.h"
#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "planner/search/machine.h"
#include "planner/simulator/device_times.h"

namespace penstock::planner {

// An actor at work, or a phase from the begin of its first actor to the end of its last.
struct SimulatedEvent {
  uint32_t device = 0;      // of the plan
  uint32_t phase = 0;       // of the device
  uint32_t actor = kNone;   // kNone: the phase
  uint32_t step = 0;        // from 0
  uint32_t microbatch = 0;  // of the step, from 0; 0 for what runs once a step
  double begin_s = 0;       // since the steps were submitted
  double end_s = 0;         // likewise
};

// How a plan runs on a machine, in virtual seconds since the steps were submitted.
struct Simulation {
  double step_s = 0;   // how long the described step takes: from begin_s to its end
  double begin_s = 0;  // of the described step: the end of the one before it
  uint32_t step = 0;   // its number
  // Flops of the model's kernels, without what is computed again, over those that all devices could
  // compute in the step at their peak rates (Chowdhery et al., "PaLM", 2022, appendix B).
  double mfu = 0;
  double hfu = 0;                      // likewise of all kernels, what is computed again included
  uint64_t firings = 0;                // of actors, in all simulated steps
  uint32_t num_fired_devices = 0;      // the plan's, or one of each class
  uint64_t num_fired_actors = 0;       // theirs
  std::vector<uint32_t> observed;      // devices, in order
  std::vector<DeviceTimes> times;      // of each of them
  std::vector<SimulatedEvent> events;  // of the observed devices, if asked for, in all steps
  // Of each stage: the types (policy/phase.h) of the phases of its compute lane in a step, in
  // order.
  std::vector<std::vector<uint32_t>> stage_orders;

  // Seconds of the step in which a device communicates and does not compute: the mean over the
  // observed devices.
  double exposed_comm_s() const { return MeanExposedSeconds(times); }
  // The share of the step, from 0 to 1, in which a device does neither: likewise.
  double bubble() const { return MeanIdleShare(times, step_s); }
};

// What a simulation keeps, and what it fires.
struct SimulationOptions {
  bool keeps_events = false;  // whether Simulation::events is filled in
  // So many devices are observed at most: all, or the first of each stage and others after them.
  uint32_t most_observed = 64;
  // Whether one device of each class stands for all of it. See the top of this file.
  bool aggregates = false;
};

// Errors: those of FirePlan, and that the machine has fewer devices than the plan. Events of an
// aggregated simulation are of the first device of each class that has an observed one. REQUIRES:
// VerifyPlan accepts the plan.
absl::StatusOr<Simulation> SimulatePlan(const FoldedPlan& plan, const graph::OpRegistry& ops,
                                        const PolicyRegistry& policies, const Machine& machine,
                                        const SimulationOptions& options = {});
// The same of a plan that has the program of every device.
absl::StatusOr<Simulation> SimulatePlan(const Plan& plan, const graph::OpRegistry& ops,
                                        const PolicyRegistry& policies, const Machine& machine,
                                        const SimulationOptions& options = {});

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_SIMULATE_PLAN_H_
