// Writes what executors have recorded in Perfetto's protobuf format (perfetto.dev, "Synthetic track
// events"), for its viewer and its trace processor.
//
// Tracks: one for the steps, one for the critical path of a step, and one for each process. Below a
// process its stages, below a stage its devices, and below a device
//   - its phases: a track for each lane that runs one at a time, and one for each floating phase,
//   - its actors, in groups by kind: a track each, with a slice for each time that the actor ran,
//   - counters: credits and tokens of each edge between phases, bytes of registers, communications
//     under way, and, as lines that do not change, the memory that the plan gives the device.
// A process has counters of its resident memory, as far as it was sampled, and of the arenas of its
// devices.
// A flow leads from each send to its receive. The slice of a communication begins when the last of
// those that take part has started it; `wait_ms` says how much earlier this one did.
//
// Thread rule: pure functions but for the stream they write to.

#ifndef PENSTOCK_ACTORS_TRACE_PERFETTO_TRACE_H_
#define PENSTOCK_ACTORS_TRACE_PERFETTO_TRACE_H_

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "actors/trace/critical_path.h"
#include "actors/trace/register_use.h"
#include "actors/trace/trace.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// A process and the devices that it hosts.
struct TraceProcess {
  std::string name;
  uint32_t first_device = 0;
  uint32_t num_devices = 0;
  std::vector<UseSample> resident_bytes = {};  // in order of time
};

struct TraceContext {
  std::vector<TraceProcess> processes;  // devices of none of them lie in one of their own
  absl::Span<const StepWindow> steps;
  const CriticalPath* path = nullptr;  // null: no such track
};

// Every event of a device, phase and actor that `plan` has is one slice. Times are those of the
// events, in nanoseconds. An event that begins before the one before it on its track has ended
// begins at that end. `out` gets about 70 bytes an event.
void WritePerfettoTrace(const planner::Plan& plan, absl::Span<const TraceEvent> events,
                        const TraceContext& context, std::ostream& out);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_TRACE_PERFETTO_TRACE_H_
