#include "actors/cluster/cluster.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <string_view>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

#include "actors/cluster/agent_tree.h"
#include "actors/cluster/child_process.h"
#include "actors/cluster/cluster_access_internal.h"
#include "actors/cluster/cluster_actors_internal.h"
#include "actors/cluster/cluster_engine_internal.h"
#include "actors/cluster/cluster_probe_internal.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/host_agent.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/launcher_internal.h"
#include "actors/cluster/local_launcher_internal.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/cluster/socket_address.h"
#include "base/cpu_topology.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// As many programs that start nodes on other hosts as keep one core busy: each takes about 0.1 s of
// it here, and waits several times as long for the other host.
constexpr uint32_t kStartsPerCore = 8;
// For the turn of one: StartLimit::kPatience and some more.
constexpr absl::Duration kTurnTimeout = absl::Seconds(15);

// Each node has a connection, and one that is started here a pipe and a descriptor of its process.
// The usual limit of 1024 is for programs that use select, which this one does not.
void AllowFiles(uint32_t num_processes) {
  rlimit limit{};
  const rlim_t wanted = rlim_t{4} * num_processes + 4096;
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= wanted) return;
  limit.rlim_cur = std::min(limit.rlim_max, wanted);
  (void)setrlimit(RLIMIT_NOFILE, &limit);
}

}  // namespace

class Cluster::Impl {
 public:
  explicit Impl(const ClusterOptions& options) : options_(options) {}
  ~Impl() {
    EndStart();
    (void)Stop(absl::OkStatus());
  }

  absl::Status Start() {
    ASSIGN_OR_RETURN(const std::string key, CheckOptions());
    AllowFiles(options_.num_processes);
    ASSIGN_OR_RETURN(loop_, control::ControlLoop::Start());
    const auto end_job = [this](const absl::Status& cause) {
      loop_->Post([this, cause] { supervisor_->Fail(cause); });
    };
    supervisor_ = std::make_unique<NodeSupervisor>(options_, *loop_);
    actors_ = std::make_unique<ClusterActors>(ClusterActors::Setup{
        .on_output = options_.on_output,
        .ranks = RankTable(options_.num_processes, options_.num_devices, options_.process_devices),
        .on_loss = [this](const MemberLoss& loss,
                          const absl::Status& report) { OnLoss(loss.rank, report); },
        .times = NodeSupervisor::TimesOf(options_),
        .detector = supervisor_->detector_handlers(),
        .make_launcher =
            [this](kj::AsyncIoContext& io) {
              return std::make_unique<LocalLauncher>(io, "this host", options_.on_starter);
            },
        .processes = supervisor_->process_events(),
        .on_failure = end_job});
    access_ = std::make_shared<ClusterAccess>(*loop_, *supervisor_);
    RETURN_IF_ERROR(loop_->Await([this, &key] { return supervisor_->Listen(key, *actors_); },
                                 options_.join_timeout, StrCat("listening at ", options_.listen)));
    if (options_.start != nullptr) RETURN_IF_ERROR(options_.start->Attach(StartHooks()));
    if (options_.on_listening) options_.on_listening(supervisor_->address(), options_.key);
    RETURN_IF_ERROR(StartProcesses());
    return AwaitNodes();
  }

  // Detaches the hooks. None runs afterwards.
  void EndStart() {
    if (options_.start != nullptr) options_.start->Detach();
  }

  const std::vector<NodeDescription>& nodes() const { return nodes_; }

  std::vector<NodeTraffic> traffic() {
    std::vector<NodeTraffic> traffic;
    const absl::MutexLock lock(&stop_mutex_);
    if (is_stopped_) return traffic;
    (void)loop_->Await(
        [this, &traffic]() -> kj::Promise<void> {
          for (uint32_t rank = 0; rank < supervisor_->num_processes(); ++rank) {
            traffic.push_back(*supervisor_->TrafficOf(rank));
          }
          return kj::READY_NOW;
        },
        options_.stop_timeout, "the traffic of the nodes");
    return traffic;
  }

  absl::StatusOr<ClusterFigures> Probe(absl::Duration timeout) {
    absl::StatusOr<ClusterFigures> figures = absl::UnknownError("");
    RETURN_IF_ERROR(
        access_->With([&](control::ControlLoop& loop, NodeSupervisor& supervisor) -> absl::Status {
          figures = ProbeNodes(loop, supervisor, timeout);
          return figures.status();
        }));
    return figures;
  }

  absl::StatusOr<std::vector<double>> MeasureCompute(absl::Duration timeout) {
    absl::StatusOr<std::vector<double>> rates = absl::UnknownError("");
    RETURN_IF_ERROR(
        access_->With([&](control::ControlLoop& loop, NodeSupervisor& supervisor) -> absl::Status {
          rates = MeasureNodes(loop, supervisor, timeout);
          return rates.status();
        }));
    return rates;
  }

  absl::Status Stop(const absl::Status& outcome, bool joins_again = false) {
    const absl::MutexLock lock(&stop_mutex_);
    if (loop_ == nullptr || is_stopped_) return end_;
    is_stopped_ = true;
    if (access_ != nullptr) access_->Close();
    const absl::Duration timeout = options_.stop_timeout + absl::Seconds(5);
    end_ = loop_->Await([&] { return supervisor_->Stop(outcome, joins_again); }, timeout,
                        "the end of the nodes");
    // What was seen of the nodes counts, before the loop stops to look at them.
    (void)actors_->failure_detector().Flush(options_.stop_timeout);
    end_.Update(loop_->Await(
        [this]() -> kj::Promise<void> {
          supervisor_->Close();
          return kj::READY_NOW;
        },
        timeout, "the end of the cluster"));
    actors_->launcher().Stop();  // kills the processes that still run
    (void)actors_->pump().Flush(options_.stop_timeout);
    actors_->Stop(options_.stop_timeout);
    loop_->Stop();
    if (!supervisor_->loss().ok()) end_ = supervisor_->loss();
    const std::string file = FileOf(supervisor_->address());
    if (!file.empty()) unlink(file.c_str());
    return end_;
  }

  void Kill() {
    const absl::MutexLock lock(&stop_mutex_);
    if (is_stopped_) return;
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          supervisor_->Kill();
          return kj::READY_NOW;
        },
        options_.stop_timeout, "the end of the nodes");
  }

  absl::StatusOr<std::unique_ptr<Engine>> StartEngine(const planner::Plan& plan,
                                                      EngineObserver* observer,
                                                      const SessionOptions& options) {
    auto engine = std::make_unique<ClusterEngine>(access_, *loop_, *supervisor_, actors_->system(),
                                                  plan, observer, options, options_.stop_timeout,
                                                  options_.on_collectives);
    RETURN_IF_ERROR(engine->Open(nodes_, options));
    return engine;
  }

 private:
  // They run until EndStart; the loop takes their work until Stop.
  ClusterStart::Hooks StartHooks() {
    return {.cancel =
                [this](const absl::Status& cause) {
                  loop_->Post([this, cause] { supervisor_->Fail(cause); });
                },
            .kill =
                [this] {
                  loop_->Post([this] {
                    supervisor_->Fail(absl::CancelledError("the job was ended"));
                    supervisor_->Kill();
                  });
                },
            .missing_ranks =
                [this] {
                  const auto members = actors_->membership().List(absl::Seconds(1));
                  return members.ok() ? members->missing : std::vector<uint32_t>();
                }};
  }

  // On a thread of the membership.
  void OnLoss(uint32_t rank, const absl::Status& report) {
    const bool continues =
        options_.on_loss != nullptr && options_.on_loss(report) == AfterLoss::kContinue;
    loop_->Post([this, rank, report, continues] {
      if (continues) {
        supervisor_->ContinueWithout(rank, report);
      } else {
        supervisor_->Fail(report);
      }
    });
  }

  // Checks the options and fills in those that are not set. Returns the bytes of the key.
  absl::StatusOr<std::string> CheckOptions() {
    if (options_.num_processes < 1 || options_.num_processes > 65536) {
      return absl::InvalidArgumentError(
          StrCat("a job has 1 to 65536 processes, not ", options_.num_processes));
    }
    const std::vector<uint32_t>& devices = options_.process_devices;
    if (!devices.empty() && (devices.size() != options_.num_processes ||
                             std::count(devices.begin(), devices.end(), 0u) > 0)) {
      return absl::InvalidArgumentError(StrCat(
          "the devices of ", devices.size(), " processes were given (", StrJoin(devices, ", "),
          "); expected at least one for each of ", options_.num_processes));
    }
    if (!options_.places.empty() && options_.places.size() != options_.num_processes) {
      return absl::InvalidArgumentError(StrCat("there are places for ", options_.places.size(),
                                               " processes, of ", options_.num_processes));
    }
    if (options_.fanout > 0) RETURN_IF_ERROR(CheckTree());
    if (options_.max_starts == 0) {
      options_.max_starts = kStartsPerCore * static_cast<uint32_t>(UsableCores());
    }
    if (options_.key.empty()) {
      ASSIGN_OR_RETURN(options_.key, NewJobKey());
    }
    ASSIGN_OR_RETURN(std::string key, ParseJobKey(options_.key));
    if (options_.listen.empty()) {
      ASSIGN_OR_RETURN(const std::string name, NewJobKey());
      options_.listen = StrCat("unix-abstract:penstock-", getpid(), "-", name.substr(0, 16));
    }
    if (const absl::Status address = CheckListenAddress(options_.listen); !address.ok()) {
      return absl::InvalidArgumentError(StrCat("cannot listen at ", ToStd(address.message())));
    }
    if (options_.insecure) RETURN_IF_ERROR(CheckIsInsecureAddress(options_.listen));
    return key;
  }

  // Whether the places differ in their hosts alone.
  absl::Status CheckTree() const {
    for (const NodePlace& place : options_.places) {
      const NodePlace& first = options_.places.front();
      if (place.is_awaited || !place.joins_arguments || place.through.size() < 2 ||
          place.through.back() != place.host || place.key_file != first.key_file ||
          !std::equal(place.through.begin(), place.through.end() - 1, first.through.begin(),
                      first.through.end() - 1)) {
        return absl::InvalidArgumentError(
            StrCat("the node on ", place.host, " cannot be started by that of another host"));
      }
      if (place.coordinator_host != first.coordinator_host) {
        return absl::InvalidArgumentError(
            StrCat("hosts that start each other need one address of this host, but ", first.host,
                   " reaches it at ", first.coordinator_host, " and ", place.host, " at ",
                   place.coordinator_host, ": say which to listen at"));
      }
    }
    if (options_.places.empty() || options_.on_loss != nullptr) {
      return absl::InvalidArgumentError(
          "a tree starts nodes of other hosts alone, for a job that ends with the first loss");
    }
    return absl::OkStatus();
  }

  // A node's command where nodes join at `coordinator_host`; empty: at the address listened at.
  std::vector<std::string> NodeCommand(const std::string& coordinator_host) const {
    std::string address = supervisor_->address();
    if (!coordinator_host.empty() && !IsUnixAddress(address)) {
      address = JoinAddress(coordinator_host,
                            static_cast<unsigned>(std::stoul(SplitAddress(address).port)));
    }
    std::vector<std::string> node = options_.node_command;
    node.insert(node.end(), {"--join", address});
    if (options_.insecure) node.emplace_back("--insecure");
    return node;
  }

  // What starts the node of a rank at its place, or with an agent those of more ranks.
  absl::StatusOr<LaunchCommand> CommandOf(uint32_t rank, uint32_t num_ranks,
                                          const NodePlace& place) const {
    std::vector<std::string> node = NodeCommand(place.coordinator_host);
    node.insert(node.end(), {"--rank", StrCat(rank)});
    LaunchCommand command;
    command.rank = rank;
    // An agent also tells how one node has ended, where the program that starts it is not run by a
    // shell which does so: srun and mpirun each say it in their own way, and not for what reason.
    if (num_ranks > 1 || (!place.through.empty() && !place.joins_arguments)) {
      command.agent_ranks = num_ranks;
      node.insert(node.end(), {"--slots", StrCat(num_ranks)});
      if (options_.pin) {
        node.insert(node.end(), {"--pin", PinningName(options_.core_sharing)});
      }
    }
    const bool is_here = place.through.empty();
    if (is_here && !options_.hands_key_on_input) {
      command.arguments = std::move(node);
      command.environment = {{"PENSTOCK_KEY", options_.key}};
      return command;
    }
    const bool has_key_file = !is_here && !place.key_file.empty();
    node.insert(node.end(), {"--key-file", has_key_file ? place.key_file : "-"});
    if (!has_key_file) {
      std::string line = options_.key;
      if (!is_here && options_.seal_key != nullptr) {
        ASSIGN_OR_RETURN(line, options_.seal_key(options_.key));
      }
      command.input = StrCat(line, "\n");
    }
    if (is_here) {
      command.arguments = std::move(node);
      return command;
    }
    command.arguments = RunThrough(place.through, place.joins_arguments, node);
    command.remote_host = place.host;
    return command;
  }

  // Ranks from `first` on that one agent can start.
  uint32_t RanksOfAgent(uint32_t first) const {
    if (options_.places.empty() || options_.places[first].through.empty()) return 1;
    const NodePlace& place = options_.places[first];
    uint32_t count = 1;
    for (uint32_t rank = first + 1; rank < options_.num_processes; ++rank, ++count) {
      const NodePlace& other = options_.places[rank];
      if (other.is_awaited || other.host != place.host || other.through != place.through) break;
    }
    return count;
  }

  absl::Status LaunchOne(const LaunchCommand& command) {
    RETURN_IF_ERROR(loop_->Await([this, &command] { return supervisor_->AwaitTurn(command); },
                                 options_.join_timeout + kTurnTimeout,
                                 StrCat("the turn of node ", command.rank)));
    return actors_->launcher().Launch(command, options_.join_timeout);
  }

  // Starts the agents of a tree. REQUIRES: CheckTree() is OK.
  absl::Status StartTree() {
    std::vector<TreeHost> hosts;
    for (uint32_t rank = 0; rank < options_.num_processes; rank += hosts.back().num_ranks) {
      hosts.push_back({options_.places[rank].host, RanksOfAgent(rank)});
    }
    const NodePlace& place = options_.places.front();
    TreeOptions tree;
    tree.through = place.through;
    tree.through.pop_back();
    tree.fanout = options_.fanout;
    tree.node_command = NodeCommand(place.coordinator_host);
    if (options_.pin) tree.pinning = PinningName(options_.core_sharing);
    tree.key = options_.key;
    tree.key_file = place.key_file;
    uint32_t rank = 0;
    for (const absl::Span<const TreeHost> part : SplitHosts(hosts, tree.fanout)) {
      RETURN_IF_ERROR(LaunchOne(CommandOfPart(tree, part, rank)));
      rank += NumRanks(part);
    }
    return absl::OkStatus();
  }

  // Starts the nodes if the options name a command.
  absl::Status StartProcesses() {
    if (options_.node_command.empty()) return absl::OkStatus();
    if (options_.fanout > 0) return StartTree();
    std::vector<std::vector<int>> cores(options_.num_processes);
    if (options_.pin) {
      CpuTopology topology = CpuTopology::Load();
      topology.Limit(options_.max_cores);
      cores = topology.Distribute(static_cast<int>(options_.num_processes), options_.core_sharing);
    }
    uint32_t num_ranks = 1;
    for (uint32_t rank = 0; rank < options_.num_processes; rank += num_ranks) {
      const NodePlace place = options_.places.empty() ? NodePlace() : options_.places[rank];
      num_ranks = RanksOfAgent(rank);
      if (place.is_awaited) continue;
      ASSIGN_OR_RETURN(LaunchCommand command, CommandOf(rank, num_ranks, place));
      if (command.remote_host.empty()) command.cores = cores[rank];
      RETURN_IF_ERROR(LaunchOne(command));
    }
    return absl::OkStatus();
  }

  absl::Status AwaitNodes() {
    const absl::Status joined =
        loop_->Await([this] { return supervisor_->AwaitJoined(); }, options_.join_timeout,
                     StrCat("the joining of ", options_.num_processes, " nodes"));
    ASSIGN_OR_RETURN(const MemberList members, actors_->membership().List(options_.join_timeout));
    nodes_ = members.nodes;
    if (absl::IsDeadlineExceeded(joined)) {
      std::vector<std::string> missing;
      for (const uint32_t rank : members.missing) {
        const NodePlace place = options_.places.empty() ? NodePlace() : options_.places[rank];
        missing.push_back(place.host.empty() || !place.is_host_named
                              ? StrCat(rank)
                              : StrCat(rank, " on ", place.host));
      }
      return absl::DeadlineExceededError(StrCat("not all nodes joined ", supervisor_->address(),
                                                " in ", absl::FormatDuration(options_.join_timeout),
                                                ": missing ranks ", StrJoin(missing, ", ")));
    }
    return joined;
  }

  ClusterOptions options_;
  std::vector<NodeDescription> nodes_;
  // Held by Stop, and by what may be called at the same time and uses the loop.
  absl::Mutex stop_mutex_;
  bool is_stopped_ ABSL_GUARDED_BY(stop_mutex_) = false;
  absl::Status end_ ABSL_GUARDED_BY(stop_mutex_);  // what Stop returned
  // These are set by Start and stay.
  std::shared_ptr<ClusterAccess> access_;  // closed by Stop
  std::unique_ptr<ClusterActors> actors_;
  std::unique_ptr<NodeSupervisor> supervisor_;
  // Runs until Stop. Last: its thread uses all of the above.
  std::unique_ptr<control::ControlLoop> loop_;
};

Cluster::Cluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cluster::~Cluster() = default;

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const ClusterOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  if (const absl::Status started = impl->Start(); !started.ok()) {
    (void)impl->Stop(started);
    return started;
  }
  impl->EndStart();
  return std::unique_ptr<Cluster>(new Cluster(std::move(impl)));
}

const std::vector<NodeDescription>& Cluster::nodes() const { return impl_->nodes(); }

absl::StatusOr<ClusterFigures> Cluster::Probe(absl::Duration timeout) {
  return impl_->Probe(timeout);
}

absl::StatusOr<std::vector<double>> Cluster::MeasureCompute(absl::Duration timeout) {
  return impl_->MeasureCompute(timeout);
}

std::vector<NodeTraffic> Cluster::traffic() const { return impl_->traffic(); }

EngineFactory Cluster::engine_factory() {
  return
      [this](const planner::Plan& plan, EngineObserver* observer, const SessionOptions& options) {
        return impl_->StartEngine(plan, observer, options);
      };
}

absl::Status Cluster::Stop(const absl::Status& outcome) { return impl_->Stop(outcome); }
absl::Status Cluster::StopToRejoin() { return impl_->Stop(absl::OkStatus(), /*joins_again=*/true); }
void Cluster::Kill() { impl_->Kill(); }

}  // namespace penstock::actors
