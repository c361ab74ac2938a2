// Measures a device that runs its work later, such as a GPU, for predictions: the rates of its own
// kernels.
//
//   products   square, of growing sizes, in each float that the device has products of: the peak
//              rate, and what products of each size take beside it
//   memory     a sum of two large tensors
//   copies     to and from pinned memory of the host, the slower of the two
//   launches   what the host takes to launch a small kernel
//
// A time is that of many runs between two points at which the stream is idle.
//
// Thread rule: one thread, with nothing else on the device.

#ifndef PENSTOCK_BENCH_GPU_PROFILE_H_
#define PENSTOCK_BENCH_GPU_PROFILE_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

#include "base/device.h"
#include "kernels/kernel.h"
#include "planner/cluster/cluster_model.h"

namespace penstock::bench {

struct GpuProfileOptions {
  std::vector<int64_t> product_sizes = {64, 128, 256, 512, 1024, 2048, 4096, 8192};
  int64_t sum_elements = int64_t{1} << 28;  // of a tensor: 1 GiB, more than caches hold
  int64_t copy_bytes = int64_t{1} << 28;
  int64_t least_ns = 20'000'000;  // of what is timed as a whole
};

// Without a name and without its memory. REQUIRES: `kernels` are those of the device.
absl::StatusOr<planner::DeviceKind> MeasureDeviceKind(Device& device,
                                                      const kernels::KernelRegistry& kernels,
                                                      const GpuProfileOptions& options);

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_GPU_PROFILE_H_
