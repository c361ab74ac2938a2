// Packs buffers that live for a range of positions into one workspace.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_MEMORY_H_
#define PENSTOCK_PLANNER_PLAN_MEMORY_H_

#include <cstdint>
#include <vector>

namespace penstock::planner {

inline constexpr uint64_t kArenaAlignment = 64;

inline uint64_t AlignUp(uint64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// A buffer that is in use from position `first` to position `last`, both included.
struct Lifetime {
  uint64_t bytes = 0;
  int64_t first = 0;
  int64_t last = 0;
  uint64_t offset = 0;  // set by PackLifetimes, a multiple of kArenaAlignment
};

// Gives every buffer an offset such that buffers whose lifetimes meet do not share bytes; returns
// the bytes needed in all. Greedy by size with best fit (Pisarchyk & Lee, "Efficient memory
// management for deep neural net inference", 2020): the largest buffer first, each into the
// smallest gap between those already placed that live at the same time.
uint64_t PackLifetimes(std::vector<Lifetime>* lifetimes);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_MEMORY_H_
