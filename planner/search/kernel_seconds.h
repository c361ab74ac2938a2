// What a kernel takes on the devices of a machine: the longer of its flops at the rate of the
// device's kind and its bytes at the rate of its memory (Williams, Waterman & Patterson, "Roofline:
// an insightful visual performance model", 2009). Of several kinds of devices, the slowest counts.
//
// Thread rule: const after construction.

#ifndef PENSTOCK_PLANNER_SEARCH_KERNEL_SECONDS_H_
#define PENSTOCK_PLANNER_SEARCH_KERNEL_SECONDS_H_

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

#include "base/tensor.h"
#include "graph/op.h"
#include "planner/cluster/cluster_model.h"
#include "planner/search/machine.h"

namespace penstock::planner {

class KernelTimes {
 public:
  // On the first `num_devices` of the machine, which outlives the result.
  KernelTimes(const Machine& machine, int64_t num_devices);

  double Seconds(DType dtype, const graph::OpCost& cost) const;

  // The type in which an operator computes: that of its last float operand, or of its first result.
  static DType ComputeType(absl::Span<const TensorType> operands,
                           absl::Span<const TensorType> results);

 private:
  std::vector<const DeviceKind*> kinds_;
};

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_KERNEL_SECONDS_H_
