// The last events of a device's trace, as many as there is room for.
//
// Thread rule: one thread at a time.

#ifndef PENSTOCK_ACTORS_ENGINE_TRACE_RING_H_
#define PENSTOCK_ACTORS_ENGINE_TRACE_RING_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace penstock::actors {

// One actor's run, or with actor == kNone a whole phase instance.
struct TraceEvent {
  uint32_t device = 0;              // its index in the plan
  uint32_t actor = planner::kNone;  // index in DevicePlan::actors
  uint32_t phase = 0;               // index in DevicePlan::phases
  uint32_t microbatch = 0;          // of the step; 0 for what runs once a step
  int64_t step = 0;                 // counted from 0 in the session
  int64_t begin_ns = 0;             // by the engine's clock
  int64_t end_ns = 0;               // likewise; not before begin_ns
};

// The trace of one device.
class TraceRing {
 public:
  // `capacity`: events; 0: Add may not be called.
  explicit TraceRing(size_t capacity) : capacity_(capacity) { events_.reserve(capacity); }

  // Allocates nothing. Drops the oldest event of a full ring.
  void Add(const TraceEvent& event);
  // What was added and not dropped, by the ends of the events; begins anew.
  std::vector<TraceEvent> Take();

 private:
  const size_t capacity_;
  std::vector<TraceEvent> events_;
  size_t oldest_ = 0;  // of a full ring
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_TRACE_RING_H_
