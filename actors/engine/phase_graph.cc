#include "actors/engine/phase_graph.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "actors/engine/host_staging.h"
#include "base/strings.h"

namespace penstock::actors {

using planner::ActorKind;

int64_t PeriodOf(const Phase& phase, absl::Span<const SlotGroup> groups, int64_t num_microbatches) {
  int64_t period = phase.per_microbatch ? num_microbatches : 1;
  // Slots are few, and a period above the limit is not made longer: nothing overflows.
  const auto repeat = [&period](int64_t count) {
    if (period <= kMaxGraphsOfPhase) period = std::lcm(period, count);
  };
  for (const SlotGroup& group : groups) {
    const int64_t slots = std::max<uint32_t>(group.slots, 1);
    if (phase.per_microbatch) {
      // The slot changes with the micro-batch, or with the step.
      repeat(group.per_microbatch ? slots : slots * num_microbatches);
    } else {
      // That of the first micro-batch of each step, or that of the step.
      repeat(group.per_microbatch ? slots / std::gcd(slots, num_microbatches) : slots);
    }
  }
  if (phase.has_host_copies) repeat(HostStaging::kCopySlots);
  return period;
}

std::string WhyNotCaptured(const Phase& phase, absl::Span<const Actor> actors, int64_t period) {
  if (phase.num_stream_comms > 0) {
    const bool has_messages = std::any_of(actors.begin(), actors.end(), [](const Actor& actor) {
      return IsStreamComm(actor) && actor.kind != ActorKind::kCollective;
    });
    return has_messages ? "communication" : "collectives";
  }
  if (phase.num_copies > 0) return "copies to or from the host";
  for (const Actor& actor : actors) {
    if (!actor.runs_on_stream) return "communication";
    if (actor.num_joins > 0 || actor.kind == ActorKind::kCollective) return "collectives";
  }
  if (actors.size() < 2) return "a single act";
  if (period > kMaxGraphsOfPhase) {
    return StrCat("its slots repeat after more than ", kMaxGraphsOfPhase, " instances");
  }
  return "";
}

std::string DescribeGraphs(const GraphCounts& counts) {
  std::string text = StrCat(counts.num_captured, " of ", counts.num_phases, " phases");
  std::map<std::string, int> count_of;
  for (const std::string& reason : counts.reasons) ++count_of[reason];
  const char* separator = "; others: ";
  for (const auto& [reason, count] : count_of) {
    StrAppend(&text, separator, reason, " (", count, ")");
    separator = ", ";
  }
  return text;
}

}  // namespace penstock::actors
