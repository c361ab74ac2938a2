#include "actors/engine/trace_ring.h"

#include <algorithm>
#include <utility>

namespace penstock::actors {

void TraceRing::Add(const TraceEvent& event) {
  if (events_.size() < capacity_) {
    events_.push_back(event);
    return;
  }
  events_[oldest_] = event;
  oldest_ = (oldest_ + 1) % capacity_;
}

std::vector<TraceEvent> TraceRing::Take() {
  std::rotate(events_.begin(), events_.begin() + static_cast<std::ptrdiff_t>(oldest_),
              events_.end());
  oldest_ = 0;
  std::vector<TraceEvent> taken = std::exchange(events_, {});
  events_.reserve(capacity_);
  // Ends of communication are noticed late.
  std::stable_sort(taken.begin(), taken.end(),
                   [](const TraceEvent& a, const TraceEvent& b) { return a.end_ns < b.end_ns; });
  return taken;
}

}  // namespace penstock::actors
