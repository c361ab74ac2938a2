// Counters of what the actors of a host have done, from which stalls are detected
// (stall_detector.h).
//
// Thread rule: each executor actor writes its own counters; stage actors count decisions; any
// thread may call Report once all executors are loaded.

#ifndef PENSTOCK_ACTORS_ENGINE_HOST_ACTIVITY_INTERNAL_H_
#define PENSTOCK_ACTORS_ENGINE_HOST_ACTIVITY_INTERNAL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "actors/engine/executor.h"
#include "actors/engine/stall_detector.h"

namespace penstock::actors {

// Counts the polling rounds of one executor; see ActivityReport.
struct PollCounters {
  std::atomic<int64_t> moves{0};
  std::atomic<int64_t> idle_polls{0};

  // Adds one. The executor's thread is the only writer, so no locked instruction is needed.
  static void Increment(std::atomic<int64_t>* counter) {
    counter->store(counter->load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
};

struct HostActivity {
  std::vector<std::unique_ptr<PollCounters>> poll_counters;  // one per executor
  std::vector<std::unique_ptr<DeviceExecutor>> executors;    // null until loaded
  std::atomic<int64_t> num_decisions{0};

  // REQUIRES: all executors are loaded.
  ActivityReport Report(std::string declined) const {
    ActivityReport report;
    report.num_decisions = num_decisions.load(std::memory_order_relaxed);
    for (const auto& counters : poll_counters) {
      report.moves.push_back(counters->moves.load(std::memory_order_acquire));
      report.idle_polls.push_back(counters->idle_polls.load(std::memory_order_acquire));
    }
    for (const auto& executor : executors) executor->AppendCommunications(&report.communications);
    report.declined = std::move(declined);
    return report;
  }
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_HOST_ACTIVITY_INTERNAL_H_
