// Events in the order of their times; those of one time in the order in which they were added.
//
// Replicas do the same at the same time, so events come in runs of one time. A run is one element
// of the heap, which costs the logarithm of the number of runs: an event of a run costs the same
// however many devices there are.
//
// Example: 1,000 replicas each end a kernel of 1 s and begin one of 2 s. All 1,000 events at 3 s
// are a run, for which the heap is changed once.
//
// Thread rule: one thread.

#ifndef PENSTOCK_PLANNER_PLAN_EVENT_QUEUE_INTERNAL_H_
#define PENSTOCK_PLANNER_PLAN_EVENT_QUEUE_INTERNAL_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <queue>
#include <utility>
#include <vector>

namespace penstock::planner::internal {

template <typename Event>
class EventQueue {
 public:
  bool empty() const { return heap_.empty(); }

  void Add(double time, const Event& event) {
    // Only the run begun last grows, so runs of one time stand in the order of their events.
    if (heap_.empty() || runs_[last_].time != time) Begin(time);
    runs_[last_].events.push_back(event);
  }

  // Of the run that is being taken, the event `n` behind the first; null: it has not so many. What
  // the event is about may be fetched into the caches.
  const Event* Ahead(size_t n) const {
    if (heap_.empty()) return nullptr;
    const Run& run = runs_[heap_.top().run];
    return run.num_taken + n < run.events.size() ? &run.events[run.num_taken + n] : nullptr;
  }

  // The first event and its time. REQUIRES: not empty.
  std::pair<double, Event> Take() {
    const uint32_t index = heap_.top().run;
    Run& run = runs_[index];
    const std::pair<double, Event> taken = {run.time, run.events[run.num_taken]};
    if (++run.num_taken == run.events.size()) {
      heap_.pop();
      run.events.clear();
      run.num_taken = 0;
      // Nothing can be added to it any more: another event of its time begins a run.
      if (index == last_) run.time = kEnded;
      free_.push_back(index);
    }
    return taken;
  }

 private:
  // No event has this time.
  static constexpr double kEnded = -1;

  struct Run {
    double time = 0;
    std::vector<Event> events;
    size_t num_taken = 0;
  };
  struct Key {
    double time = 0;
    uint64_t number = 0;  // of the run, as it was begun
    uint32_t run = 0;
    friend bool operator>(const Key& a, const Key& b) {
      return std::pair(a.time, a.number) > std::pair(b.time, b.number);
    }
  };

  void Begin(double time) {
    if (free_.empty()) {
      free_.push_back(static_cast<uint32_t>(runs_.size()));
      runs_.emplace_back();
    }
    last_ = free_.back();
    free_.pop_back();
    runs_[last_].time = time;
    heap_.push({time, num_begun_++, last_});
  }

  std::vector<Run> runs_;
  std::vector<uint32_t> free_;  // runs without events
  uint32_t last_ = 0;           // the run begun last
  uint64_t num_begun_ = 0;
  std::priority_queue<Key, std::vector<Key>, std::greater<>> heap_;
};

}  // namespace penstock::planner::internal

#endif  // PENSTOCK_PLANNER_PLAN_EVENT_QUEUE_INTERNAL_H_
