#include "actors/cluster/cluster.h"

#include <signal.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include <kj/async-unix.h>
#include <kj/debug.h>

#include "actors/cluster/bulk_transfer_internal.h"
#include "actors/cluster/child_process.h"
#include "actors/cluster/cluster_session_internal.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/job_key.h"
#include "actors/cluster/line_splitter.h"
#include "actors/cluster/network_interface.h"
#include "actors/cluster/plan_slice.h"
#include "actors/cluster/socket_address.h"
#include "actors/cluster/state_tiles.h"
#include "actors/step_name.h"
#include "actors/tile_copy.h"
#include "base/counted.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan_io.h"

namespace penstock::actors {
namespace {

using control::AsData;
using control::AsText;
using control::ControlLoop;

// How long a loss waits for the process's status.
constexpr kj::Duration kExitGrace = 500 * kj::MILLISECONDS;
constexpr kj::Duration kPollInterval = 10 * kj::MILLISECONDS;
// For the orderly end of a session in its nodes; the end of the job does not wait for more.
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
// What is taken over of a node's word: the name of its host, its transport's address, and lines of
// its description.
constexpr size_t kMaxHostBytes = 255;
constexpr size_t kMaxAddressBytes = size_t{1} << 20;
constexpr size_t kMaxDescribeLines = 16384;

kj::Duration ToKj(absl::Duration duration) {
  return std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 0, int64_t{1} << 40) *
         kj::MILLISECONDS;
}

}  // namespace

class Cluster::Impl final : public kj::TaskSet::ErrorHandler, public control::ControlPort::Host {
 public:
  explicit Impl(const ClusterOptions& options) : options_(options) {}
  ~Impl() noexcept override { Stop(); }

  absl::Status Start() {
    if (options_.num_processes < 1 || options_.num_processes > 65536) {
      return absl::InvalidArgumentError(
          StrCat("a job has 1 to 65536 processes, not ", options_.num_processes));
    }
    if (options_.key.empty()) {
      ASSIGN_OR_RETURN(options_.key, NewJobKey());
    }
    ASSIGN_OR_RETURN(key_, ParseJobKey(options_.key));
    if (options_.listen.empty()) {
      ASSIGN_OR_RETURN(const std::string name, NewJobKey());
      options_.listen = StrCat("unix-abstract:penstock-", getpid(), "-", name.substr(0, 16));
    }
    if (const absl::Status address = CheckListenAddress(options_.listen); !address.ok()) {
      return absl::InvalidArgumentError(StrCat("cannot listen at ", ToStd(address.message())));
    }
    ASSIGN_OR_RETURN(loop_, ControlLoop::Start());
    RETURN_IF_ERROR(loop_->Await([this] { return Listen(); }, options_.join_timeout,
                                 StrCat("listening at ", options_.listen)));
    if (options_.on_listening) options_.on_listening(address_, options_.key);
    RETURN_IF_ERROR(StartNodes());
    absl::Status joined =
        loop_->Await([this] { return all_joined_->addBranch(); }, options_.join_timeout,
                     StrCat("the joining of ", options_.num_processes, " nodes"));
    if (absl::IsDeadlineExceeded(joined)) {
      std::vector<std::string> missing;
      (void)loop_->Await(
          [this, &missing]() -> kj::Promise<void> {
            for (const auto& peer : peers_) {
              if (!peer->is_joined) missing.push_back(StrCat(peer->description.rank));
            }
            return kj::READY_NOW;
          },
          options_.join_timeout, "the list of missing nodes");
      joined = absl::DeadlineExceededError(StrCat("not all nodes joined ", address_, " in ",
                                                  absl::FormatDuration(options_.join_timeout),
                                                  ": missing ranks ", StrJoin(missing, ", ")));
    }
    RETURN_IF_ERROR(joined);
    return loop_->Await(
        [this]() -> kj::Promise<void> {
          for (const auto& peer : peers_) nodes_.push_back(peer->description);
          return kj::READY_NOW;
        },
        options_.join_timeout, "the list of nodes");
  }

  const std::vector<NodeDescription>& nodes() const { return nodes_; }

  void Stop() {
    const std::lock_guard lock(stop_mutex_);
    if (loop_ == nullptr) return;
    (void)loop_->Await(
        [this] {
          is_ending_ = true;
          TellToExit("");
          return WaitForExits(loop_->timer().now() + ToKj(options_.stop_timeout));
        },
        options_.stop_timeout + absl::Seconds(5), "the end of the nodes");
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          port_ = nullptr;
          tasks_ = nullptr;
          peers_.clear();  // kills what is left of those that were started
          all_joined_ = nullptr;
          joined_fulfiller_ = nullptr;
          return kj::READY_NOW;
        },
        options_.stop_timeout + absl::Seconds(5), "the end of the cluster");
    loop_ = nullptr;
    constexpr std::string_view kUnix = "unix:";
    if (has_listened_ && options_.listen.substr(0, kUnix.size()) == kUnix) {
      unlink(options_.listen.substr(kUnix.size()).c_str());
    }
  }

  void Kill() {
    const std::lock_guard lock(stop_mutex_);
    if (loop_ == nullptr) return;
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          is_ending_ = true;
          for (const auto& peer : peers_) {
            if (peer->child.has_value()) peer->child->Kill();
            peer->node = nullptr;
          }
          if (port_.get() != nullptr) port_->CloseAll();
          if (loss_.ok()) loss_ = absl::CancelledError("the job was ended");
          if (session_ != nullptr) session_->Fail(loss_);
          return kj::READY_NOW;
        },
        options_.stop_timeout, "the end of the nodes");
  }

  absl::StatusOr<std::unique_ptr<Engine>> StartEngine(const planner::Plan& plan,
                                                      EngineObserver* observer,
                                                      const SessionOptions& options);

 private:
  friend class Cluster;
  class ClusterEngine;

  struct Peer {
    NodeDescription description;
    bool is_joined = false;
    bool is_lost = false;
    uint64_t guest = 0;
    kj::Maybe<control::Node::Client> node;
    std::optional<ChildProcess> child;
    kj::Own<kj::UnixEventPort::FdObserver> exit_observer;
    kj::Promise<void> exit_watch = nullptr;
    std::string silence;  // why it was killed; empty: it was not
    kj::Promise<void> heartbeat = nullptr;
    // What it prints.
    kj::Own<kj::AsyncInputStream> output;
    kj::Promise<void> output_pump = nullptr;
    bool has_output_ended = true;
    std::optional<LineSplitter> lines;
    kj::Array<char> buffer;
  };

  void taskFailed(kj::Exception&& exception) override { KJ_LOG(ERROR, "control plane", exception); }

  std::string NameOf(const Peer& peer) const {
    std::string name = StrCat("node ", peer.description.rank);
    if (peer.description.pid > 0) StrAppend(&name, " (pid ", peer.description.pid);
    if (peer.description.pid > 0 && !peer.description.host.empty()) {
      StrAppend(&name, " on ", peer.description.host);
    }
    if (peer.description.pid > 0) StrAppend(&name, ")");
    return name;
  }

  // --- Joining ---------------------------------------------------------------------------------

  kj::Promise<void> Listen() {
    auto paf = kj::newPromiseAndFulfiller<void>();
    joined_fulfiller_ = kj::mv(paf.fulfiller);
    all_joined_ = kj::heap(paf.promise.fork());
    tasks_ = kj::heap<kj::TaskSet>(*this);
    const absl::Duration silence = options_.heartbeat_timeout + absl::Seconds(1);
    port_ = kj::heap<control::ControlPort>(loop_->timer(), key_,
                                           static_cast<uint32_t>(std::clamp<int64_t>(
                                               absl::ToInt64Milliseconds(silence), 1, 3'600'000)),
                                           *this);
    for (uint32_t rank = 0; rank < options_.num_processes; ++rank) {
      peers_.push_back(std::make_unique<Peer>());
      peers_.back()->description.rank = rank;
    }
    return loop_->io()
        .provider->getNetwork()
        .parseAddress(options_.listen.c_str())
        .then([this](kj::Own<kj::NetworkAddress> address) {
          kj::Own<kj::ConnectionReceiver> receiver = address->listen();
          has_listened_ = true;
          address_ = options_.listen;
          if (!IsUnixAddress(address_)) {
            // Port 0 has become another, and a wildcard is no address to connect to.
            const std::string host = SplitAddress(address_).host;
            address_ =
                JoinAddress(IsWildcard(host) ? ReachableAddress() : host, receiver->getPort());
          }
          port_->Listen(kj::mv(receiver));
        })
        .catch_([this](kj::Exception&& exception) {
          kj::throwFatalException(control::ToException(absl::InvalidArgumentError(
              StrCat("cannot listen at ", options_.listen, ": ", control::SystemReason(exception),
                     "; choose an address of this host and a free port (port 0: any)"))));
        });
  }

  absl::StatusOr<control::Admission> Admit(uint64_t guest, control::NodeInfo::Reader info,
                                           control::Node::Client node) override {
    const int wanted = info.getRank();
    if (is_ending_) return absl::UnavailableError("the job is over");
    const auto free = std::find_if(peers_.begin(), peers_.end(), [wanted](const auto& peer) {
      return !peer->is_joined && !peer->is_lost &&
             (wanted == static_cast<int>(peer->description.rank) ||
              (wanted < 0 && !peer->child.has_value()));
    });
    if (free == peers_.end()) {
      return absl::ResourceExhaustedError(WhyNoRank(wanted));
    }
    Peer& peer = **free;
    peer.guest = guest;
    peer.is_joined = true;
    peer.description.pid = info.getPid();
    const auto host = info.getHost();
    peer.description.host.assign(host.begin(), std::min(host.size(), kMaxHostBytes));
    peer.description.num_cores = info.getNumCores();
    peer.description.host_cores = info.getHostCores();
    peer.description.memory_bytes = info.getMemoryBytes();
    const auto interface = info.getInterface();
    peer.description.interface.assign(interface.begin(), std::min(interface.size(), kMaxHostBytes));
    const DeviceRange devices =
        DevicesOfRank(peer.description.rank, options_.num_processes, options_.num_devices);
    peer.description.first_device = devices.first;
    peer.description.num_devices = devices.count;
    if (options_.on_join) options_.on_join(peer.description);
    peer.node = kj::mv(node);
    peer.heartbeat = Heartbeat(peer).eagerlyEvaluate([this, &peer](const kj::Exception& exception) {
      if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
        LoseConnection(peer);
      } else {
        Lose(peer, "answers with errors", 0);
      }
    });
    if (std::all_of(peers_.begin(), peers_.end(), [](const auto& p) { return p->is_joined; })) {
      joined_fulfiller_->fulfill();
    }
    return control::Admission{peer.description.rank, peer.description.first_device,
                              peer.description.num_devices};
  }

  // Why a node that asks for rank `wanted`, or for any with -1, cannot have it.
  std::string WhyNoRank(int wanted) const {
    if (wanted >= static_cast<int>(peers_.size())) {
      return StrCat("rank ", wanted, " is out of range: the job has ranks 0 to ",
                    peers_.size() - 1);
    }
    std::vector<std::string> free;
    for (const auto& peer : peers_) {
      if (!peer->is_joined && !peer->is_lost && !peer->child.has_value()) {
        free.push_back(StrCat(peer->description.rank));
      }
    }
    const std::string all_joined = StrCat("all ", peers_.size(), " nodes of the job have joined");
    if (wanted < 0) return all_joined;
    return StrCat("rank ", wanted, " is taken by ", NameOf(*peers_[wanted]), "; ",
                  free.empty() ? all_joined
                               : StrCat("ranks that are free: ", StrJoin(free, ", "),
                                        " (without --rank a node takes the first)"));
  }

  absl::Status StartNodes() {
    if (options_.node_command.empty()) return absl::OkStatus();
    const std::vector<std::vector<int>> cores =
        DealCores(static_cast<int>(options_.num_processes), options_.max_cores);
    for (uint32_t rank = 0; rank < options_.num_processes; ++rank) {
      ChildCommand command;
      command.arguments = options_.node_command;
      for (const std::string& argument :
           {std::string("--join"), address_, std::string("--rank"), StrCat(rank)}) {
        command.arguments.push_back(argument);
      }
      command.environment = {{"PENSTOCK_KEY", options_.key}};
      if (options_.pin) command.cores = cores[rank];
      ASSIGN_OR_RETURN(ChildProcess child, ChildProcess::Start(command));
      const auto started = std::make_shared<ChildProcess>(std::move(child));
      loop_->Post([this, rank, started] { Watch(*peers_[rank], std::move(*started)); });
    }
    return absl::OkStatus();
  }

  void Watch(Peer& peer, ChildProcess child) {
    peer.description.pid = child.pid();
    peer.description.host = HostName();
    peer.child = std::move(child);
    peer.exit_observer =
        kj::heap<kj::UnixEventPort::FdObserver>(loop_->io().unixEventPort, peer.child->exit_fd(),
                                                kj::UnixEventPort::FdObserver::OBSERVE_READ);
    peer.exit_watch = peer.exit_observer->whenBecomesReadable()
                          .then([this, &peer] {
                            const std::optional<int> status = peer.child->Reap();
                            if (!status.has_value()) return;
                            if (!peer.silence.empty() && ShellStatus(*status) == 128 + SIGKILL) {
                              Lose(peer, peer.silence, 0);
                            } else {
                              Lose(peer, DescribeWaitStatus(*status), ShellStatus(*status));
                            }
                          })
                          .eagerlyEvaluate([](const kj::Exception&) {});
    peer.output = loop_->io().lowLevelProvider->wrapInputFd(
        peer.child->TakeOutputFd(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
    peer.buffer = kj::heapArray<char>(4096);
    peer.lines.emplace([this, &peer](std::string_view line) {
      if (options_.on_output) {
        options_.on_output(peer.description.rank, peer.description.host, line);
      }
    });
    peer.has_output_ended = false;
    peer.output_pump = PumpOutput(peer).eagerlyEvaluate(
        [&peer](const kj::Exception&) { peer.has_output_ended = true; });
  }

  kj::Promise<void> PumpOutput(Peer& peer) {
    return peer.output->tryRead(peer.buffer.begin(), 1, peer.buffer.size())
        .then([this, &peer](size_t num_bytes) -> kj::Promise<void> {
          peer.lines->Add({peer.buffer.begin(), num_bytes});
          if (num_bytes > 0) return PumpOutput(peer);
          peer.lines->End();
          peer.has_output_ended = true;
          return kj::READY_NOW;
        });
  }

  // --- Loss --------------------------------------------------------------------------------------

  kj::Promise<void> Heartbeat(Peer& peer) {
    return loop_->timer()
        .afterDelay(ToKj(options_.heartbeat_interval))
        .then([this, &peer]() -> kj::Promise<void> {
          KJ_IF_MAYBE (node, peer.node) {
            return node->pingRequest()
                .send()
                .ignoreResult()
                .then([] { return true; })
                .exclusiveJoin(
                    loop_->timer()
                        .afterDelay(ToKj(options_.heartbeat_timeout))
                        .then([this] { return loop_->timer().afterDelay(control::kSecondLook); })
                        .then([] { return false; }))
                .then([this, &peer](bool has_answered) -> kj::Promise<void> {
                  if (has_answered) return Heartbeat(peer);
                  LoseSilent(peer);
                  return kj::READY_NOW;
                });
          }
          return kj::READY_NOW;
        });
  }

  // It does not answer. One that was started here may be dead already and about to say so (a large
  // core is being written): its status goes before its silence.
  void LoseSilent(Peer& peer) {
    const std::string cause =
        StrCat("has not answered for ", absl::FormatDuration(options_.heartbeat_timeout));
    if (!peer.child.has_value()) {
      Lose(peer, cause, 0);
      return;
    }
    peer.silence = cause;
    peer.child->Kill();
    tasks_->add(loop_->timer().afterDelay(kExitGrace).then([this, &peer, cause] {
      if (!peer.is_lost) Lose(peer, cause, 0);
    }));
  }

  void OnMemberGone(uint32_t rank) override { LoseConnection(*peers_[rank]); }

  // Its connection has ended; of a process that was started here the status says more.
  void LoseConnection(Peer& peer) {
    if (peer.is_lost || is_ending_) return;
    if (!peer.child.has_value()) {
      Lose(peer, "has closed its connection", 0);
      return;
    }
    tasks_->add(loop_->timer().afterDelay(kExitGrace).then([this, &peer] {
      if (!peer.is_lost) Lose(peer, "has closed its connection", 0);
    }));
  }

  void Lose(Peer& peer, std::string_view cause, int shell_status) {
    if (peer.is_lost) return;
    peer.is_lost = true;
    peer.node = nullptr;
    if (is_ending_) return;
    is_ending_ = true;
    std::string text = StrCat(NameOf(peer), " ", cause);
    if (session_ != nullptr && session_->last_step() >= 0) {
      const int64_t oldest = session_->oldest_step();
      StrAppend(&text, oldest < 0 ? " after " : " in ",
                StepName(oldest < 0 ? session_->last_step() : oldest));
    } else {
      StrAppend(&text, peer.is_joined ? " while the job was loading" : " before it joined");
    }
    loss_ = absl::UnavailableError(text);
    if (shell_status > 0) loss_.SetPayload(kShellStatusPayload, absl::Cord(StrCat(shell_status)));
    if (!peer.is_joined || joined_fulfiller_->isWaiting()) {
      joined_fulfiller_->reject(control::ToException(loss_));
    }
    if (session_ != nullptr) session_->Fail(loss_);
    if (peer.child.has_value()) peer.child->Kill();
    TellToExit(text);
    tasks_->add(WaitForExits(loop_->timer().now() + ToKj(options_.stop_timeout)));
  }

  // `failure` is empty where the job ends in order. Nodes that were started here are not told of
  // it: this process tells their user.
  void TellToExit(std::string_view failure) {
    for (const auto& peer : peers_) {
      if (peer->is_lost) continue;
      KJ_IF_MAYBE (node, peer->node) {
        auto call = node->exitRequest();
        if (!peer->child.has_value()) call.setFailure(std::string(failure).c_str());
        tasks_->add(call.send().ignoreResult().catch_([](const kj::Exception&) {}));
      } else if (peer->child.has_value()) {
        peer->child->Kill();  // it has not joined yet: there is no other way to tell
      }
    }
  }

  // Until all have left; those that have not by `deadline` are killed or forgotten.
  kj::Promise<void> WaitForExits(kj::TimePoint deadline) {
    bool are_gone = true;
    for (const auto& peer : peers_) {
      const bool is_running = peer->child.has_value() && !peer->child->Reap().has_value();
      const bool is_connected = port_->IsConnected(peer->guest);
      are_gone &= !is_running && !is_connected && (is_running || peer->has_output_ended);
    }
    if (are_gone) return kj::READY_NOW;
    if (loop_->timer().now() >= deadline) {
      for (const auto& peer : peers_) {
        if (peer->child.has_value()) peer->child->Kill();
        port_->Close(peer->guest);
      }
      return kj::READY_NOW;
    }
    return loop_->timer().afterDelay(kPollInterval).then([this, deadline] {
      return WaitForExits(deadline);
    });
  }

  ClusterOptions options_;
  std::string key_;  // 32 bytes
  std::vector<NodeDescription> nodes_;
  std::mutex stop_mutex_;

  // On the loop's thread.
  std::string address_;
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<control::ControlPort> port_;
  kj::Own<kj::PromiseFulfiller<void>> joined_fulfiller_;
  kj::Own<kj::ForkedPromise<void>> all_joined_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank
  bool is_ending_ = false;
  bool has_listened_ = false;
  absl::Status loss_;  // the first
  std::shared_ptr<ClusterSession> session_;
  uint32_t generation_ = 0;

  std::unique_ptr<ControlLoop> loop_;  // last: its thread uses all of the above
};

class Cluster::Impl::ClusterEngine final : public Engine {
 public:
  ClusterEngine(Impl& cluster, const planner::Plan& plan, EngineObserver* observer,
                absl::Duration timeout)
      : cluster_(cluster),
        timeout_(timeout),
        session_(std::make_shared<ClusterSession>(
            plan, static_cast<uint32_t>(cluster.peers_.size()), observer)) {}
  ~ClusterEngine() override { Stop(); }

  absl::Status Open(const SessionOptions& options) {
    const planner::Plan& plan = session_->plan();
    const auto num_processes = static_cast<uint32_t>(cluster_.peers_.size());
    if (plan.devices.size() < num_processes) {
      return absl::InvalidArgumentError(
          StrCat("a plan for ", Counted(plan.devices.size(), "device"), " cannot run in ",
                 Counted(num_processes, "process", "es")));
    }
    RETURN_IF_ERROR(CheckFitsNodes(options.max_memory_bytes));
    std::vector<std::shared_ptr<const std::string>> slices;
    uint64_t plan_bytes = 0;
    for (uint32_t rank = 0; rank < num_processes; ++rank) {
      const DeviceRange devices = session_->DevicesOf(rank);
      ASSIGN_OR_RETURN(std::string slice,
                       planner::PlanToBytes(SlicePlan(plan, devices.first, devices.count)));
      plan_bytes += slice.size();
      slices.push_back(std::make_shared<const std::string>(std::move(slice)));
    }
    trace_capacity_ = options.trace ? options.trace_capacity : 0;
    const auto addresses = std::make_shared<std::vector<std::string>>(num_processes);
    const auto open = [&](Peer& peer, control::Node::Client& node) {
      const uint32_t rank = peer.description.rank;
      auto call = node.openRequest();
      auto spec = call.initSession();
      spec.setGeneration(session_->generation());
      BulkSource slice;
      slice.Add(slices[rank]->size(),
                [bytes = slices[rank]](uint64_t offset, size_t size, std::byte* to) {
                  memcpy(to, bytes->data() + offset, size);
                });
      spec.setPlanBytes(slice.num_bytes());
      auto offered = control::Offer(std::move(slice), spec.initPlan());
      spec.setFirstDevice(session_->DevicesOf(rank).first);
      spec.setNumDevices(session_->DevicesOf(rank).count);
      spec.setThreadsPerDevice(static_cast<uint32_t>(std::max(options.threads_per_device, 1)));
      spec.setSeed(options.seed);
      spec.setTimeoutMs(static_cast<uint64_t>(absl::ToInt64Milliseconds(options.timeout)));
      spec.setTraceCapacity(trace_capacity_);
      spec.setMaxMemoryBytes(options.max_memory_bytes);
      spec.setCheckResults(static_cast<uint8_t>(options.check_results));
      spec.setFirstStep(options.first_step);
      call.setObserver(session_->MakeObserver(rank));
      return call.send().attach(std::move(offered)).then([addresses, rank](auto&& response) {
        const auto address = response.getAddress();
        if (address.size() > kMaxAddressBytes) {
          kj::throwFatalException(control::ToException(absl::InternalError(
              StrCat("node ", rank, " has sent an address of ", address.size(), " bytes"))));
        }
        (*addresses)[rank] = AsText(address);
      });
    };
    RETURN_IF_ERROR(Await(
        [&]() -> kj::Promise<void> {
          if (!cluster_.loss_.ok()) return control::ToException(cluster_.loss_);
          if (cluster_.session_ != nullptr) {
            return control::ToException(
                absl::FailedPreconditionError("another session runs on the cluster"));
          }
          cluster_.session_ = session_;
          session_->Begin({cluster_.loop_->timer(), *cluster_.tasks_,
                           [&cluster = cluster_](uint32_t rank) {
                             return cluster.NameOf(*cluster.peers_[rank]);
                           },
                           [&cluster = cluster_](uint32_t rank) {
                             return kj::Maybe<control::Node::Client>(cluster.peers_[rank]->node);
                           }},
                          ++cluster_.generation_);
          return kj::READY_NOW;
        },
        "the start of the session"));
    RETURN_IF_ERROR(
        CallAll(open, "the loading of the plan", control::BoundOf(timeout_, plan_bytes)));
    return CallAll(
        [&](Peer&, control::Node::Client& node) {
          auto call = node.connectRequest();
          call.setGeneration(session_->generation());
          auto processes = call.initProcesses(num_processes);
          for (uint32_t rank = 0; rank < num_processes; ++rank) {
            processes[rank].setFirstDevice(session_->DevicesOf(rank).first);
            processes[rank].setAddress(
                AsData((*addresses)[rank].data(), (*addresses)[rank].size()));
          }
          return call.send().ignoreResult();
        },
        "the loading of the devices");
  }

  void Submit(int64_t step, const std::shared_ptr<StepBuffers>& buffers) override {
    cluster_.loop_->Post([this_cluster = &cluster_, session = session_, step, buffers] {
      Impl& cluster = *this_cluster;
      if (session->is_over() || !cluster.loss_.ok()) return;
      session->Submit(step, buffers);
      for (const auto& peer : cluster.peers_) {
        KJ_IF_MAYBE (node, peer->node) {
          auto call = node->submitRequest();
          call.setGeneration(session->generation());
          call.setStep(step);
          BulkSource feeds;
          for (const Tensor& feed : buffers->feeds) {
            feeds.Add(feed.num_bytes(), [feed](uint64_t offset, size_t size, std::byte* bytes) {
              memcpy(bytes, static_cast<const std::byte*>(feed.data()) + offset, size);
            });
          }
          auto offered = control::Offer(std::move(feeds), call.initFeeds());
          const uint32_t rank = peer->description.rank;
          cluster.tasks_->add(
              session->UntilEnd(call.send().ignoreResult().attach(std::move(offered)))
                  .catch_([session, rank](const kj::Exception& exception) {
                    session->OnFailure(rank, control::FromException(exception));
                  }));
        }
      }
    });
  }

  std::vector<std::string> Describe(absl::Duration timeout) override {
    const auto lines = std::make_shared<std::vector<std::string>>();
    const absl::Status status = CallAll(
        [&](Peer& peer, control::Node::Client& node) {
          auto call = node.describeRequest();
          call.setGeneration(session_->generation());
          call.setTimeoutMs(static_cast<uint32_t>(absl::ToInt64Milliseconds(timeout)));
          const std::string late = StrCat(cluster_.NameOf(peer), ": does not answer");
          return call.send()
              .then([lines](auto&& response) {
                for (const auto line : response.getLines()) {
                  if (lines->size() >= kMaxDescribeLines) break;
                  lines->emplace_back(line.begin(), std::min(line.size(), control::kMaxTextBytes));
                }
              })
              .exclusiveJoin(cluster_.loop_->timer()
                                 .afterDelay(ToKj(timeout + absl::Seconds(1)))
                                 .then([lines, late] { lines->push_back(late); }));
        },
        "the description of the devices", timeout + absl::Seconds(2));
    if (!status.ok()) lines->emplace_back(ToStd(status.message()));
    return *lines;
  }

  // Each tile once, from the first process that has it.
  absl::Status ReadState(const planner::StatePlan& state, Tensor* value) override {
    uint64_t num_bytes = 0;
    const auto num_devices = static_cast<uint32_t>(session_->plan().devices.size());
    const auto num_processes = static_cast<uint32_t>(cluster_.peers_.size());
    std::vector<std::vector<uint32_t>> placements(num_processes);  // of each process
    for (const StateTile& tile : StateTiles(state, 0, num_devices)) {
      uint32_t rank = 0;
      while (!session_->DevicesOf(rank).Has(state.placements[tile[0]].device)) ++rank;
      placements[rank].push_back(tile[0]);
      num_bytes += state.placements[tile[0]].tile.num_bytes();
    }
    return CallAll(
        [&](Peer& peer, control::Node::Client& node) {
          const auto reading = std::make_shared<StateReading>(
              StateReading{node, state, *value, std::move(placements[peer.description.rank])});
          return ReadTiles(reading, 0);
        },
        StrCat("reading the state '", state.name, "'"), control::BoundOf(timeout_, num_bytes));
  }

  absl::Status WriteState(const planner::StatePlan& state, const Tensor& value) override {
    const uint64_t most_bytes = cluster_.peers_.size() * value.num_bytes();
    return CallAll(
        [&](Peer& peer, control::Node::Client& node) {
          const DeviceRange devices = session_->DevicesOf(peer.description.rank);
          BulkSource source;
          for (const StateTile& placements : StateTiles(state, devices.first, devices.count)) {
            const graph::TileDesc& tile = state.placements[placements[0]].tile;
            source.Add(tile.num_bytes(), [copy = TileCopy(tile), value](
                                             uint64_t offset, size_t size, std::byte* bytes) {
              copy.RangeFromGlobal(value.data(), 0, static_cast<int64_t>(offset),
                                   static_cast<int64_t>(size), bytes);
            });
          }
          auto call = node.writeStateRequest();
          call.setGeneration(session_->generation());
          call.setState(IndexOf(state));
          auto offered = control::Offer(std::move(source), call.initTiles());
          return call.send().ignoreResult().attach(std::move(offered));
        },
        StrCat("writing the state '", state.name, "'"), control::BoundOf(timeout_, most_bytes));
  }

  absl::StatusOr<std::vector<TraceEvent>> TakeTrace() override {
    if (is_stopped_) return absl::FailedPreconditionError("the session was stopped");
    const auto events = std::make_shared<std::vector<TraceEvent>>();
    RETURN_IF_ERROR(CallAll(
        [&](Peer& peer, control::Node::Client& node) {
          const uint64_t max_events =
              session_->DevicesOf(peer.description.rank).count * trace_capacity_;
          return TakeEvents(node, max_events, events);
        },
        "reading the trace"));
    return *std::move(events);
  }

  void Stop() override {
    if (is_stopped_) return;
    is_stopped_ = true;
    // Whether or not the nodes answer, the session is over for this side.
    (void)cluster_.loop_->Await(
        [&]() -> kj::Promise<void> {
          session_->End();
          if (cluster_.session_ == session_) cluster_.session_ = nullptr;
          if (!cluster_.loss_.ok()) return kj::READY_NOW;
          return ForAll([&](Peer&, control::Node::Client& node) {
            auto call = node.closeRequest();
            call.setGeneration(session_->generation());
            return call.send().ignoreResult();
          });
        },
        std::min(cluster_.options_.stop_timeout, kCloseTimeout), "the end of the session");
  }

 private:
  // The processes of a host share its memory; a limit that was given is for all of them.
  absl::Status CheckFitsNodes(uint64_t given_limit) const {
    const planner::Plan& plan = session_->plan();
    std::map<std::string, uint64_t> used;
    for (const NodeDescription& node : cluster_.nodes_) {
      const DeviceRange devices = session_->DevicesOf(node.rank);
      RETURN_IF_ERROR(CheckFits(plan, devices.first, devices.count,
                                given_limit > 0 ? given_limit : node.memory_bytes,
                                &used[given_limit > 0 ? "" : node.host]));
    }
    return absl::OkStatus();
  }

  using CallNode = std::function<kj::Promise<void>(Peer&, control::Node::Client&)>;

  uint32_t IndexOf(const planner::StatePlan& state) const {
    return static_cast<uint32_t>(&state - session_->plan().states.data());
  }

  struct StateReading {
    control::Node::Client node;
    const planner::StatePlan& state;
    Tensor value;
    const std::vector<uint32_t> placements;
  };

  // From the one at `next` on, one after the other.
  kj::Promise<void> ReadTiles(const std::shared_ptr<StateReading>& reading, size_t next) {
    if (next == reading->placements.size()) return kj::READY_NOW;
    const uint32_t placement = reading->placements[next];
    const graph::TileDesc& tile = reading->state.placements[placement].tile;
    BulkTarget target;
    target.Add(tile.num_bytes(), [copy = TileCopy(tile), reading](uint64_t offset, size_t size,
                                                                  const std::byte* bytes) {
      copy.RangeToGlobal(bytes, 0, static_cast<int64_t>(offset), static_cast<int64_t>(size),
                         reading->value.data());
    });
    return control::ReadPieces(
               [this, reading, placement](uint64_t offset, uint32_t size) {
                 auto call = reading->node.readStateRequest();
                 call.setGeneration(session_->generation());
                 call.setState(IndexOf(reading->state));
                 call.setPlacement(placement);
                 call.setOffset(offset);
                 call.setSize(size);
                 return call.send();
               },
               std::move(target))
        .then([this, reading, next] { return ReadTiles(reading, next + 1); });
  }

  // At most `max_events` events, until there are no more.
  kj::Promise<void> TakeEvents(control::Node::Client node, uint64_t max_events,
                               const std::shared_ptr<std::vector<TraceEvent>>& events) {
    auto call = node.takeTraceRequest();
    call.setGeneration(session_->generation());
    return call.send().then([this, node = kj::mv(node), max_events,
                             events](auto&& response) mutable -> kj::Promise<void> {
      const planner::Plan& plan = session_->plan();
      const auto received = response.getEvents();
      const uint64_t count = std::min<uint64_t>(received.size(), max_events);
      for (uint64_t i = 0; i < count; ++i) {
        const auto event = received[static_cast<unsigned>(i)];
        if (event.getDevice() >= plan.devices.size()) continue;
        const planner::DevicePlan& device = plan.devices[event.getDevice()];
        const bool is_phase = event.getActor() == planner::kNone;
        if (event.getPhase() >= device.phases.size()) continue;
        if (!is_phase && event.getActor() >= device.actors.size()) continue;
        events->push_back({event.getDevice(), event.getActor(), event.getPhase(),
                           event.getMicrobatch(), event.getStep(), event.getBeginNs(),
                           event.getEndNs()});
      }
      if (!response.getHasMore() || count == 0) return kj::READY_NOW;
      return TakeEvents(kj::mv(node), max_events - count, events);
    });
  }

  // Errors name the node.
  kj::Promise<void> ForAll(const CallNode& call) {
    auto calls = kj::heapArrayBuilder<kj::Promise<void>>(cluster_.peers_.size());
    for (const auto& peer : cluster_.peers_) {
      KJ_IF_MAYBE (node, peer->node) {
        calls.add(call(*peer, *node).catch_([this, &peer = *peer](const kj::Exception& exception) {
          const absl::Status status = control::FromException(exception);
          kj::throwFatalException(control::ToException(absl::Status(
              status.code(), StrCat(cluster_.NameOf(peer), ": ", ToStd(status.message())))));
        }));
      } else {
        calls.add(control::ToException(
            absl::UnavailableError(StrCat(cluster_.NameOf(*peer), " is gone"))));
      }
    }
    return kj::joinPromises(calls.finish());
  }

  absl::Status Await(std::function<kj::Promise<void>()> begin, std::string_view what) {
    return cluster_.loop_->Await(std::move(begin), timeout_, what);
  }

  // Calls all nodes at once and waits. The loss of a node goes before the errors that it causes.
  absl::Status CallAll(const CallNode& call, std::string_view what) {
    return CallAll(call, what, timeout_);
  }
  absl::Status CallAll(const CallNode& call, std::string_view what, absl::Duration timeout) {
    absl::Status status = cluster_.loop_->Await([&] { return ForAll(call); }, timeout, what);
    if (!absl::IsUnavailable(status)) return status;
    (void)cluster_.loop_->Await(
        [&] {
          return AwaitLoss(cluster_.loop_->timer().now() + ClusterSession::kPeerGrace, &status);
        },
        absl::Seconds(5), "the cause");
    return status;
  }

  kj::Promise<void> AwaitLoss(kj::TimePoint deadline, absl::Status* status) {
    if (!cluster_.loss_.ok()) {
      *status = cluster_.loss_;
      return kj::READY_NOW;
    }
    if (cluster_.loop_->timer().now() >= deadline) return kj::READY_NOW;
    return cluster_.loop_->timer().afterDelay(kPollInterval).then([this, deadline, status] {
      return AwaitLoss(deadline, status);
    });
  }

  Impl& cluster_;
  const absl::Duration timeout_;
  const std::shared_ptr<ClusterSession> session_;
  uint64_t trace_capacity_ = 0;  // events a device
  bool is_stopped_ = false;
};

absl::StatusOr<std::unique_ptr<Engine>> Cluster::Impl::StartEngine(const planner::Plan& plan,
                                                                   EngineObserver* observer,
                                                                   const SessionOptions& options) {
  auto engine = std::make_unique<ClusterEngine>(*this, plan, observer, options.timeout);
  RETURN_IF_ERROR(engine->Open(options));
  return engine;
}

Cluster::Cluster(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Cluster::~Cluster() = default;

absl::StatusOr<std::unique_ptr<Cluster>> Cluster::Start(const ClusterOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<Cluster>(new Cluster(std::move(impl)));
}

const std::vector<NodeDescription>& Cluster::nodes() const { return impl_->nodes(); }

EngineFactory Cluster::engine_factory() {
  return
      [this](const planner::Plan& plan, EngineObserver* observer, const SessionOptions& options) {
        return impl_->StartEngine(plan, observer, options);
      };
}

void Cluster::Stop() { impl_->Stop(); }
void Cluster::Kill() { impl_->Kill(); }

}  // namespace penstock::actors
