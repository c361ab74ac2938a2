#include "planner/search/kernel_seconds.h"

#include <algorithm>
#include <set>

namespace penstock::planner {
namespace {

double RooflineSeconds(const DeviceKind& kind, DType dtype, const graph::OpCost& cost) {
  double peak = kind.peak_flops_per_s[static_cast<size_t>(dtype)];
  if (peak == 0) {
    peak = *std::max_element(kind.peak_flops_per_s.begin(), kind.peak_flops_per_s.end());
  }
  double seconds = cost.bytes / kind.memory_bytes_per_s;
  if (cost.flops > 0 && peak > 0) {
    seconds = std::max(seconds, cost.flops / (peak * EfficiencyAt(kind, cost.flops)));
  }
  return seconds;
}

}  // namespace

KernelTimes::KernelTimes(const Machine& machine, int64_t num_devices) {
  std::set<const DeviceKind*> kinds;
  const ClusterSpec& spec = machine.cluster.spec();
  int64_t begin = 0;
  if (spec.devices.empty()) kinds.insert(&spec.kinds[0]);
  for (const DeviceRun& run : spec.devices) {
    if (begin < num_devices) kinds.insert(&spec.kinds[static_cast<size_t>(run.kind)]);
    begin += run.count;
  }
  kinds_.assign(kinds.begin(), kinds.end());
}

double KernelTimes::Seconds(DType dtype, const graph::OpCost& cost) const {
  double slowest = 0;
  for (const DeviceKind* kind : kinds_) {
    slowest = std::max(slowest, RooflineSeconds(*kind, dtype, cost));
  }
  return slowest;
}

DType KernelTimes::ComputeType(absl::Span<const TensorType> operands,
                               absl::Span<const TensorType> results) {
  DType dtype = results[0].dtype;
  for (const TensorType& type : operands) {
    if (IsFloat(type.dtype)) dtype = type.dtype;
  }
  return dtype;
}

}  // namespace penstock::planner
