// What fires on a machine, in virtual time: kernels and communication of a simulated network, with
// what they occupy (machine_resources.h).
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_SIMULATOR_MACHINE_TIMES_H_
#define PENSTOCK_PLANNER_SIMULATOR_MACHINE_TIMES_H_

#include <cstdint>
#include <vector>

#include "graph/op.h"
#include "planner/plan/fire_plan.h"
#include "planner/plan/rendezvous.h"
#include "planner/search/machine.h"
#include "planner/simulator/kernel_table.h"
#include "planner/simulator/machine_resources.h"
#include "planner/simulator/simulated_network.h"

namespace penstock::planner {

// Told of all that takes time, in the order in which it begins to be known.
class SimulationObserver {
 public:
  virtual ~SimulationObserver() = default;
  virtual void OnComputed(const FiredActor& fired, double begin_s, double end_s) = 0;
  // To or from the host, beside kernels.
  virtual void OnCopied(const FiredActor& fired, double begin_s, double end_s) = 0;
  virtual void OnCommunicated(uint32_t rendezvous, uint32_t number, double begin_s,
                              double end_s) = 0;
};

class MachineTimes : public FiringTimes {
 public:
  // All outlive the result. REQUIRES: the machine has a device for each of the network's.
  MachineTimes(const SimulatedNetwork& network, const graph::OpRegistry& ops,
               const RendezvousTable& rendezvous, const Machine& machine,
               SimulationObserver* observer);

  double ComputeSeconds(uint32_t device, uint32_t actor) const override;
  double Compute(const FiredActor& fired, double now, double seconds) override;
  bool HasCopyStreams(uint32_t device) const override;
  double Copy(const FiredActor& fired, bool is_to_host, double begin_s, double seconds) override;
  double Communicate(uint32_t rendezvous, uint32_t number, double now) override;

  // Flops of the kernels of one step over what the devices could compute in a second.
  struct ComputedShare {
    double model = 0;  // without what is computed again (strategy/recompute.h)
    double all = 0;
  };
  ComputedShare ComputedShareOfASecond() const;

 private:
  const SimulatedNetwork& network_;
  const RendezvousTable& rendezvous_;
  const Machine& machine_;
  SimulationObserver* const observer_;
  KernelTable kernels_;
  MachineResources resources_;
  std::vector<uint32_t> members_;  // of the rendezvous at hand, as devices of the machine
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_MACHINE_TIMES_H_
