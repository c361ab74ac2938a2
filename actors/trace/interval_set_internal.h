// Times during which something happened, such as the computations of a device.
//
// Thread rule: a value.

#ifndef PENSTOCK_ACTORS_TRACE_INTERVAL_SET_INTERNAL_H_
#define PENSTOCK_ACTORS_TRACE_INTERVAL_SET_INTERNAL_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

namespace penstock::actors {

using Interval = std::pair<int64_t, int64_t>;

// Intervals without overlap, in order, that can be asked how much of a range they cover.
class IntervalSet {
 public:
  explicit IntervalSet(std::vector<Interval> intervals) {
    std::sort(intervals.begin(), intervals.end());
    for (const auto& [begin, end] : intervals) {
      if (end <= begin) continue;
      if (!intervals_.empty() && begin <= intervals_.back().second) {
        intervals_.back().second = std::max(intervals_.back().second, end);
      } else {
        intervals_.emplace_back(begin, end);
      }
    }
    int64_t sum = 0;
    for (const auto& [begin, end] : intervals_) sums_.push_back(sum += end - begin);
  }

  const std::vector<Interval>& intervals() const { return intervals_; }
  int64_t total() const { return sums_.empty() ? 0 : sums_.back(); }
  int64_t Covered(int64_t begin, int64_t end) const {
    return end <= begin ? 0 : CoveredBefore(end) - CoveredBefore(begin);
  }

 private:
  int64_t CoveredBefore(int64_t time) const {
    const auto next = std::lower_bound(intervals_.begin(), intervals_.end(), Interval(time, 0));
    if (next == intervals_.begin()) return 0;
    const auto last = next - 1;
    return sums_[last - intervals_.begin()] - std::max<int64_t>(last->second - time, 0);
  }

  std::vector<Interval> intervals_;
  std::vector<int64_t> sums_;  // of this and all intervals before it
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_INTERVAL_SET_INTERNAL_H_
