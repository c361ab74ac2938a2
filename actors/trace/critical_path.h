// The measured critical path of a step: which act waited for which, from the end of the step back
// to its beginning.
//
// The walk starts at the act of the step that ended last. The predecessor of an act is the one that
// ended last among those the act had to wait for:
//   - the producers of its inputs within the phase,
//   - what opened its phase: the producers of tokens and the returners of credits of the channels
//     to other phases, and the instance before it in the phase's lane,
//   - the computation before it on its device, which was busy until then.
// (Collectives of one group start in the plan's order; what the earlier one waits for is not looked
// at.)
// The predecessors of a communication are those of the member that started it last. So each act
// adds a segment from its beginning (of a communication: from when all members had started it) to
// its end, and the time between the end of the predecessor and the beginning of the act is a
// segment without an act: the device could have run it and did not, because other devices computed
// on its cores, because a thread had to wake up, or because the step was not yet submitted.
//
// Example: device 0 computes from 0 to 4 ms and sends; device 1, which posted the receive at 0 ms,
// has the data at 6 ms and computes from 6.1 to 9 ms, when the step ends. The path is 4 ms of
// computation, 2 ms of communication, 0.1 ms idle, 2.9 ms of computation.
//
// The segments cover the step's window without gaps, in order of time. Events of other steps are
// part of the path where they kept a device busy. Events that the trace lacks, and clocks of
// several hosts that differ, make a segment idle or shorter, never overlapping.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_TRACE_CRITICAL_PATH_H_
#define PENSTOCK_ACTORS_TRACE_CRITICAL_PATH_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "actors/trace/trace.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

enum class SegmentKind : uint8_t { kCompute, kCommunication, kIdle };

struct PathSegment {
  SegmentKind kind = SegmentKind::kIdle;
  uint32_t device = 0;              // where the act ran; of kIdle, the device that was late
  uint32_t actor = planner::kNone;  // kNone: kIdle
  uint32_t microbatch = 0;
  int64_t step = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  // Of begin_ns..end_ns, for how long the device computed; and for how long other devices computed
  // on all of its cores while it did not, in kIdle, or in kCommunication after the time that the
  // bytes need (communication_times.h).
  int64_t computing_ns = 0;
  int64_t core_wait_ns = 0;

  int64_t duration_ns() const { return end_ns - begin_ns; }
};

// Which devices share cores, for traces of devices that have fewer cores than threads.
struct SharedCores {
  std::vector<uint32_t> groups;  // of each device: of those that run on the same cores
  // Of each group: how many of its devices can compute at once, at least 1.
  std::vector<uint32_t> num_at_once;
};

// A device's share of a step. The rest of the step is a bubble: the device neither computed nor
// were data of its own communication moving.
struct DeviceTime {
  int64_t compute_ns = 0;
  int64_t communication_ns = 0;         // while data moved, for as long as they need
  int64_t hidden_communication_ns = 0;  // of communication_ns, while it computed as well
  int64_t bubble_ns = 0;
  // Of bubble_ns, while one of the device's phases that take turns had begun and not ended: it
  // waited for the other side of a communication, for a core or for a thread. In the rest none had
  // begun: what it needs was still to come from other devices, or the step had nothing left for it.
  int64_t waiting_ns = 0;
};

struct CriticalPath {
  StepWindow step;
  std::vector<PathSegment> segments;  // in order of time

  // Sums over the segments; together the duration of the step.
  int64_t compute_ns = 0;                // including computation beside a communication of the path
  int64_t exposed_communication_ns = 0;  // of communication, while its device did not compute
  int64_t core_wait_ns = 0;              // while others computed on the device's cores
  int64_t idle_ns = 0;                   // the rest of kIdle

  std::vector<DeviceTime> devices;

  int64_t duration_ns() const { return step.end_ns - step.begin_ns; }
  // Of all devices' communication, the fraction beside which the device computed; 0 without any.
  double hidden_fraction() const;
  // Of all devices' time, the fraction that was a bubble.
  double bubble_fraction() const;
};

// The path of the step `window.step`. Only events that lie in the window count; all is idle where
// there are none. Without `cores`, no device waits for one. Takes O(d n log n) for n events and
// d devices that share cores. REQUIRES: events of a device are in the order of their ends, as
// Session::TakeTrace gives them.
CriticalPath FindCriticalPath(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                              const StepWindow& window, const SharedCores* cores = nullptr);

// Steps, both ends included.
struct StepRange {
  int64_t first = 0;
  int64_t last = 0;
  friend bool operator==(const StepRange&, const StepRange&) = default;
};

// The first and the last step of which the trace holds all events. A device keeps its last events,
// so those of early steps may be lost. Nothing where the trace holds no step as a whole.
std::optional<StepRange> FindTracedSteps(const planner::Plan& plan,
                                         absl::Span<const TraceEvent> events);

// The step of median duration among those of which the trace holds all events, without step 0,
// which warms up, if there are others. Nothing where the trace holds no step as a whole. Windows
// are in the order of their steps.
std::optional<StepWindow> MedianTracedStep(const planner::Plan& plan,
                                           absl::Span<const TraceEvent> events,
                                           absl::Span<const StepWindow> windows);

// How much of a step its path explains: all but what is idle.
struct ExplainedStep {
  int64_t step = 0;
  int64_t duration_ns = 0;
  int64_t idle_ns = 0;
};

// The mean of what the paths of several steps consist of, per step.
struct MeanPath {
  int64_t num_steps = 0;
  double duration_s = 0;  // the sum of the four
  double compute_s = 0;
  double exposed_communication_s = 0;
  double core_wait_s = 0;
  double idle_s = 0;
  // Of each device, on the path or not, while it computed; while data of its communication moved
  // and it did not compute; and while it waited in a phase (DeviceTime::waiting_ns). The rest of
  // duration_s is outside its phases.
  std::vector<double> device_compute_s;
  std::vector<double> device_transfer_s;
  std::vector<double> device_wait_s;
  std::vector<ExplainedStep> steps;  // in their order
};

// Of at most `max_steps` of the steps of which the trace holds all events, evenly spaced, without
// step 0 if there are others.
MeanPath MeanCriticalPath(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                          absl::Span<const StepWindow> windows, int64_t max_steps,
                          const SharedCores* cores = nullptr);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_CRITICAL_PATH_H_
