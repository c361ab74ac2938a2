// Passes the lines that the processes of a job print to a callback, on a thread of its own. A
// callback that is slow or throws therefore delays neither the event loop nor the job.
//
// Thread rule: thread-safe. One thread at a time calls the callback.
// Invariants: the lines of a process stay in order; at most kMaxQueued lines are queued, and
// further ones are dropped and counted; if the callback throws, that line and all queued lines are
// lost.

#ifndef PENSTOCK_ACTORS_CLUSTER_OUTPUT_PUMP_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_OUTPUT_PUMP_INTERNAL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "caf/all.hpp"

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

// Replies to a flush with the number of lines dropped so far, after the lines sent before the
// flush.
using OutputPumpActor =
    caf::typed_actor<caf::reacts_to<OutputLine>, caf::replies_to<FlushAtom>::with<uint64_t>>;

class OutputPump {
 public:
  using OnOutput = std::function<void(uint32_t rank, std::string_view host, std::string_view line)>;
  static constexpr size_t kMaxQueued = size_t{1} << 16;

  // `system` must outlive the pump. `on_output` may be null.
  OutputPump(caf::actor_system& system, OnOutput on_output);

  // Starts an actor, to which lines go from now on. Replaces the previous actor if there is one.
  caf::actor Start();
  void Print(OutputLine line);
  // The same, of the host that was said last; none: "".
  void Print(uint32_t rank, std::string_view text);
  void SetHost(uint32_t rank, std::string host);
  // Waits until the lines printed before have been passed on, or returns kDeadlineExceeded.
  absl::Status Flush(absl::Duration timeout);
  // Ends the actor and waits for its end, or returns kDeadlineExceeded if the callback does not
  // return; the end of `system` waits for it then. Queued lines are dropped.
  absl::Status Stop(absl::Duration timeout);

  // The one that lines go to; null after Stop.
  OutputPumpActor actor();
  uint64_t num_dropped() const { return shared_->num_dropped; }

 private:
  struct Shared {
    OnOutput on_output;
    std::atomic<uint64_t> num_dropped{0};
  };
  using Counter = std::atomic<size_t>;

  static OutputPumpActor::behavior_type Pump(OutputPumpActor::pointer self,
                                             const std::shared_ptr<Shared>& shared,
                                             const std::shared_ptr<Counter>& num_queued);

  caf::actor_system& system_;
  const std::shared_ptr<Shared> shared_;
  absl::Mutex mutex_;
  OutputPumpActor actor_ ABSL_GUARDED_BY(mutex_);
  std::shared_ptr<Counter> num_queued_ ABSL_GUARDED_BY(mutex_);    // lines queued for actor_
  std::map<uint32_t, std::string> hosts_ ABSL_GUARDED_BY(mutex_);  // by rank
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_OUTPUT_PUMP_INTERNAL_H_
