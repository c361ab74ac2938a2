// A node's side of the control plane: the calls that the coordinator may make, and the node's part
// of the sessions. Calls arrive on the event loop's thread; the work thread, which may block,
// executes them.
//
// Thread rule: stated at each function.
// Invariants: the limits of the connection and kMaxWork bound the calls that a hostile coordinator
// can queue; a call of another generation has no effect.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include <kj/async-io.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/node.h"
#include "actors/cluster/node_exchange_internal.h"
#include "actors/cluster/node_session_internal.h"
#include "actors/cluster/scattered_bytes.h"
#include "actors/session/kept_tiles.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::actors {

// The queue between the event loop, which never blocks, and the work thread.
//
// Thread rule: thread-safe; only one thread calls Run.
class WorkQueue {
 public:
  // More calls than a coordinator has in flight; each may hold a chunk of memory.
  static constexpr size_t kMaxWork = 64;

  // Returns whether the queue had room.
  bool Push(std::function<void()> work) {
    const absl::MutexLock lock(&mutex_);
    if (work_.size() >= kMaxWork) return false;
    work_.push_back(std::move(work));
    return true;
  }

  // Makes Run return `status`. Only the first call has an effect.
  void End(const absl::Status& status) {
    const absl::MutexLock lock(&mutex_);
    if (!end_.has_value()) end_ = status;
  }

  void Clear() {
    const absl::MutexLock lock(&mutex_);
    work_.clear();
  }

  // Runs the work in order, until End.
  absl::Status Run() {
    const auto is_ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return end_.has_value() || !work_.empty();
    };
    while (true) {
      std::function<void()> work;
      {
        const absl::MutexLock lock(&mutex_, absl::Condition(&is_ready));
        if (end_.has_value()) return *end_;
        work = std::move(work_.front());
        work_.pop_front();
      }
      work();
    }
  }

 private:
  absl::Mutex mutex_;
  std::deque<std::function<void()>> work_ ABSL_GUARDED_BY(mutex_);
  std::optional<absl::Status> end_ ABSL_GUARDED_BY(mutex_);
};

class NodeAgent {
 public:
  using TransportFactory = NodeSession::TransportFactory;

  // Limits of open sessions and of kept copies of states. A job needs fewer.
  static constexpr size_t kMaxSessions = 8;
  static constexpr size_t kMaxKept = 16;
  // Exchanges of states that are under way: one for each session that takes states.
  static constexpr size_t kMaxExchanges = 8;

  // `options` and `loop` must outlive the agent. End calls `on_end`.
  NodeAgent(const NodeOptions& options, control::ControlLoop& loop, std::function<void()> on_end,
            TransportFactory create_transport = transport::CreateUcxTransport);
  ~NodeAgent();

  // Loop's thread. Sends the hello and joins. From then on the coordinator may call, and the agent
  // ends if the connection closes. The agent must outlive the promise.
  control::StatusPromise Join(kj::Own<kj::AsyncIoStream> stream, const std::string& key);
  // Loop's thread, after Run. Destroys the objects that belong to the loop.
  void Disconnect();
  // Executes calls until End and returns the status of the first End. The thread that calls it is
  // the work thread; it also calls CloseSessions.
  absl::Status Run() { return work_.Run(); }
  void CloseSessions() { sessions_.clear(); }

  // Loop's thread. Ends the agent and cancels the transfer that it is reading.
  void End(const absl::Status& status);
  WorkQueue& work() { return work_; }

 private:
  class NodeServer;
  struct Received;

  // Work thread. The memory of the sessions, of the kept states, and left behind by ended sessions.
  uint64_t BytesInUse() const;

  // Work thread. Writes the data of a call to `target`. Data that were too long for the call are
  // read from the coordinator. Errors name `what`.
  absl::Status Take(const Received& received, ByteTarget target, absl::Duration timeout,
                    std::string_view what);
  control::StatusPromise JoinOver(kj::Own<kj::AsyncIoStream> stream);
  kj::Promise<void> ListenForPings(kj::Duration bound);

  const NodeOptions& options_;
  control::ControlLoop& loop_;
  const std::function<void()> on_end_;
  const TransportFactory create_transport_;
  WorkQueue work_;
  // Used by the loop's thread:
  kj::Own<control::RpcConnection> connection_;
  kj::Promise<void> watch_ = nullptr;
  kj::Promise<void> listen_ = nullptr;
  uint64_t num_pings_ = 0;
  kj::Canceler transfers_;
  std::string reading_;  // names the transfer in progress; empty: none
  bool has_ended_ = false;
  std::map<uint32_t, std::shared_ptr<NodeExchange>> exchanges_;  // by number; what the work thread
                                                                 // uses of one, it shares
  uint32_t last_exchange_ = 0;
  // Used by the work thread:
  std::map<uint32_t, std::unique_ptr<NodeSession>> sessions_;  // by generation
  uint32_t generation_ = 0;                                    // of the last session
  std::map<uint64_t, KeptTiles> kept_;                         // by number
  // Steps of all sessions that are done here and whose report the coordinator has not acknowledged.
  const std::shared_ptr<std::atomic<int64_t>> num_untold_ =
      std::make_shared<std::atomic<int64_t>>(0);
  // Memory that transports of ended sessions have left behind.
  const std::shared_ptr<std::atomic<uint64_t>> bytes_left_ =
      std::make_shared<std::atomic<uint64_t>>(0);
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_
