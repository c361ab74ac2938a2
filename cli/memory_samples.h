// The resident memory of a job's processes over time, for the counters of a trace.
//
// Thread rule: one thread at a time; a thread of its own asks the processes.

#ifndef PENSTOCK_CLI_MEMORY_SAMPLES_H_
#define PENSTOCK_CLI_MEMORY_SAMPLES_H_

#include <cstdint>
#include <map>
#include <memory>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"

#include "actors/engine/inspector.h"
#include "actors/trace/register_use.h"

namespace penstock::cli {

// Of each process, by rank: bytes at times of the clock of traces.
using MemorySamples = std::map<uint32_t, std::vector<actors::UseSample>>;

class MemorySampler {
 public:
  // Asks at once, then every `interval`. Samples are bounded: when there are `max_samples` of a
  // process, every other one is dropped, and from then on half as many are taken.
  MemorySampler(std::shared_ptr<actors::Inspector> inspector, absl::Duration interval,
                size_t max_samples = 2000);
  // Waits for a question under way.
  ~MemorySampler();
  MemorySampler(const MemorySampler&) = delete;
  MemorySampler& operator=(const MemorySampler&) = delete;

  // Asks once more if that is possible, and ends.
  MemorySamples Finish();

 private:
  void Sample();
  void Loop();

  const std::shared_ptr<actors::Inspector> inspector_;
  const size_t max_samples_;
  absl::Mutex mutex_;
  absl::Duration interval_ ABSL_GUARDED_BY(mutex_);
  MemorySamples samples_ ABSL_GUARDED_BY(mutex_);
  absl::Notification is_over_;
  std::thread thread_;
};

}  // namespace penstock::cli

#endif  // PENSTOCK_CLI_MEMORY_SAMPLES_H_
