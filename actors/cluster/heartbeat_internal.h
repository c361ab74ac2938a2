// Asks a node for a sign of life at regular intervals.
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

class Heartbeat {
 public:
  // `timer` outlives the result. `on_silence` is called when the node has not answered for
  // `timeout`, `on_error` when a call has failed. They may call Stop, but must not destroy the
  // object.
  Heartbeat(kj::Timer& timer, control::Node::Client node, absl::Duration interval,
            absl::Duration timeout, std::function<void()> on_silence,
            std::function<void(const kj::Exception& exception)> on_error);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  void Stop() { node_ = nullptr; }
  // When the node last answered; before that, when the first call was due.
  kj::TimePoint last_answer() const { return last_answer_; }

 private:
  kj::Promise<void> Run();

  kj::Timer& timer_;
  kj::Maybe<control::Node::Client> node_;  // null: stopped
  const kj::Duration interval_;
  const kj::Duration timeout_;
  const std::function<void()> on_silence_;
  const std::function<void(const kj::Exception& exception)> on_error_;
  kj::TimePoint last_answer_;
  kj::Promise<void> running_ = nullptr;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_HEARTBEAT_INTERNAL_H_
