#include "planner/search/strategy_bounds.h"

#include <algorithm>
#include <limits>
#include <vector>

#include "base/status_macros.h"
#include "planner/search/kernel_seconds.h"
#include "planner/search/stage_work.h"
#include "planner/strategy/zero.h"

namespace penstock::planner {
namespace {

constexpr double kNoBound = std::numeric_limits<double>::infinity();
// Smaller kernels are seldom faster for their size, and then by little, unless kernels were
// measured: caches hold the tensors of small ones.
constexpr double kLeastWithMoreMicrobatches = 0.99;
constexpr double kLeastWithCaches = 0.9;

}  // namespace

absl::StatusOr<StrategyBounds> StrategyBounds::Create(const Machine& machine, StrategyWork* work) {
  StrategyBounds bounds;
  bounds.serial_s_ = kNoBound;
  bounds.has_own_cores_ = machine.core_groups.empty();
  const std::vector<DeviceKind>& kinds = machine.cluster.spec().kinds;
  bounds.has_measured_kernels_ = std::any_of(
      kinds.begin(), kinds.end(), [](const DeviceKind& kind) { return !kind.kernels.empty(); });
  bounds.memory_bytes_ =
      kinds.size() == 1 ? static_cast<double>(machine.cluster.KindOf(0).memory_bytes) : kNoBound;
  const auto num_devices = static_cast<int>(machine.cluster.num_devices());
  const std::vector<int> alike = FirstAlikeGroups(machine.cluster, 1, num_devices);
  for (int device = 0; device < num_devices; ++device) {
    if (alike[device] != device) continue;
    ASSIGN_OR_RETURN(const ModelWork* short_work, work->Of({}, 1, device));
    const ModelWork serial = work->model().Unfold(*short_work);
    double forward_s = 0;
    double seconds = 0;
    bounds.parameter_bytes_ = 0;
    bounds.optimizer_bytes_ = 0;
    for (const StageWork& stage : serial.stages) {
      forward_s += stage.forward.compute_s;
      seconds += stage.forward.compute_s + stage.backward.compute_s;
      bounds.parameter_bytes_ += stage.memory.parameters;
      bounds.optimizer_bytes_ += stage.memory.optimizer;
    }
    bounds.serial_s_ = std::min(bounds.serial_s_, seconds);
    if (seconds > 0) bounds.forward_share_ = std::min(bounds.forward_share_, forward_s / seconds);
  }
  return bounds;
}

double StrategyBounds::WithBubble(double group_s, const Strategy& strategy, int64_t microbatches,
                                  bool may_split_backward) const {
  double bubble = 0;
  if (has_own_cores_) {
    bubble =
        static_cast<double>(strategy.pp - 1) / static_cast<double>(microbatches * strategy.vpp);
  }
  // The first groups may have more of the work than the last one, which waits.
  if (may_split_backward) bubble *= forward_share_ / 2;
  return group_s * (1 + bubble);
}

double StrategyBounds::StepSeconds(const Strategy& strategy, int64_t microbatches,
                                   bool may_split_backward) const {
  const double least = has_measured_kernels_ ? kLeastWithCaches : 1;
  return least * WithBubble(serial_s_ / static_cast<double>(strategy.num_devices()), strategy,
                            microbatches, may_split_backward);
}

std::array<int64_t, 6> StrategyBounds::AxesOf(const Strategy& strategy) {
  return {strategy.dp, strategy.tp, strategy.pp, strategy.vpp, strategy.ep, strategy.cp};
}

void StrategyBounds::NoteFewest(const Strategy& strategy, int64_t microbatches) {
  fewest_.try_emplace(AxesOf(strategy), Fewest{microbatches});
}

double StrategyBounds::CommunicatingSeconds(const Strategy& strategy, int64_t microbatches,
                                            bool may_split_backward, StrategyWork* work) {
  const auto it = fewest_.find(AxesOf(strategy));
  if (it == fewest_.end() || microbatches < it->second.microbatches) return 0;
  Strategy axes = strategy;
  axes.zero = 0;
  axes.sp = false;
  axes.ulysses = false;
  axes.recompute = Recompute::kNone;
  axes.offload = Offload::kNone;
  Fewest& fewest = it->second;
  if (!fewest.group_s.has_value()) {
    fewest.group_s = work->LeastGroupSeconds(axes, fewest.microbatches).value_or(0);
  }
  const double with_more = has_measured_kernels_ ? kLeastWithCaches : kLeastWithMoreMicrobatches;
  const double least = axes == strategy ? with_more : kLeastWithOptions;
  return least * WithBubble(*fewest.group_s, strategy, microbatches, may_split_backward);
}

double StrategyBounds::StateBytes(const Strategy& strategy) const {
  const auto parts = static_cast<double>(strategy.tp * strategy.pp * strategy.ep);
  const auto replicas = static_cast<double>(strategy.num_replicas() / strategy.ep);
  return parameter_bytes_ / (strategy.zero == kMaxZero ? parts * replicas : parts) +
         (OffloadsStates(strategy.offload)
              ? 0
              : optimizer_bytes_ / (strategy.zero > 0 ? parts * replicas : parts));
}

bool StrategyBounds::IsTooLarge(const Strategy& strategy) const {
  return StateBytes(strategy) > memory_bytes_;
}

}  // namespace penstock::planner
