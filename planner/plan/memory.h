// Packs buffers that live at some positions into one range of bytes.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_PLANNER_PLAN_MEMORY_H_
#define PENSTOCK_PLANNER_PLAN_MEMORY_H_

#include <compare>
#include <cstdint>
#include <vector>

namespace penstock::planner {

inline constexpr uint64_t kArenaAlignment = 64;

inline uint64_t AlignUp(uint64_t bytes) {
  return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment;
}

// Positions, both included.
struct LiveSpan {
  int64_t first = 0;
  int64_t last = 0;

  friend auto operator<=>(const LiveSpan&, const LiveSpan&) = default;
};

// A buffer that is in use at the positions of its spans, which increase and do not meet.
struct Lifetime {
  uint64_t bytes = 0;
  std::vector<LiveSpan> spans;
  // Where it keeps away from what others touch. Likewise.
  std::vector<LiveSpan> held = {};
  std::vector<LiveSpan> touched = {};  // those of its spans where it keeps others away so
  bool follows_previous = false;       // lies right behind the buffer before it in the list
  uint64_t offset = 0;                 // set by PackLifetimes, a multiple of kArenaAlignment
};

// Whether some position has both in use, or one in use and the other held.
bool Meet(const Lifetime& a, const Lifetime& b);

// The most bytes in use at one position: no packing needs less.
uint64_t MostLiveBytes(const std::vector<Lifetime>& lifetimes);

// Gives every buffer an offset such that buffers whose lifetimes meet do not share bytes; returns
// the bytes needed in all. Greedy with best fit (Pisarchyk & Lee, "Efficient memory management for
// deep neural net inference", 2020): one buffer after another, each into the smallest gap between
// those already placed that live at the same time. The largest go first; where that needs more than
// MostLiveBytes, or 1 % more where there are many buffers, other orders are tried, and the best is
// kept. Buffers that follow each other are placed as one.
//
// The time is quadratic in the buffers, of which those count as one that follow each other with the
// same lifetime, as most slots of a register do.
uint64_t PackLifetimes(std::vector<Lifetime>* lifetimes);

}  // namespace penstock::planner

#endif  // PENSTOCK_PLANNER_PLAN_MEMORY_H_
