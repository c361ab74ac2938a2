// The nodes of a job, supervised by the coordinator: it lets them join, watches them, and ends all
// of them when one is lost or the job is over.
//
// Losing a node. A node is lost when its process ends, its connection closes, or it does not answer
// heartbeats. The first loss ends the job: it is the error of the session and of all that wait, and
// all other nodes are told to exit. The status of a process that was started here says more than a
// closed connection or silence, so these wait a moment for it.
//
// Thread rule: the thread of the event loop, but for the constructor and the destructor.
// Invariants: after Close no node is supervised, and processes that were started here are gone.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_SUPERVISOR_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_SUPERVISOR_INTERNAL_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <kj/async.h>

#include "actors/cluster/child_process.h"
#include "actors/cluster/cluster.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/heartbeat_internal.h"
#include "actors/cluster/local_process_internal.h"
#include "actors/cluster/node_description.h"
#include "actors/cluster/rank_table.h"

namespace penstock::actors {

class NodeSupervisor final : public kj::TaskSet::ErrorHandler, public control::ControlPort::Host {
 public:
  // `options` and `loop` outlive the result.
  NodeSupervisor(const ClusterOptions& options, control::ControlLoop& loop);
  ~NodeSupervisor() noexcept override = default;

  // Lets nodes with the key, kJobKeyBytes bytes, join at options.listen. Once.
  kj::Promise<void> Listen(std::string key);
  // Where nodes join, once Listen has resolved.
  const std::string& address() const { return address_; }
  // A process that was started here will join as `rank`.
  void Watch(uint32_t rank, ChildProcess child);
  // Resolves when all nodes have joined. Fails with the loss of a node before that.
  kj::Promise<void> AwaitJoined() { return all_joined_->addBranch(); }

  const RankTable& ranks() const { return ranks_; }
  // Null before the node has joined and once it is lost.
  kj::Maybe<control::Node::Client> NodeOf(uint32_t rank);
  // OK, or the error that ended the job.
  const absl::Status& loss() const { return loss_; }
  kj::TaskSet& tasks() { return *tasks_; }

  // `session` fails when the job ends. One at a time: kFailedPrecondition if another runs.
  absl::Status BeginSession(const std::shared_ptr<ClusterSession>& session);
  // Does nothing if `session` is not the one that runs.
  void EndSession(const std::shared_ptr<ClusterSession>& session);

  // The job is over. Resolves when all nodes have exited, or options.stop_timeout has passed.
  kj::Promise<void> Stop();
  // Ends the job at once: kills what was started here and leaves the other nodes alone.
  void Kill();
  void Close();

 private:
  // What is known of a node beside its rank.
  struct Node {
    uint64_t connection = 0;  // of the control port
    kj::Maybe<control::Node::Client> client;
    std::optional<Heartbeat> heartbeat;
    std::optional<LocalProcess> process;  // if it was started here
    std::string silence;                  // why it was killed; empty: it was not
  };

  // control::ControlPort::Host.
  absl::StatusOr<control::Admission> Admit(uint64_t connection, control::NodeInfo::Reader info,
                                           control::Node::Client client) override;
  void OnMemberGone(uint32_t rank) override { OnDisconnected(rank); }
  void taskFailed(kj::Exception&& exception) override;

  void OnExit(uint32_t rank, int wait_status);
  void OnSilence(uint32_t rank);
  void OnDisconnected(uint32_t rank);
  // Loses the node a moment later, unless that has happened by then.
  void LoseAfterGrace(uint32_t rank, const std::string& cause);
  void Lose(uint32_t rank, std::string_view cause, int shell_status = 0);
  void Disconnect(Node& node);
  // `failure` is empty where the job ends in order. Nodes that were started here are not told of
  // it: this process tells their user.
  void TellToExit(std::string_view failure);
  kj::Promise<void> AwaitExits(kj::TimePoint deadline);
  kj::TimePoint StopDeadline() const;

  const ClusterOptions& options_;
  control::ControlLoop& loop_;
  std::string address_;
  RankTable ranks_;
  bool is_ending_ = false;
  absl::Status loss_;
  std::shared_ptr<ClusterSession> session_;  // null: none runs
  uint32_t generation_ = 0;                  // of the last session

  // Null before Listen and after Close.
  kj::Own<kj::PromiseFulfiller<void>> joined_fulfiller_;
  kj::Own<kj::ForkedPromise<void>> all_joined_;
  std::vector<std::unique_ptr<Node>> nodes_;  // by rank
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<control::ControlPort> port_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_SUPERVISOR_INTERNAL_H_
