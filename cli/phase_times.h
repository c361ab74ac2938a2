// How long the phases of a plan took in a trace, as far as they worked.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_CLI_PHASE_TIMES_H_
#define PENSTOCK_CLI_PHASE_TIMES_H_

#include <cstdint>
#include <map>
#include <utility>

#include "absl/types/span.h"

#include "actors/engine/executor.h"
#include "planner/plan/plan.h"

namespace penstock::cli {

// Measured time of the runs of a phase: while its kernels run, while its data move, and the rest,
// in which it mostly waits for the other side of a communication. Kernels and transfers may
// overlap.
struct PhaseTime {
  int64_t runs = 0;
  double total_s = 0;
  double compute_s = 0;
  double transfer_s = 0;

  // At most the whole time.
  double work_s() const;
};
using PhaseTimes = std::map<std::pair<uint32_t, uint32_t>, PhaseTime>;  // by device and index

PhaseTimes MeasurePhases(const planner::Plan& plan, absl::Span<const actors::TraceEvent> events);

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_PHASE_TIMES_H_
