// A plan on a machine that need not be at hand, in virtual time.
//
// The plan is fired under the engine's rules (plan/fire_plan.h): lanes in the orders of the stages,
// gates, tokens and credits. Time comes from the machine:
//   kernels         take what kernel_seconds.h says, on the device's kind, and at least a launch
//   cores           that devices share serve one kernel each at a time, in the order in which
//                   kernels become ready
//   messages        take the latency and the rate of the path between two devices
//   collectives     take what collective_cost.h says of the group
//   links           carry one message or collective at a time in each direction; who asks first is
//                   served first, so those that meet on an uplink wait for each other
// If communication takes a core (Machine::communication_uses_cores), it takes one for as long.
//
// Steps are submitted ahead, so they overlap as far as the plan lets them. The step that is
// described is the last but one, which has others before and behind it.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_PLANNER_SIMULATOR_SIMULATE_PLAN_H_
#define PENSTOCK_PLANNER_SIMULATOR_SIMULATE_PLAN_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "graph/op.h"
#include "planner/plan/plan.h"
#include "planner/policy/policy.h"
#include "planner/search/machine.h"

namespace penstock::planner {

// An actor at work, or a phase from the begin of its first actor to the end of its last.
struct SimulatedEvent {
  uint32_t device = 0;
  uint32_t phase = 0;      // of the device
  uint32_t actor = kNone;  // kNone: the phase
  uint32_t step = 0;
  uint32_t microbatch = 0;
  double begin_s = 0;
  double end_s = 0;
};

// How a device spends the described step.
struct DeviceTimes {
  double compute_s = 0;
  double exposed_comm_s = 0;  // communicates and does not compute
  double idle_s = 0;          // neither
};

struct Simulation {
  double step_s = 0;
  double begin_s = 0;    // of the described step: the end of the one before it
  uint32_t step = 0;     // its number
  double mfu = 0;        // flops of kernels, of what all devices could compute in the step
  uint64_t firings = 0;  // of actors, in all simulated steps
  std::vector<uint32_t> observed;      // devices, in order
  std::vector<DeviceTimes> times;      // of each of them
  std::vector<SimulatedEvent> events;  // of the observed devices, if asked for, in all steps

  // Means over the observed devices.
  double exposed_comm_s() const;
  double bubble() const;  // the share of the step in which they are idle
};

struct SimulationOptions {
  bool keeps_events = false;
  // So many devices are observed at most: all, or the first of each stage and others after them.
  uint32_t most_observed = 64;
};

// Errors: those of FirePlan, and that the machine has fewer devices than the plan. REQUIRES:
// VerifyPlan accepts the plan.
absl::StatusOr<Simulation> SimulatePlan(const Plan& plan, const graph::OpRegistry& ops,
                                        const PolicyRegistry& policies, const Machine& machine,
                                        const SimulationOptions& options = {});

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_SIMULATE_PLAN_H_
