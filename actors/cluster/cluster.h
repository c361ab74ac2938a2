// A job's processes, seen from the one that drives: the coordinator. It waits for nodes (node.h) to
// join, runs sessions over them, and notices when one dies.
//
//   ASSIGN_OR_RETURN(std::unique_ptr<Cluster> cluster, Cluster::Start({.num_processes = 2}));
//   options.start_engine = cluster->engine_factory();
//   ASSIGN_OR_RETURN(std::unique_ptr<Session> session, Session::Start(plan, options));
//
// Devices lie in contiguous blocks over the processes (device_range.h).
//
// Death. A node is lost when its process ends (seen at once where the coordinator started it), its
// connection closes, or it does not answer for `heartbeat_timeout`. The first loss ends the job,
// unless ClusterOptions::on_loss decides otherwise: the session's calls return kUnavailable with
// who, where and why, all other nodes are told to exit, and those that have not within
// `stop_timeout` are killed if the coordinator started them.
// Errors that nodes report about their peers wait a moment, so that the death behind them is what
// is told.
//
// Memory. The sessions that are open on a node at a time, and the states that it keeps
// (actors/session/kept_states.h), share its memory.
//
// Thread rule: thread-safe. Sessions end before their cluster.
// Invariants: what was started is reaped; no wait is unbounded; nothing outlives Stop.

#ifndef PENSTOCK_ACTORS_CLUSTER_CLUSTER_H_
#define PENSTOCK_ACTORS_CLUSTER_CLUSTER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "actors/cluster/cluster_figures.h"
#include "actors/cluster/cluster_start.h"
#include "actors/cluster/job_status.h"
#include "actors/cluster/node_description.h"
#include "actors/cluster/node_place.h"
#include "actors/cluster/node_traffic.h"
#include "actors/session/session.h"
#include "base/cpu_topology.h"

namespace penstock::actors {

// What a job does that has lost a node.
enum class AfterLoss { kEndJob, kContinue };

// How a cluster starts, and when it counts a node as lost.
struct ClusterOptions {
  uint32_t num_processes = 1;  // nodes
  // Where nodes join: "HOST:PORT" (port 0 or none: any), "unix:PATH" or "unix-abstract:NAME".
  // Empty: a name of its own on this host, which no file stands for.
  std::string listen;
  std::string key;  // 64 hexadecimal digits; empty: drawn
  // What starts a node on this host; "--join ADDRESS --rank N" is added, and the key is in its
  // environment as PENSTOCK_KEY. Empty: nodes are started by others.
  std::vector<std::string> node_command;
  // Nodes on this host read the key from their standard input as well, and "--key-file -" is added:
  // an environment is inherited, and shown by more tools.
  bool hands_key_on_input = false;
  // The line that a node which is started elsewhere reads in place of the key, and can open, such
  // as one that is encrypted. Called for each program that starts nodes there. Null: the key.
  std::function<absl::StatusOr<std::string>(const std::string& key)> seal_key;
  // Connections are neither encrypted nor authenticated by TLS; the key is sent as it is. `listen`
  // must be a loopback or Unix address. To measure what TLS costs, or to record messages.
  bool insecure = false;
  // Where each node is started, by rank, if node_command is given; empty: all on this host. Nodes
  // that are started elsewhere read the key from their standard input ("--key-file -"). Of them,
  // several that one agent starts are pinned ("--pin").
  std::vector<NodePlace> places;
  // At least 1: agents are started in a tree (agent_tree.h), each by that of another host, of which
  // none, and not this process, starts more than so many. The places then differ in their hosts
  // alone, which are the last words of their `through`, and `on_loss` is null: agents end soon
  // after the nodes of their own host. 0: this process starts all.
  uint32_t fanout = 0;
  // How many programs that start nodes on other hosts may be starting at a time. Each counts until
  // a node that it starts has joined, until it ends, or for 10 s. 0: 8 for each core that this
  // process may use.
  uint32_t max_starts = 0;
  bool pin = true;    // started nodes to cores
  int max_cores = 0;  // of this machine for the nodes; 0: all
  // Which nodes share a core, where there are more nodes than cores.
  CpuTopology::Sharing core_sharing = CpuTopology::Sharing::kNeighbours;
  // Of the plan that will run, so that nodes can be told theirs as they join; 0: not known yet.
  uint32_t num_devices = 0;
  // Of each process, for plans with as many devices; where it is empty, and for other plans, blocks
  // are as equal as can be.
  std::vector<uint32_t> process_devices;
  // Counts from the start of the last node.
  absl::Duration join_timeout = absl::Seconds(30);
  // Of one that has many nodes, 0.25 ms a node if that is longer.
  absl::Duration heartbeat_interval = absl::Milliseconds(250);
  // A node that does not answer for so long is lost; one that is not asked for 0.2 s longer ends.
  // While others join, both have 0.1 s more for each node, up to 20 s: the hosts are busy then.
  // A link may pause for 2 s: what TCP sends again then arrives after 3 s at the latest, as it
  // waits for 1.5 times as long as before. With the interval, and the second look of who was
  // stopped itself (0.2 s), a host that is cut off is named within 4 s.
  absl::Duration heartbeat_timeout = absl::Milliseconds(3300);
  absl::Duration stop_timeout = absl::Seconds(3);  // for nodes to end, before they are killed
  // What nodes say of how the job goes on where this process is lost, such as "continue with: ...".
  std::string resume_hint;
  // A line that a started node has printed. Called from a thread of the cluster.
  std::function<void(uint32_t rank, std::string_view host, std::string_view line)> on_output;
  // Answers what the job does, to nodes and to others who know the key; null: nobody does.
  std::shared_ptr<StatusAnswers> status_answers;
  // Told where to join once the cluster listens.
  std::function<void(const std::string& address, const std::string& key)> on_listening;
  // Told of each node that joins. Called from a thread of the cluster: must not block.
  std::function<void(const NodeDescription& node)> on_join;
  // Told, as a session starts, through what its devices run collectives and messages themselves,
  // such as "NCCL 2.28.9", or why the host runs them; and if it runs messages alone, why that.
  // Called by Session::Start.
  std::function<void(const absl::StatusOr<std::string>& communicators,
                     const std::string& why_not_messages)>
      on_collectives;
  // Decides what becomes of a job that has lost a node, once for each node; `report` says who,
  // where and why, and its origin is the rank (error_origin.h). Null: the job ends. In a job that
  // goes on, sessions over the lost node fail with the report, others continue, sessions over the
  // processes before it can be started (SessionOptions::num_processes), and Stop does not return
  // the report. A loss before all nodes have joined ends the job whatever this says. Called from a
  // thread of the cluster.
  std::function<AfterLoss(const absl::Status& report)> on_loss;
  // Ends the start from another thread; outlives Start. Null: nobody does.
  ClusterStart* start = nullptr;
  // Told of each program of this host that starts nodes on another: its process, and a descriptor
  // of it that is open during the call. Called from a thread of the cluster: must not block.
  std::function<void(int pid, int pid_fd)> on_starter;
};

// A payload of the status that tells of a loss, where it is known: what a shell would say of the
// process, 128 + its signal or its status, as decimal digits.
inline constexpr char kShellStatusPayload[] = "penstock/shell-status";

// The nodes of a job, as the process that runs its sessions sees them.
class Cluster {
 public:
  // Returns when all nodes have joined. On failure, those that have are told the reason.
  static absl::StatusOr<std::unique_ptr<Cluster>> Start(const ClusterOptions& options);
  ~Cluster();  // stops
  Cluster(const Cluster&) = delete;
  Cluster& operator=(const Cluster&) = delete;

  // Those that have joined, by rank.
  const std::vector<NodeDescription>& nodes() const;

  // For SessionOptions::start_engine. The cluster outlives the sessions.
  EngineFactory engine_factory();

  // Of each node, by rank, since it joined.
  std::vector<NodeTraffic> traffic() const;

  // Has the nodes, of which there are 2 to kMaxProbedNodes on as many hosts, measure how fast they
  // compute and the links between them; takes about a second and a tenth of one a node. Before any
  // session.
  absl::StatusOr<ClusterFigures> Probe(absl::Duration timeout);

  // How fast each node computes on its cores, in floating-point operations a second, by rank
  // (compute_probe.h). All measure at the same time, for 0.4 s. Before any session.
  absl::StatusOr<std::vector<double>> MeasureCompute(absl::Duration timeout);

  // Ends all nodes. OK if the job ran and all nodes ended in order, except those that `on_loss` let
  // the job go on without; otherwise the first loss of another node, before or while they ended.
  // Again: the same status. If `outcome`, what became of the job, is an error, RunNode returns it
  // at the nodes that were not started here.
  absl::Status Stop(const absl::Status& outcome = absl::OkStatus());
  // The same, but the job goes on with another cluster, which has the address and key of this one:
  // nodes that were not started here are to join it (NodeOptions::on_rejoin).
  absl::Status StopToRejoin();

  // The same at once: nodes that were started here are killed, the others left alone. Calls of the
  // session return kCancelled.
  void Kill();

 private:
  class Impl;
  explicit Cluster(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_CLUSTER_CLUSTER_H_
