// The strategies that a search considers, and which of two is simpler.
//
// Only axes are enumerated; options such as zero, sp and recompute are tried where they are of use
// (search.h). A new axis takes a function in enumerate_strategies.cc, and a place in Simplicity.
//
// Example: two devices are {dp=2}, {tp=2} and, with stages of up to two virtual ones, {pp=2} and
// {pp=2, vpp=2}.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_SEARCH_ENUMERATE_STRATEGIES_H_
#define PENSTOCK_PLANNER_SEARCH_ENUMERATE_STRATEGIES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "planner/strategy/strategy.h"

namespace penstock::planner {

// Largest sizes that are considered. What follows the axes is for a search (search.h): no strategy
// is enumerated with it.
struct SearchLimits {
  int64_t dp = kMaxDevices;                // data parallel
  int64_t tp = kMaxDevices;                // tensor parallel
  int64_t pp = kMaxDevices;                // pipeline stages
  int64_t vpp = 8;                         // virtual stages of each pipeline stage
  int64_t least_vpp = 1;                   // of pipelines; with more than 1, there are no others
  int64_t ep = kMaxDevices;                // expert parallel
  int64_t cp = kMaxDevices;                // context parallel
  int zero = 3;                            // 0: nothing but the batch is split over replicas
  bool sp = true;                          // whether sequence parallelism is tried
  Recompute recompute = Recompute::kFull;  // unless a level is given
  bool offload = true;                     // whether keeping values on hosts is tried
  int64_t microbatches = 1 << 12;          // unless their number is given
};

// The strategies for a number of devices, simplest first.
std::vector<Strategy> EnumerateStrategies(int64_t num_devices, const SearchLimits& limits);

// Simpler strategies compare less, then schedules that a search lists earlier, and of one strategy
// and schedule fewer micro-batches.
std::array<int64_t, 13> Simplicity(const Strategy& strategy, int64_t microbatches,
                                   int64_t schedule = 0);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_SEARCH_ENUMERATE_STRATEGIES_H_
