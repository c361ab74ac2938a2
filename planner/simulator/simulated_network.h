// A folded plan as a simulation fires it: with all its devices, or with one for each class of
// devices that do the same at the same times (replica_classes.h).
//
// Thread rule: values and a pure function.

#ifndef PENSTOCK_PLANNER_SIMULATOR_SIMULATED_NETWORK_H_
#define PENSTOCK_PLANNER_SIMULATOR_SIMULATED_NETWORK_H_

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"

#include "planner/plan/folded_plan.h"
#include "planner/plan/plan.h"
#include "planner/search/machine.h"
#include "planner/simulator/machine_resources.h"

namespace penstock::planner {

struct SimulatedNetwork {
  // Phases, channels and actors with their kernels and targets: no names, operands or registers.
  // Its collectives are those of groups, or of classes of groups; of a class they name the devices
  // of its first group, as the folded plan numbers them.
  Plan plan;
  std::vector<uint32_t> devices;         // of each device of `plan`: the first of its class
  std::vector<uint32_t> num_alike;       // likewise: how many there are in its class
  std::vector<uint32_t> class_of;        // of each device of the folded plan: the device of `plan`
  std::vector<Route> routes;             // of each rendezvous (plan/rendezvous.h)
  std::vector<double> link_bytes_per_s;  // of each link, or class of links, that routes name
};

// `aggregates`: one device for each class. Errors: those of PlanPeers, and that the machine has
// fewer devices than the plan.
absl::StatusOr<SimulatedNetwork> BuildNetwork(const FoldedPlan& folded, const Machine& machine,
                                              bool aggregates);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_SIMULATED_NETWORK_H_
