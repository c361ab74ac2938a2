// Passes on what the processes of a job print, on a thread of its own: a reader that is slow, or
// that throws, holds up neither the event loop nor the job.
//
// Thread rule: thread-safe. The function that gets the lines is called by one thread at a time.
// Invariants: lines of a process come in their order; no more than kMaxQueued wait, what comes
// beyond that is dropped and counted; a function that throws loses its line, and those that waited.

#ifndef PENSTOCK_ACTORS_CLUSTER_OUTPUT_PUMP_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_OUTPUT_PUMP_INTERNAL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "caf/all.hpp"

#include "actors/engine/happens_before.h"

namespace penstock::actors {

struct OutputLine {
  uint32_t rank = 0;
  std::string host;
  std::string text;
};

}  // namespace penstock::actors

CAF_ALLOW_UNSAFE_MESSAGE_TYPE(penstock::actors::OutputLine)

namespace penstock::actors {

using FlushAtom = caf::atom_constant<caf::atom("flush")>;

// Answers a flush, once it has passed on what came before, with the lines that were dropped so far.
using OutputPumpActor =
    caf::typed_actor<caf::reacts_to<OutputLine>, caf::replies_to<FlushAtom>::with<uint64_t>>;

class OutputPump {
 public:
  using OnOutput = std::function<void(uint32_t rank, std::string_view host, std::string_view line)>;
  static constexpr size_t kMaxQueued = size_t{1} << 16;

  // `system` outlives it. `on_output` may be null.
  OutputPump(caf::actor_system& system, OnOutput on_output);

  // Starts the actor; lines go to it from now on. Again: another one, in the place of the last.
  caf::actor Start();
  void Print(OutputLine line);
  // Waits for the lines that came before. kDeadlineExceeded: they were not taken in time.
  absl::Status Flush(absl::Duration timeout);
  // Ends the actor and waits for it. What waits is dropped.
  void Stop();

  uint64_t num_dropped() const { return shared_->num_dropped; }

 private:
  struct Shared {
    OnOutput on_output;
    std::atomic<uint64_t> num_dropped{0};
    HappensBefore happens_before;
  };
  using Counter = std::atomic<size_t>;

  static OutputPumpActor::behavior_type Pump(OutputPumpActor::pointer self,
                                             const std::shared_ptr<Shared>& shared,
                                             const std::shared_ptr<Counter>& num_queued);
  OutputPumpActor actor();

  caf::actor_system& system_;
  const std::shared_ptr<Shared> shared_;
  std::mutex mutex_;
  OutputPumpActor actor_;                // guarded by mutex_
  std::shared_ptr<Counter> num_queued_;  // of this actor; the pointer is guarded by mutex_
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_OUTPUT_PUMP_INTERNAL_H_
