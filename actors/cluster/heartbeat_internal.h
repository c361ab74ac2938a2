// Asks a node for a sign of life at regular intervals. How long an answer may take, the failure
// detector knows (failure_detector_internal.h).
//
// While nodes join, the hosts are busy with starting them, and one that has joined may have to wait
// for a core: it has more time to answer, and nodes have more time to be asked. Once all have
// joined, pings tell them that they have less.
//
// Thread rule: the thread of the event loop.
// Invariants: a ping is sent when the one before was answered; on_error is the last callback; there
// is none after the destructor.

#ifndef PENSTOCK_ACTORS_CLUSTER_HEARTBEAT_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_HEARTBEAT_INTERNAL_H_

#include <functional>

#include "absl/time/time.h"
#include <kj/async.h>
#include <kj/timer.h>

#include "actors/cluster/control.capnp.h"

namespace penstock::actors {

// Of all nodes of a job.
struct PingOptions {
  absl::Duration interval;
  // Sent with pings once all have joined: how long a node may hear nothing before it ends. 0: the
  // bound that it was told when it joined stays.
  uint32_t silence_ms = 0;
  bool have_all_joined = true;
};

class Heartbeat {
 public:
  // They must not destroy the object.
  struct Events {
    std::function<void()> on_asked;
    std::function<void()> on_answered;
    std::function<void(const kj::Exception& exception)> on_error;  // a call has failed
  };

  // `timer` and `options` outlive the result; of `options`, have_all_joined may change.
  Heartbeat(kj::Timer& timer, control::Node::Client node, const PingOptions& options,
            Events events);
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

 private:
  kj::Promise<void> Run();

  kj::Timer& timer_;
  control::Node::Client node_;
  const PingOptions& options_;
  const Events events_;
  kj::Promise<void> running_ = nullptr;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_HEARTBEAT_INTERNAL_H_
