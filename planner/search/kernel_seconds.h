// What a kernel takes on the devices of a machine: the longer of its flops at the rate of the
// device's kind and its bytes at the rate of its memory, times what the operator was measured to
// take beyond that (planner/cluster/measured_kernel.h). Of devices of several kinds, the slowest
// counts.
//
// Thread rule: const after construction.

#ifndef PENSTOCK_PLANNER_SEARCH_KERNEL_SECONDS_H_
#define PENSTOCK_PLANNER_SEARCH_KERNEL_SECONDS_H_

#include <cstdint>
#include <string_view>
#include <tuple>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/types/span.h"

#include "base/tensor.h"
#include "graph/op.h"
#include "planner/cluster/cluster_model.h"
#include "planner/search/machine.h"

namespace penstock::planner {

class KernelTimes {
 public:
  // On `num_devices` devices of the machine from `first_device` on. The machine outlives the
  // result.
  KernelTimes(const Machine& machine, int64_t first_device, int64_t num_devices);

  // `op`: its name; that of a copy that is no operator may be empty.
  double Seconds(std::string_view op, DType dtype, const graph::OpCost& cost) const;

  // What the host takes to launch a kernel, however long that runs.
  double LaunchSeconds() const;

  // Whether the devices have memory of their own, and copy to and from their hosts beside kernels.
  bool HasHostLinks() const;

  // Of a copy between the memories of a device and its host.
  double HostCopySeconds(double num_bytes) const;

  // The type in which an operator computes: that of its narrowest float operand (in mixed
  // precision, statistics and losses beside bf16 are f32), or of its first result.
  static DType ComputeType(absl::Span<const TensorType> operands,
                           absl::Span<const TensorType> results);

 private:
  struct Kind {
    const DeviceKind* kind = nullptr;
    absl::flat_hash_map<std::tuple<std::string_view, DType, RooflineBound>, const MeasuredKernel*>
        measured;

    double Seconds(std::string_view op, DType dtype, const graph::OpCost& cost) const;
  };

  std::vector<Kind> kinds_;
};

// Of each of `num_groups` groups of consecutive devices, the first group that has the same kinds of
// devices: kernels take as long there.
std::vector<int> FirstAlikeGroups(const Cluster& cluster, int64_t devices_per_group,
                                  int num_groups);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_KERNEL_SECONDS_H_
