#include "cli/phase_times.h"

#include <algorithm>
#include <vector>

#include "actors/trace/communication_times.h"

namespace penstock::cli {

double PhaseTime::work_s() const { return std::min(compute_s + transfer_s, total_s); }

PhaseTimes MeasurePhases(const planner::Plan& plan, absl::Span<const actors::TraceEvent> events) {
  PhaseTimes times;
  const std::vector<actors::TransferTime> transfers = actors::TransferTimes(plan, events);
  for (size_t i = 0; i < events.size(); ++i) {
    const actors::TraceEvent& event = events[i];
    PhaseTime& time = times[{event.device, event.phase}];
    const double seconds = 1e-9 * static_cast<double>(transfers[i].moving_ns);
    if (event.actor == planner::kNone) {
      ++time.runs;
      time.total_s += seconds;
    } else if (actors::IsCommunication(plan, event)) {
      time.transfer_s += seconds;
    } else {
      time.compute_s += seconds;
    }
  }
  return times;
}

}  // namespace penstock::cli
