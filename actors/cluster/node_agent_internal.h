// A node's side of the control plane: it joins, has the coordinator's calls executed
// (node_server_internal.h), and ends with its coordinator. Calls arrive on the event loop's thread;
// the work thread, which may block, executes them, and a third one writes files.
//
// Thread rule: stated at each function.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include <kj/async-io.h>

#include "actors/cluster/connection_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/job_status.h"
#include "actors/cluster/node.h"
#include "actors/cluster/node_server_internal.h"
#include "actors/cluster/secure_channel_internal.h"
#include "transport/ucx/ucx_transport.h"

namespace penstock::actors {

inline control::Encryption EncryptionOf(const NodeOptions& options) {
  return options.insecure ? control::Encryption::kNone : control::Encryption::kTls;
}

class NodeAgent {
 public:
  using TransportFactory = NodeSession::TransportFactory;

  // Why the agent ends, and whether because it has lost the coordinator.
  using OnEnd = std::function<void(const absl::Status& reason, bool is_orphan)>;

  // `options` and `loop` must outlive the agent. End calls `on_end`.
  NodeAgent(const NodeOptions& options, control::ControlLoop& loop, OnEnd on_end,
            TransportFactory create_transport = transport::CreateUcxTransport);
  ~NodeAgent();

  // Before the connection is made that Join gets: `channel`, of control::NodeChannel for this
  // coordinator, takes long to make.
  void SetChannel(std::shared_ptr<control::SecureChannel> channel) {
    channel_ = std::move(channel);
  }
  // Loop's thread. Sends the hello and joins. From then on the coordinator may call, and the agent
  // ends if the connection closes. kAborted if the connection was closed before the coordinator
  // answered: it may be tried again. The agent must outlive the promise.
  control::StatusPromise Join(kj::Own<kj::AsyncIoStream> stream, const std::string& key);
  // Loop's thread, after Run. Destroys the objects that belong to the loop.
  void Disconnect();
  // Executes calls until End and returns the status of the first End. The thread that calls it is
  // the work thread; it also calls CloseSessions.
  absl::Status Run();
  void CloseSessions() { sessions_.CloseAll(); }

  // "the coordinator (pid 4711 on host-a)". Once Join has ended.
  std::string CoordinatorName() const;
  // Loop's thread, between Join and Disconnect. Asks the coordinator what the job does.
  control::StatusPromise AskStatus(std::shared_ptr<JobStatus> result);

  // Loop's thread. Ends the agent, and what it is reading.
  void End(const absl::Status& status, bool is_orphan = false);
  WorkQueue& work() { return work_; }

 private:
  control::StatusPromise JoinOver(kj::Own<kj::AsyncIoStream> stream);
  void OnPing(uint32_t silence_ms);
  // From now on, the agent ends when no ping has come for so long.
  void SetSilence(uint32_t silence_ms);
  kj::Promise<void> ListenForPings(kj::Duration bound);
  // Says who is lost, and how the job goes on: "the coordinator (pid 4711 on host-a) is gone; ...".
  void EndAlone(std::string_view what);

  const NodeOptions& options_;
  control::ControlLoop& loop_;
  const OnEnd on_end_;
  WorkQueue work_;
  WorkQueue files_;
  NodeSessions sessions_;  // the work thread's
  ByteReceiver receiver_;
  // The loop's thread's:
  NodeExchanges exchanges_;
  std::shared_ptr<control::SecureChannel> channel_;
  kj::Own<control::RpcConnection> connection_;
  kj::Promise<void> watch_ = nullptr;
  kj::Promise<void> listen_ = nullptr;
  uint32_t silence_ms_ = 0;  // 0: it has not joined
  kj::TimePoint last_ping_ = kj::origin<kj::TimePoint>();
  std::string coordinator_;  // "pid 4711 on host-a"; empty: it has not said. Set by Join
  std::string resume_hint_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_AGENT_INTERNAL_H_
