#include "planner/simulator/kernel_table.h"

#include <algorithm>
#include <map>

#include "planner/cost/kernel_cost.h"

namespace penstock::planner {
namespace {

// The type in which a kernel computes, from its tiles.
DType ComputeTypeOf(const KernelPlan& spec) {
  std::vector<TensorType> operands;
  std::vector<TensorType> results;
  for (const TilePlan& tile : spec.inputs) operands.push_back({tile.dtype, tile.shape});
  for (const TilePlan& tile : spec.outputs) results.push_back({tile.dtype, tile.shape});
  if (operands.empty() && results.empty()) return DType::kF32;
  if (results.empty()) return operands[0].dtype;
  return KernelTimes::ComputeType(operands, results);
}

double PeakOf(const DeviceKind& kind, DType dtype) {
  const double peak = kind.peak_flops_per_s[static_cast<size_t>(dtype)];
  return peak > 0 ? peak
                  : *std::max_element(kind.peak_flops_per_s.begin(), kind.peak_flops_per_s.end());
}

}  // namespace

KernelTable::KernelTable(const std::vector<KernelPlan>& kernels, const graph::OpRegistry& ops,
                         const Machine& machine, const std::vector<uint32_t>& devices)
    : kernels_(kernels), ops_(ops), costs_(kernels.size()), has_cost_(kernels.size()) {
  std::map<const DeviceKind*, uint32_t> index;
  kind_of_device_.reserve(devices.size());
  for (const uint32_t device : devices) {
    const DeviceKind* kind = &machine.cluster.KindOf(device);
    const auto [it, is_new] = index.try_emplace(kind, static_cast<uint32_t>(kinds_.size()));
    if (is_new) {
      kinds_.push_back({KernelTimes(machine, device, 1), kind});
      kinds_.back().seconds.assign(kernels.size(), -1);
      kinds_.back().peak_seconds.assign(kernels.size(), -1);
    }
    kind_of_device_.push_back(it->second);
  }
}

double KernelTable::Seconds(uint32_t kernel, uint32_t device) const {
  Kind& kind = kinds_[kind_of_device_[device]];
  double& seconds = kind.seconds[kernel];
  if (seconds >= 0) return seconds;
  const KernelPlan& spec = kernels_[kernel];
  const graph::OpCost& cost = CostOf(kernel);
  const bool is_host_copy = spec.op == "to_host" || spec.op == "to_device";
  seconds = is_host_copy ? kind.times.HostCopySeconds(cost.bytes / 2)
                         : kind.times.Seconds(spec.op, ComputeTypeOf(spec), cost);
  return seconds = std::max(seconds, kind.times.LaunchSeconds());
}

double KernelTable::PeakSeconds(uint32_t kernel, uint32_t device) const {
  Kind& kind = kinds_[kind_of_device_[device]];
  double& seconds = kind.peak_seconds[kernel];
  if (seconds >= 0) return seconds;
  return seconds = CostOf(kernel).flops / PeakOf(*kind.kind, ComputeTypeOf(kernels_[kernel]));
}

const graph::OpCost& KernelTable::CostOf(uint32_t kernel) const {
  if (!has_cost_[kernel]) {
    costs_[kernel] = KernelCost(ops_, kernels_[kernel]);
    has_cost_[kernel] = true;
  }
  return costs_[kernel];
}

}  // namespace penstock::planner
