// A node's side of the control plane: what the coordinator may call, and the part of a session that
// is run for it. The calls come in on the event loop's thread and are done by another, which may
// block.
//
// Thread rule: as said at each function.
// Invariants: what a coordinator that lies can queue is bounded by the limits of the connection and
// kMaxWork calls; a call of another generation has no effect.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include <kj/async-io.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node.h"
#include "actors/cluster/node_session_internal.h"
#include "actors/cluster/scattered_bytes.h"
#include "actors/session/kept_tiles.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::actors {

// Work for a thread that may block; the event loop never does.
//
// Thread rule: thread-safe; Run is called by one thread.
class WorkQueue {
 public:
  // More than a coordinator has under way; each may become a chunk in memory.
  static constexpr size_t kMaxWork = 64;

  // Whether there was room.
  bool Push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    if (work_.size() >= kMaxWork) return false;
    work_.push_back(std::move(work));
    changed_.notify_all();
    return true;
  }

  // No more work is taken. The first status counts.
  void End(const absl::Status& status) {
    const std::lock_guard lock(mutex_);
    if (!end_.has_value()) end_ = status;
    changed_.notify_all();
  }

  void Clear() {
    const std::lock_guard lock(mutex_);
    work_.clear();
  }

  // Runs what is pushed, until End.
  absl::Status Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return end_.has_value() || !work_.empty(); });
      if (end_.has_value()) return *end_;
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      lock.unlock();
      work();
      work = nullptr;
      lock.lock();
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::optional<absl::Status> end_;
};

class NodeAgent {
 public:
  using TransportFactory = NodeSession::TransportFactory;

  // Sessions that are open at a time, and copies of states: more than a job has.
  static constexpr size_t kMaxSessions = 8;
  static constexpr size_t kMaxKept = 16;

  // `options` and `loop` outlive it; `on_end` is called by End.
  NodeAgent(const NodeOptions& options, control::ControlLoop& loop, std::function<void()> on_end,
            TransportFactory create_transport = transport::CreateUcxTransport);
  ~NodeAgent();

  // The loop's thread. Says hello and joins; from then on the coordinator may call, and if it goes,
  // the agent ends. The agent outlives the promise.
  control::StatusPromise Join(kj::Own<kj::AsyncIoStream> stream, const std::string& key);
  // The loop's thread, after Run: lets go of all that is the loop's.
  void Disconnect();
  // Does what is called, until End; the first End's status. The thread that closes the sessions.
  absl::Status Run() { return work_.Run(); }
  void CloseSessions() { sessions_.clear(); }

  // The loop's thread. The agent is to leave; what it is reading is broken off.
  void End(const absl::Status& status);
  WorkQueue& work() { return work_; }

 private:
  class NodeServer;
  struct Received;

  // The thread that runs. What sessions and kept states take of the memory.
  uint64_t BytesInUse() const;

  // The thread that runs. Puts what has come with a call where it belongs, and reads it first where
  // it was too long for the call. Errors name `what`.
  absl::Status Take(const Received& received, ByteTarget target, absl::Duration timeout,
                    std::string_view what);
  control::StatusPromise JoinOver(kj::Own<kj::AsyncIoStream> stream);
  kj::Promise<void> ListenForPings(kj::Duration bound);

  const NodeOptions& options_;
  control::ControlLoop& loop_;
  const std::function<void()> on_end_;
  const TransportFactory create_transport_;
  WorkQueue work_;
  // Of the loop's thread.
  kj::Own<control::RpcConnection> connection_;
  kj::Promise<void> watch_ = nullptr;
  kj::Promise<void> listen_ = nullptr;
  uint64_t num_pings_ = 0;
  kj::Canceler transfers_;
  std::string reading_;  // what is being read; empty: nothing
  bool has_ended_ = false;
  // Of the thread that runs.
  std::map<uint32_t, std::unique_ptr<NodeSession>> sessions_;  // by generation
  uint32_t generation_ = 0;                                    // of the last session
  std::map<uint64_t, KeptTiles> kept_;                         // by number
  // Steps, of all sessions, that are done here and that the coordinator has not taken note of.
  const std::shared_ptr<std::atomic<int64_t>> num_untold_ =
      std::make_shared<std::atomic<int64_t>>(0);
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_
