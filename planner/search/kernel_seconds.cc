#include "planner/search/kernel_seconds.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

namespace penstock::planner {
namespace {

// The kinds of consecutive devices, in order of their index.
std::set<int64_t> KindsOf(const ClusterSpec& spec, int64_t first_device, int64_t num_devices) {
  if (spec.devices.empty()) return {0};
  std::set<int64_t> kinds;
  int64_t begin = 0;
  for (const DeviceRun& run : spec.devices) {
    const int64_t end = begin + run.count;
    if (begin < first_device + num_devices && end > first_device) kinds.insert(run.kind);
    begin = end;
  }
  return kinds;
}

}  // namespace

KernelTimes::KernelTimes(const Machine& machine, int64_t first_device, int64_t num_devices) {
  const ClusterSpec& spec = machine.cluster.spec();
  for (const int64_t kind : KindsOf(spec, first_device, num_devices)) {
    Kind& added = kinds_.emplace_back();
    added.kind = &spec.kinds[static_cast<size_t>(kind)];
    for (const MeasuredKernel& measured : added.kind->kernels) {
      added.measured[{measured.op, measured.dtype, measured.bound}] = &measured;
    }
  }
}

double KernelTimes::Kind::Seconds(std::string_view op, DType dtype,
                                  const graph::OpCost& cost) const {
  const Roofline roofline = RooflineOf(*kind, dtype, cost.flops, cost.bytes);
  auto found = measured.find({op, dtype, roofline.bound});
  if (found == measured.end()) {
    const bool is_compute = roofline.bound == RooflineBound::kCompute;
    found =
        measured.find({op, dtype, is_compute ? RooflineBound::kMemory : RooflineBound::kCompute});
  }
  if (found == measured.end()) {
    const double flops = cost.flops / EfficiencyAt(*kind, cost.flops);
    return RooflineOf(*kind, dtype, flops, cost.bytes).seconds;
  }
  const double seconds = roofline.seconds * SlowdownAt(*found->second, 1e6 * roofline.seconds);
  if (roofline.bound == RooflineBound::kMemory) return seconds;
  // Measured products that compute is the bound of are square. One that reads much more for what it
  // computes, such as a few rows times weights that no cache holds, packs those first.
  const auto by_memory = measured.find({op, dtype, RooflineBound::kMemory});
  if (by_memory == measured.end()) return seconds;
  const double memory_s = RooflineOf(*kind, dtype, 0, cost.bytes).seconds;
  return seconds + memory_s * std::max(SlowdownAt(*by_memory->second, 1e6 * memory_s) - 1, 0.0);
}

double KernelTimes::Seconds(std::string_view op, DType dtype, const graph::OpCost& cost) const {
  double slowest = 0;
  for (const Kind& kind : kinds_) slowest = std::max(slowest, kind.Seconds(op, dtype, cost));
  return slowest;
}

double KernelTimes::LaunchSeconds() const {
  double slowest = 0;
  for (const Kind& kind : kinds_) slowest = std::max(slowest, kind.kind->launch_s);
  return slowest;
}

bool KernelTimes::HasHostLinks() const {
  return std::all_of(kinds_.begin(), kinds_.end(),
                     [](const Kind& kind) { return HasHostLink(*kind.kind); });
}

double KernelTimes::HostCopySeconds(double num_bytes) const {
  double slowest = 0;
  for (const Kind& kind : kinds_) {
    slowest = std::max(slowest, planner::HostCopySeconds(*kind.kind, num_bytes));
  }
  return slowest;
}

DType KernelTimes::ComputeType(absl::Span<const TensorType> operands,
                               absl::Span<const TensorType> results) {
  std::optional<DType> narrowest;
  for (const TensorType& type : operands) {
    if (!IsFloat(type.dtype)) continue;
    if (!narrowest || ByteSize(type.dtype) < ByteSize(*narrowest)) narrowest = type.dtype;
  }
  return narrowest.value_or(results[0].dtype);
}

std::vector<int> FirstAlikeGroups(const Cluster& cluster, int64_t devices_per_group,
                                  int num_groups) {
  std::vector<int> first(static_cast<size_t>(num_groups), 0);
  if (cluster.spec().kinds.size() == 1) return first;
  std::map<std::set<int64_t>, int> group_of_kinds;
  for (int g = 0; g < num_groups; ++g) {
    std::set<int64_t> kinds = KindsOf(cluster.spec(), g * devices_per_group, devices_per_group);
    first[static_cast<size_t>(g)] = group_of_kinds.try_emplace(std::move(kinds), g).first->second;
  }
  return first;
}

}  // namespace penstock::planner
