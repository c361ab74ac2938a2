// What fires on a machine, in virtual time: cores and links, each with the time until which it is
// taken (simulate_plan.h says by what rules).
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_SIMULATOR_MACHINE_TIMES_H_
#define PENSTOCK_PLANNER_SIMULATOR_MACHINE_TIMES_H_

#include <cstdint>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"

#include "graph/op.h"
#include "planner/plan/fire_plan.h"
#include "planner/plan/plan.h"
#include "planner/plan/rendezvous.h"
#include "planner/search/kernel_seconds.h"
#include "planner/search/machine.h"

namespace penstock::planner {

// Told of all that takes time, in the order in which it begins to be known.
class SimulationObserver {
 public:
  virtual ~SimulationObserver() = default;
  virtual void OnComputed(const FiredActor& fired, double begin_s, double end_s) = 0;
  virtual void OnCommunicated(uint32_t rendezvous, uint32_t number, double begin_s,
                              double end_s) = 0;
};

class MachineTimes : public FiringTimes {
 public:
  // All outlive the result. REQUIRES: the machine has a device for each of the plan's.
  MachineTimes(const Plan& plan, const graph::OpRegistry& ops, const RendezvousTable& rendezvous,
               const Machine& machine, SimulationObserver* observer);

  double ComputeSeconds(uint32_t device, uint32_t actor) const override;
  double Compute(const FiredActor& fired, double now, double seconds) override;
  double Communicate(uint32_t rendezvous, uint32_t number, double now) override;

  // Flops of the kernels of one step over what the devices could compute in a second.
  double ComputedShareOfASecond() const;

 private:
  // A direction of an uplink of a child of a level.
  struct Uplink {
    int32_t level = 0;
    int64_t child = 0;
    int64_t index = 0;  // of the child's uplinks
    bool is_out = true;
    friend auto operator<=>(const Uplink&, const Uplink&) = default;
  };

  double KernelSecondsOf(uint32_t kernel, uint32_t device) const;
  // Until which one of the cores that the device shares is taken; null: it shares none.
  double* EarliestCore(uint32_t device);
  void AddUplinks(uint32_t device, int meeting_level, bool is_out, std::vector<uint32_t>* links);
  // What a rendezvous takes and occupies.
  struct Route {
    double seconds = 0;
    double latency_s = 0;  // of it, at the end, while the links are free
    std::vector<uint32_t> links;
    bool is_known = false;
  };
  const Route& RouteOf(uint32_t rendezvous);

  const Plan& plan_;
  const graph::OpRegistry& ops_;
  const RendezvousTable& rendezvous_;
  const Machine& machine_;
  SimulationObserver* const observer_;
  std::vector<KernelTimes> kernel_times_;                    // of each kind of devices
  std::vector<uint32_t> kind_of_device_;                     // index into it
  mutable std::vector<std::vector<double>> kernel_seconds_;  // by kind and kernel; < 0: not known
  std::vector<uint32_t> cores_of_device_;  // index into core_free_s_; kNone: its own
  std::vector<std::vector<double>> core_free_s_;
  absl::flat_hash_map<std::tuple<int32_t, int64_t, int64_t, bool>, uint32_t> link_index_;
  std::vector<double> link_free_s_;
  std::vector<Route> routes_;  // of each rendezvous
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_MACHINE_TIMES_H_
