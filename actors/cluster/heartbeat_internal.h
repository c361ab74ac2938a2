// Asks a node for a sign of life at regular intervals.
//
// While nodes join, the hosts are busy with starting them, and one that has joined may have to wait
// for a core: until all have joined, it has HeartbeatTimes::patience to answer. From then on, pings
// tell nodes their bound as well.
//
// Thread rule: the thread of the event loop.
// Invariant: one of the callbacks is called at most once, and none after Stop or the destructor.

#ifndef PENSTOCK_ACTORS_CLUSTER_HEARTBEAT_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_HEARTBEAT_INTERNAL_H_

#include <functional>

#include "absl/time/time.h"
#include <kj/async.h>
#include <kj/timer.h>

#include "actors/cluster/control.capnp.h"

namespace penstock::actors {

// Of all nodes of a job.
struct HeartbeatTimes {
  absl::Duration interval;
  absl::Duration timeout;
  absl::Duration patience = timeout;  // at least `timeout`
  // Sent with pings once all have joined: how long a node may hear nothing before it ends. 0: the
  // bound that it was told when it joined stays.
  uint32_t silence_ms = 0;
  bool have_all_joined = true;
};

class Heartbeat {
 public:
  // `timer` and `times` outlive the result; of `times`, have_all_joined may change. `on_silence` is
  // called when the node has not answered for the bound that it names, `on_error` when a call has
  // failed. They may call Stop, but must not destroy the object.
  Heartbeat(kj::Timer& timer, control::Node::Client node, const HeartbeatTimes& times,
            std::function<void(absl::Duration bound)> on_silence,
            std::function<void(const kj::Exception& exception)> on_error);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void Stop() { node_ = nullptr; }
  // When the node last answered; before that, when the first call was due.
  kj::TimePoint last_answer() const { return last_answer_; }

 private:
  kj::Promise<void> Run();
  // Waits until the node has exceeded its bound, and resolves to that bound. The ping was sent
  // `asked` ago.
  kj::Promise<absl::Duration> AwaitSilence(absl::Duration asked);

  kj::Timer& timer_;
  kj::Maybe<control::Node::Client> node_;  // null: stopped
  const HeartbeatTimes& times_;
  const std::function<void(absl::Duration bound)> on_silence_;
  const std::function<void(const kj::Exception& exception)> on_error_;
  kj::TimePoint last_answer_;
  kj::Promise<void> running_ = nullptr;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_HEARTBEAT_INTERNAL_H_
