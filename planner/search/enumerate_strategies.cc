#include "planner/search/enumerate_strategies.h"

#include <algorithm>
#include <utility>

#include "base/divisors.h"

namespace penstock::planner {
namespace {

// The axes of a strategy. Each function takes a strategy in which all before it are chosen, and
// adds those that differ in its own axis; dp gets the devices that are left.
using Choice = void (*)(const Strategy& base, int64_t num_devices, const SearchLimits& limits,
                        std::vector<Strategy>* out);

void ChooseTensor(const Strategy& base, int64_t num_devices, const SearchLimits& limits,
                  std::vector<Strategy>* out) {
  for (const int64_t tp : DivisorsOf(num_devices / base.num_devices())) {
    if (tp > limits.tp) break;
    Strategy& strategy = out->emplace_back(base);
    strategy.tp = tp;
  }
}

void ChoosePipeline(const Strategy& base, int64_t num_devices, const SearchLimits& limits,
                    std::vector<Strategy>* out) {
  for (const int64_t pp : DivisorsOf(num_devices / base.num_devices())) {
    if (pp > limits.pp) break;
    Strategy& strategy = out->emplace_back(base);
    strategy.pp = pp;
  }
}

void ChooseContext(const Strategy& base, int64_t num_devices, const SearchLimits& limits,
                   std::vector<Strategy>* out) {
  for (const int64_t cp : DivisorsOf(num_devices / base.num_devices())) {
    if (cp > limits.cp) break;
    Strategy& strategy = out->emplace_back(base);
    strategy.cp = cp;
  }
}

void ChooseVirtualStages(const Strategy& base, int64_t, const SearchLimits& limits,
                         std::vector<Strategy>* out) {
  for (int64_t vpp = limits.least_vpp; vpp <= limits.vpp; ++vpp) {
    if (vpp > 1 && base.pp == 1) break;
    Strategy& strategy = out->emplace_back(base);
    strategy.vpp = vpp;
  }
}

void ChooseData(const Strategy& base, int64_t num_devices, const SearchLimits& limits,
                std::vector<Strategy>* out) {
  const int64_t dp = num_devices / base.num_devices();
  if (dp > limits.dp) return;
  Strategy& strategy = out->emplace_back(base);
  strategy.dp = dp;
}

void ChooseExperts(const Strategy& base, int64_t, const SearchLimits& limits,
                   std::vector<Strategy>* out) {
  for (const int64_t ep : DivisorsOf(base.dp)) {
    if (ep > limits.ep) break;
    Strategy& strategy = out->emplace_back(base);
    strategy.ep = ep;
  }
}

constexpr Choice kChoices[] = {ChooseTensor,        ChoosePipeline, ChooseContext,
                               ChooseVirtualStages, ChooseData,     ChooseExperts};

}  // namespace

std::array<int64_t, 13> Simplicity(const Strategy& strategy, int64_t microbatches,
                                   int64_t schedule) {
  return {strategy.vpp,
          strategy.pp,
          strategy.cp,
          strategy.tp,
          strategy.ep,
          static_cast<int64_t>(strategy.offload),
          static_cast<int64_t>(strategy.recompute),
          strategy.zero,
          strategy.sp,
          strategy.ulysses,
          strategy.splits_by_cost,
          schedule,
          microbatches};
}

std::vector<Strategy> EnumerateStrategies(int64_t num_devices, const SearchLimits& limits) {
  std::vector<Strategy> strategies = {Strategy()};
  for (const Choice choose : kChoices) {
    std::vector<Strategy> more;
    for (const Strategy& strategy : strategies) choose(strategy, num_devices, limits, &more);
    strategies = std::move(more);
  }
  std::sort(strategies.begin(), strategies.end(), [](const Strategy& a, const Strategy& b) {
    return Simplicity(a, 1) < Simplicity(b, 1);
  });
  return strategies;
}

}  // namespace penstock::planner
