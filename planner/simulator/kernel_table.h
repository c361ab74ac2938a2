// What the kernels of a plan cost on the devices of a machine, each worked out once for a kind of
// device.
//
// Thread rule: one thread; costs are worked out when they are first asked for.

#ifndef PENSTOCK_PLANNER_SIMULATOR_KERNEL_TABLE_H_
#define PENSTOCK_PLANNER_SIMULATOR_KERNEL_TABLE_H_

#include <cstdint>
#include <vector>

#include "graph/op.h"
#include "planner/plan/plan.h"
#include "planner/search/kernel_seconds.h"
#include "planner/search/machine.h"

namespace penstock::planner {

class KernelTable {
 public:
  // All outlive the result. `devices`: of the cluster, those that may be asked for by their index.
  KernelTable(const std::vector<KernelPlan>& kernels, const graph::OpRegistry& ops,
              const Machine& machine, const std::vector<uint32_t>& devices);

  // Devices of one kind take the same for every kernel.
  uint32_t num_kinds() const { return static_cast<uint32_t>(kinds_.size()); }
  uint32_t KindOf(uint32_t device) const { return kind_of_device_[device]; }

  // Of the kernel on a device, at least a launch. It depends on the device's kind alone.
  double Seconds(uint32_t kernel, uint32_t device) const;
  // That the kernel's flops take at the peak rate of the type in which it computes.
  double PeakSeconds(uint32_t kernel, uint32_t device) const;
  const graph::OpCost& CostOf(uint32_t kernel) const;

 private:
  struct Kind {
    KernelTimes times;
    const DeviceKind* kind = nullptr;
    // Of each kernel; < 0: not known yet.
    std::vector<double> seconds = {};
    std::vector<double> peak_seconds = {};
  };

  const std::vector<KernelPlan>& kernels_;
  const graph::OpRegistry& ops_;
  mutable std::vector<Kind> kinds_;
  std::vector<uint32_t> kind_of_device_;
  mutable std::vector<graph::OpCost> costs_;
  mutable std::vector<bool> has_cost_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SIMULATOR_KERNEL_TABLE_H_
