// The coordinator's side of the nodes of a job: their processes, connections and sessions, and the
// end of the job. Who is in it and what a loss means, Membership says; what is a loss, the
// FailureDetector: both are actors, which are told what happens here.
//
// A loss that ends the job is the error of the sessions and of all that wait, and all other nodes
// are told to exit.
//
// Thread rule: the thread of the event loop, but for the constructor, the destructor and what says
// so.
// Invariant: after Close no node is supervised.

#ifndef PENSTOCK_ACTORS_CLUSTER_NODE_SUPERVISOR_INTERNAL_H_
#define PENSTOCK_ACTORS_CLUSTER_NODE_SUPERVISOR_INTERNAL_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <kj/async.h>

#include "actors/cluster/cluster.h"
#include "actors/cluster/cluster_actors_internal.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/failure_detector_internal.h"
#include "actors/cluster/heartbeat_internal.h"
#include "actors/cluster/launcher_internal.h"
#include "actors/cluster/membership_internal.h"
#include "actors/cluster/node_description.h"
#include "actors/cluster/node_traffic.h"
#include "actors/cluster/questions_internal.h"
#include "actors/cluster/start_limit_internal.h"

namespace penstock::actors {

class NodeSupervisor final : public kj::TaskSet::ErrorHandler, public control::ControlPort::Host {
 public:
  // `options` and `loop` outlive the result.
  NodeSupervisor(const ClusterOptions& options, control::ControlLoop& loop);
  ~NodeSupervisor() noexcept override = default;

  // For the actors of the job. The handlers may be called by any thread until the loop ends, and
  // not before Listen.
  static FailureDetector::Times TimesOf(const ClusterOptions& options);
  FailureDetector::Handlers detector_handlers();
  ProcessLauncher::Events process_events();

  // Lets nodes with the key, kJobKeyBytes bytes, join at options.listen. Once. `actors` are
  // used from then on until Close.
  control::StatusPromise Listen(std::string key, ClusterActors& actors);
  // Where nodes join, once Listen has resolved.
  const std::string& address() const { return address_; }
  // Resolves when a process may be launched that will join as command.rank, or those of an agent:
  // a command for another host waits until fewer than options.max_starts of them are starting, at
  // most for StartLimit::kPatience. An error says why the job has ended. `command` outlives the
  // promise.
  control::StatusPromise AwaitTurn(const LaunchCommand& command);
  // Resolves when all nodes have joined, or with the loss of a node before that.
  control::StatusPromise AwaitJoined() { return all_joined_->addBranch(); }

  // What has passed between this process and a node since it started.
  const std::shared_ptr<NodeTraffic>& TrafficOf(uint32_t rank) const {
    return nodes_[rank]->traffic;
  }
  // The part of a node's memory that its sessions and kept states take.
  uint64_t BytesInUse(uint32_t rank) const {
    return static_cast<uint64_t>(nodes_[rank]->bytes_in_use);
  }
  void AddBytesInUse(uint32_t rank, int64_t num_bytes) { nodes_[rank]->bytes_in_use += num_bytes; }
  uint64_t NextKeptNumber() { return ++num_kept_; }
  uint32_t NextExchangeNumber() { return ++num_exchanges_; }

  uint32_t num_processes() const { return options_.num_processes; }
  // How long nothing may pass between two nodes that both answer, although it should.
  absl::Duration LinkTimeout() const;
  uint32_t LinkTimeoutMs() const;
  // "node 1 (pid 4711 on host-b)", as far as known.
  std::string NameOf(uint32_t rank) const { return actors::NameOf(nodes_[rank]->description); }
  const std::vector<uint32_t>& process_devices() const { return options_.process_devices; }
  const NodeDescription& DescriptionOf(uint32_t rank) const { return nodes_[rank]->description; }
  // Of the failure detector; any thread but the loop's, between Listen and Close.
  absl::StatusOr<MemberSilences> Silences(absl::Duration timeout) const {
    return actors_->failure_detector().Silences(timeout);
  }
  // Null before the node has joined and once it is lost.
  kj::Maybe<control::Node::Client> NodeOf(uint32_t rank);
  // OK, or the first loss of a node that the job does not go on without: what ended the job, or
  // what kept it from ending in order.
  absl::Status loss() const;
  // The same, of the first `num_processes` nodes and whether or not the job goes on.
  absl::Status LossAmong(uint32_t num_processes) const;
  // Whether a loss has ended the job. A job that goes on without a member has not ended.
  bool has_ended() const { return !loss_.ok(); }
  kj::TaskSet& tasks() { return *tasks_; }

  // `session` fails when the job ends. Several may run at a time.
  absl::Status BeginSession(const std::shared_ptr<ClusterSession>& session);
  // Does nothing if `session` does not run.
  void EndSession(const std::shared_ptr<ClusterSession>& session);

  // The job is over, with this outcome. Resolves when all nodes have exited, or
  // options.stop_timeout has passed. With `joins_again`, nodes that others have started are told to
  // join once more.
  kj::Promise<void> Stop(const absl::Status& outcome, bool joins_again = false);
  // The job cannot go on: its sessions fail with the cause, and the nodes are told to exit. Nothing
  // if it is ending already.
  void Fail(const absl::Status& cause);
  // The job goes on without a node that is lost, which is no error of its end: the sessions over it
  // fail with the report. Like Fail if not all nodes have joined yet.
  void ContinueWithout(uint32_t rank, const absl::Status& report);
  // Ends the job at once: kills what was started here and leaves the other nodes alone.
  void Kill();
  void Close();

 private:
  struct Node {
    NodeDescription description;
    bool has_joined = false;
    bool is_launched = false;        // by this job
    bool is_finished = false;        // the process that was launched
    bool is_lost = false;            // its loss was told
    bool is_watched = false;         // what has started it will report how it ended
    bool is_end_awaited = false;     // its connection is closed, and the report has not come yet
    bool is_end_known = false;       // it was reported, or the wait is over
    bool has_answered_exit = false;  // so it ends in order, and will not be reported
    uint64_t connection = 0;         // of the control port
    kj::Maybe<control::Node::Client> client;
    std::unique_ptr<Heartbeat> heartbeat;  // null where there is no client
    std::shared_ptr<NodeTraffic> traffic = std::make_shared<NodeTraffic>();
    int64_t bytes_in_use = 0;
  };

  // control::ControlPort::Host.
  kj::Promise<absl::StatusOr<control::Admission>> Admit(uint64_t connection,
                                                        control::NodeInfo::Reader info,
                                                        control::Node::Client client) override;
  kj::Promise<control::Questions<JobStatus>::Answer> Status() override { return questions_->Ask(); }
  void OnMemberGone(uint32_t rank) override;
  void OnMemberEnd(const control::MemberEnd& end) override;
  void taskFailed(kj::Exception&& exception) override;

  // A node has its rank.
  control::Admission AddMember(const NodeDescription& node, uint64_t connection,
                               control::Node::Client client);
  void StartHeartbeat(uint32_t rank, control::Node::Client client);
  void OnDisconnected(uint32_t rank);
  void BeginEnding();
  // What the actors ask for and tell. After Close: nothing.
  void LookAgain(uint32_t rank);
  void OnLaunched(const LaunchCommand& command, const LaunchedProcess& process);
  void OnExit(uint32_t rank, int wait_status, std::string_view note);
  void OnFinished(uint32_t rank);
  void OnLauncherEnded();
  // Where a node is that was launched, until it says so itself. Any thread.
  const std::string& HostOf(uint32_t rank, const LaunchCommand& command,
                            const LaunchedProcess& process) const;
  // `counts`: as FailureDetector::Handlers::on_loss has it.
  void Lose(const MemberLoss& loss, bool counts);
  // Stop reports the first loss that the job does not survive.
  void NoteLoss(const MemberLoss& loss);
  // What the job was doing when the node was lost: " in step 7".
  std::string WhenLost(uint32_t rank) const;
  // Those that have more than `rank` processes.
  void FailSessionsOver(uint32_t rank, const absl::Status& cause);
  // Adds what the devices of a session take, or with -1 takes it away.
  void CountMemory(const ClusterSession& session, int sign);
  void Disconnect(Node& node);
  // `cause` is OK where the job ends in order. Nodes that were started here are not told of it:
  // this process tells their user.
  void TellToExit(const absl::Status& cause, bool joins_again = false);
  kj::Promise<void> AwaitExits(kj::TimePoint deadline);
  kj::TimePoint StopDeadline() const;
  // Whether nothing of it is left to wait for. True of one that was not launched.
  bool IsFinished(uint32_t rank) const {
    return !nodes_[rank]->is_launched || nodes_[rank]->is_finished;
  }
  // Whether what has started it may still say how it has ended.
  static bool MayBeReported(const Node& node) {
    return node.is_watched && !node.is_end_known && !node.has_answered_exit;
  }
  static bool IsReportAwaited(const Node& node) {
    return node.is_end_awaited && !node.is_lost && MayBeReported(node);
  }

  const ClusterOptions& options_;
  control::ControlLoop& loop_;
  std::string address_;
  ClusterActors* actors_ = nullptr;  // of Listen
  PingOptions pings_;
  bool is_ending_ = false;
  bool is_killed_ = false;  // by Kill
  absl::Status loss_;       // that ended the job
  struct NotedLoss {
    uint32_t rank = 0;
    absl::Status report;
    bool is_continued = false;  // the job goes on
  };
  std::vector<NotedLoss> noted_losses_;  // the membership may not have handled them yet
  std::vector<std::shared_ptr<ClusterSession>> sessions_;  // that run
  uint32_t generation_ = 0;                                // of the last session
  uint64_t num_kept_ = 0;
  uint32_t num_exchanges_ = 0;

  // Null before Listen and after Close.
  kj::Own<kj::PromiseFulfiller<absl::Status>> joined_fulfiller_;
  kj::Own<kj::ForkedPromise<absl::Status>> all_joined_;
  std::vector<std::unique_ptr<Node>> nodes_;  // by rank
  kj::Own<kj::TaskSet> tasks_;
  std::unique_ptr<control::Questions<JobStatus>> questions_;
  StartLimit starts_;
  // Nodes that wait for their rank.
  using Joined = std::shared_ptr<const absl::StatusOr<NodeDescription>>;
  std::map<uint64_t, kj::Own<kj::PromiseFulfiller<Joined>>> joining_;
  uint64_t num_joining_ = 0;
  kj::Own<control::ControlPort> port_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_NODE_SUPERVISOR_INTERNAL_H_
