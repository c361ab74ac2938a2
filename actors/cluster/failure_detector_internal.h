// Notices that a member of a job is lost: its process ends, its connection closes, or it does not
// answer heartbeats. What becomes of the job then is decided elsewhere (membership_internal.h).
//
// The status of a process that was launched here says more than a closed connection or silence, so
// these wait a moment for it. Heartbeats are calls of nodes: so it is no CAF actor, but belongs to
// the event loop that the calls are made on.
//
// Thread rule: the thread of the event loop.
// Invariants: no event after the destructor; a loss may be reported more than once; the first
// report counts.

#ifndef PENSTOCK_ACTORS_CLUSTER_FAILURE_DETECTOR_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_FAILURE_DETECTOR_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/time/time.h"
#include <kj/async.h>
#include <kj/timer.h>

#include "actors/cluster/control.capnp.h"
#include "actors/cluster/heartbeat_internal.h"
#include "actors/cluster/launcher_internal.h"

namespace penstock::actors {

class FailureDetector final : private kj::TaskSet::ErrorHandler {
 public:
  struct Loss {
    uint32_t rank = 0;
    std::string cause;        // follows the name of the member: "has closed its connection"
    int shell_status = 0;     // what a shell would say of its process; 0: not known
    bool is_orderly = false;  // as a member goes that was told to
  };
  using OnLoss = std::function<void(const Loss& loss)>;

  // `timer` and `launcher` outlive it. See ClusterOptions for the times.
  FailureDetector(kj::Timer& timer, Launcher& launcher, const HeartbeatTimes& times,
                  OnLoss on_loss);
  ~FailureDetector() = default;

  // Asks the member for signs of life, from now on.
  void Watch(uint32_t rank, control::Node::Client node);
  // From now on, members have less time to answer: see heartbeat_internal.h.
  void OnAllJoined() { times_.have_all_joined = true; }
  // No more heartbeats; it may be called from inside of OnLoss.
  void Unwatch(uint32_t rank);

  // Since the member's last sign of life; 0 where it is not watched.
  kj::Duration SilenceOf(uint32_t rank) const {
    const auto it = heartbeats_.find(rank);
    return it == heartbeats_.end() ? 0 * kj::SECONDS : timer_.now() - it->second->last_answer();
  }

  void OnExit(uint32_t rank, int wait_status, std::string_view note = "");
  void OnDisconnected(uint32_t rank);

 private:
  void OnSilence(uint32_t rank, absl::Duration bound);
  void TellAfterGrace(const Loss& loss);
  void taskFailed(kj::Exception&& exception) override;

  kj::Timer& timer_;
  Launcher& launcher_;
  HeartbeatTimes times_;
  const OnLoss on_loss_;
  std::map<uint32_t, std::unique_ptr<Heartbeat>> heartbeats_;
  std::map<uint32_t, std::string> silences_;  // why a process was killed here
  kj::TaskSet tasks_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_FAILURE_DETECTOR_INTERNAL_H_
