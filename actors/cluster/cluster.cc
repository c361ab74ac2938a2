#include "actors/cluster/cluster.h"

#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/strings/cord.h"
#include <kj/async-unix.h>
#include <kj/debug.h>

#include "actors/cluster/child_process.h"
#include "actors/cluster/control.capnp.h"
#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/fetch_tiles.h"
#include "actors/cluster/job_key.h"
#include "actors/tile_copy.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "planner/plan_io.h"

namespace penstock::actors {
namespace {

using control::ControlLoop;

// How long a loss waits for the process's status, and an error about a peer for the peer's loss.
constexpr kj::Duration kExitGrace = 500 * kj::MILLISECONDS;
constexpr kj::Duration kPeerGrace = 1500 * kj::MILLISECONDS;
constexpr kj::Duration kPollInterval = 10 * kj::MILLISECONDS;
// After a heartbeat is overdue: a coordinator that was stopped itself first looks at what has come.
constexpr kj::Duration kSecondLook = 200 * kj::MILLISECONDS;
// For the orderly end of a session in its nodes; the end of the job does not wait for more.
constexpr absl::Duration kCloseTimeout = absl::Seconds(1);
// The longest line that is passed on in one piece.
constexpr size_t kMaxLineBytes = 16 << 10;

kj::Duration ToKj(absl::Duration duration) {
  return std::clamp<int64_t>(absl::ToInt64Milliseconds(duration), 0, int64_t{1} << 40) *
         kj::MILLISECONDS;
}

capnp::Data::Reader AsData(const void* data, size_t num_bytes) {
  return {static_cast<const kj::byte*>(data), num_bytes};
}

absl::Status GetStatus(control::Status::Reader reader) {
  const uint32_t code = reader.getCode();
  return absl::Status(code > 0 && code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated)
                          ? static_cast<absl::StatusCode>(code)
                          : absl::StatusCode::kUnknown,
                      reader.getMessage().cStr());
}

uint32_t FirstDevice(uint32_t process, uint32_t num_processes, size_t num_devices) {
  return static_cast<uint32_t>(uint64_t{process} * num_devices / num_processes);
}

// One session over the cluster. On the loop's thread but for `plan`.
struct ClusterSession {
  ClusterSession(const planner::Plan& session_plan, EngineObserver* session_observer)
      : plan(session_plan), observer(session_observer), fetch_tiles(session_plan) {}

  const planner::Plan& plan;
  EngineObserver* observer;  // null once the session is over
  const FetchTiles fetch_tiles;
  uint32_t generation = 0;
  int64_t last_step = -1;  // submitted
  struct Step {
    std::shared_ptr<StepBuffers> buffers;
    std::vector<bool> has_reported;  // a process each
  };
  std::map<int64_t, Step> steps;            // under way
  std::vector<std::function<void()>> held;  // what came since a node's error about a peer
  bool is_holding = false;
};

}  // namespace

class Cluster::Impl : public kj::TaskSet::ErrorHandler {
 public:
  explicit Impl(const ClusterOptions& options) : options_(options) {}
  ~Impl() { Stop(); }

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
          TellToExit("the job is over");
          return WaitForExits(loop_->timer().now() + ToKj(options_.stop_timeout));
        },
        options_.stop_timeout + absl::Seconds(5), "the end of the nodes");
    (void)loop_->Await(
        [this]() -> kj::Promise<void> {
          accepting_ = nullptr;
          receiver_ = nullptr;
          tasks_ = nullptr;
          guests_.clear();
          peers_.clear();  // kills what is left of those that were started
          all_joined_ = nullptr;
          joined_fulfiller_ = nullptr;
          return kj::READY_NOW;
        },
        options_.stop_timeout + absl::Seconds(5), "the end of the cluster");
    loop_ = nullptr;
    constexpr std::string_view kUnix = "unix:";
    if (options_.listen.substr(0, kUnix.size()) == kUnix) {
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
          guests_.clear();
          if (loss_.ok()) loss_ = absl::CancelledError("the job was ended");
          if (session_ != nullptr && session_->observer != nullptr) {
            session_->observer->OnFailure(loss_);
          }
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
  class CoordinatorServer;
  class ObserverServer;

  struct Peer {
    NodeDescription description;
    bool is_joined = false;
    bool is_lost = false;
    uint64_t guest = 0;
    kj::Maybe<control::Node::Client> node;
    std::optional<ChildProcess> child;
    kj::Own<kj::UnixEventPort::FdObserver> exit_observer;
    kj::Promise<void> exit_watch = nullptr;
    kj::Promise<void> heartbeat = nullptr;
    // What it prints.
    kj::Own<kj::AsyncInputStream> output;
    kj::Promise<void> output_pump = nullptr;
    bool has_output_ended = true;
    std::string line;
    kj::Array<char> buffer;
  };

  // A connection that has said hello.
  struct Guest {
    kj::Own<control::RpcConnection> rpc;
    kj::Promise<void> watch = nullptr;
    int rank = -1;
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
    for (uint32_t rank = 0; rank < options_.num_processes; ++rank) {
      peers_.push_back(std::make_unique<Peer>());
      peers_.back()->description.rank = rank;
    }
    return loop_->io()
        .provider->getNetwork()
        .parseAddress(options_.listen.c_str())
        .then([this](kj::Own<kj::NetworkAddress> address) {
          receiver_ = address->listen();
          address_ = options_.listen;
          // Port 0 has become another.
          const size_t colon = address_.rfind(":0");
          if (address_.substr(0, 4) != "unix" && colon != std::string::npos &&
              colon + 2 == address_.size()) {
            address_ = StrCat(address_.substr(0, colon), ":", receiver_->getPort());
          }
          accepting_ = Accept().eagerlyEvaluate(
              [](const kj::Exception& exception) { KJ_LOG(ERROR, "accepting", exception); });
        });
  }

  kj::Promise<void> Accept() {
    return receiver_->accept().then([this](kj::Own<kj::AsyncIoStream> stream) {
      if (num_strangers_ < control::kMaxStrangers) Welcome(kj::mv(stream));
      return Accept();
    });
  }

  void Welcome(kj::Own<kj::AsyncIoStream> stream) {
    ++num_strangers_;
    auto& peer_stream = *stream;
    tasks_->add(
        control::ReceiveHello(peer_stream, key_)
            .exclusiveJoin(loop_->timer().afterDelay(control::kHelloSeconds * kj::SECONDS).then([] {
              return false;
            }))
            .then([this, stream = kj::mv(stream)](bool may_enter) mutable {
              if (may_enter) Serve(kj::mv(stream));
            })
            .catch_([](const kj::Exception&) {})  // it hung up
            .attach(kj::defer([this] { --num_strangers_; })));
  }

  void Serve(kj::Own<kj::AsyncIoStream> stream);

  absl::StatusOr<uint32_t> Admit(uint64_t guest, control::NodeInfo::Reader info,
                                 control::Node::Client node) {
    const int wanted = info.getRank();
    if (is_ending_) return absl::UnavailableError("the job is over");
    const auto free = std::find_if(peers_.begin(), peers_.end(), [wanted](const auto& peer) {
      return !peer->is_joined && !peer->is_lost &&
             (wanted == static_cast<int>(peer->description.rank) ||
              (wanted < 0 && !peer->child.has_value()));
    });
    if (free == peers_.end()) {
      return absl::ResourceExhaustedError(
          wanted < 0 ? StrCat("all ", peers_.size(), " nodes of the job have joined")
                     : StrCat("the job has no free node ", wanted));
    }
    Peer& peer = **free;
    if (guests_[guest]->rank >= 0) return absl::FailedPreconditionError("joined before");
    guests_[guest]->rank = static_cast<int>(peer.description.rank);
    peer.guest = guest;
    peer.is_joined = true;
    peer.description.pid = info.getPid();
    peer.description.host = info.getHost().cStr();
    peer.description.num_cores = info.getNumCores();
    peer.description.memory_bytes = info.getMemoryBytes();
    peer.node = kj::mv(node);
    peer.heartbeat = Heartbeat(peer).eagerlyEvaluate([](const kj::Exception&) {});
    if (std::all_of(peers_.begin(), peers_.end(), [](const auto& p) { return p->is_joined; })) {
      joined_fulfiller_->fulfill();
    }
    return peer.description.rank;
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
                            if (const std::optional<int> status = peer.child->Reap()) {
                              Lose(peer, DescribeWaitStatus(*status), ShellStatus(*status));
                            }
                          })
                          .eagerlyEvaluate([](const kj::Exception&) {});
    peer.output = loop_->io().lowLevelProvider->wrapInputFd(
        peer.child->TakeOutputFd(), kj::LowLevelAsyncIoProvider::TAKE_OWNERSHIP);
    peer.buffer = kj::heapArray<char>(4096);
    peer.has_output_ended = false;
    peer.output_pump = PumpOutput(peer).eagerlyEvaluate(
        [&peer](const kj::Exception&) { peer.has_output_ended = true; });
  }

  kj::Promise<void> PumpOutput(Peer& peer) {
    return peer.output->tryRead(peer.buffer.begin(), 1, peer.buffer.size())
        .then([this, &peer](size_t num_bytes) -> kj::Promise<void> {
          for (size_t i = 0; i < num_bytes; ++i) {
            const char c = peer.buffer[i];
            if (c != '\n') peer.line.push_back(c);
            if (c == '\n' || peer.line.size() >= kMaxLineBytes) PrintLine(peer);
          }
          if (num_bytes > 0) return PumpOutput(peer);
          if (!peer.line.empty()) PrintLine(peer);
          peer.has_output_ended = true;
          return kj::READY_NOW;
        });
  }

  void PrintLine(Peer& peer) {
    if (options_.on_output) {
      options_.on_output(peer.description.rank, peer.description.host, peer.line);
    }
    peer.line.clear();
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
                .exclusiveJoin(loop_->timer()
                                   .afterDelay(ToKj(options_.heartbeat_timeout))
                                   .then([this] { return loop_->timer().afterDelay(kSecondLook); })
                                   .then([] { return false; }))
                .then([this, &peer](bool has_answered) -> kj::Promise<void> {
                  if (has_answered) return Heartbeat(peer);
                  Lose(peer,
                       StrCat("has not answered for ",
                              absl::FormatDuration(options_.heartbeat_timeout)),
                       0);
                  return kj::READY_NOW;
                });
          }
          return kj::READY_NOW;
        });
  }

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
    if (session_ != nullptr && session_->last_step >= 0) {
      const int64_t step =
          session_->steps.empty() ? session_->last_step : session_->steps.begin()->first;
      StrAppend(&text, session_->steps.empty() ? " after step " : " in step ", step);
    } else {
      StrAppend(&text, peer.is_joined ? " while the job was loading" : " before it joined");
    }
    loss_ = absl::UnavailableError(text);
    if (shell_status > 0) loss_.SetPayload(kShellStatusPayload, absl::Cord(StrCat(shell_status)));
    if (!peer.is_joined || joined_fulfiller_->isWaiting()) {
      joined_fulfiller_->reject(control::ToException(loss_));
    }
    if (session_ != nullptr) {
      session_->held.clear();
      if (session_->observer != nullptr) session_->observer->OnFailure(loss_);
    }
    if (peer.child.has_value()) peer.child->Kill();
    TellToExit(text);
    tasks_->add(WaitForExits(loop_->timer().now() + ToKj(options_.stop_timeout)));
  }

  void TellToExit(std::string_view reason) {
    for (const auto& peer : peers_) {
      if (peer->is_lost) continue;
      KJ_IF_MAYBE (node, peer->node) {
        auto call = node->exitRequest();
        call.setReason(std::string(reason).c_str());
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
      const bool is_connected = guests_.contains(peer->guest);
      are_gone &= !is_running && !is_connected && (is_running || peer->has_output_ended);
    }
    if (are_gone) return kj::READY_NOW;
    if (loop_->timer().now() >= deadline) {
      for (const auto& peer : peers_) {
        if (peer->child.has_value()) peer->child->Kill();
        guests_.erase(peer->guest);
      }
      return kj::READY_NOW;
    }
    return loop_->timer().afterDelay(kPollInterval).then([this, deadline] {
      return WaitForExits(deadline);
    });
  }

  // --- Sessions ----------------------------------------------------------------------------------

  // On the loop: passes `report` on, now or after the errors that are held.
  void Report(const std::shared_ptr<ClusterSession>& session, std::function<void()> report) {
    if (session->observer == nullptr || !loss_.ok()) return;
    if (session->is_holding) {
      session->held.push_back(std::move(report));
    } else {
      report();
    }
  }

  // An error about a peer: the loss of that peer, if it is one, comes first.
  void Hold(const std::shared_ptr<ClusterSession>& session) {
    if (session->is_holding) return;
    session->is_holding = true;
    tasks_->add(loop_->timer().afterDelay(kPeerGrace).then([this, session] {
      session->is_holding = false;
      if (session->observer == nullptr || !loss_.ok()) return;
      for (const std::function<void()>& report : std::exchange(session->held, {})) report();
    }));
  }

  void OnError(const std::shared_ptr<ClusterSession>& session, uint32_t device, int64_t step,
               const absl::Status& status) {
    if (absl::IsUnavailable(status)) Hold(session);
    Report(session,
           [session, device, step, status] { session->observer->OnError(device, step, status); });
  }

  void OnFailure(const std::shared_ptr<ClusterSession>& session, uint32_t rank,
                 const absl::Status& status) {
    if (absl::IsUnavailable(status)) Hold(session);
    const absl::Status named(status.code(),
                             StrCat(NameOf(*peers_[rank]), ": ", ToStd(status.message())));
    Report(session, [session, named] { session->observer->OnFailure(named); });
  }

  ClusterOptions options_;
  std::string key_;  // 32 bytes
  std::vector<NodeDescription> nodes_;
  std::mutex stop_mutex_;

  // On the loop's thread.
  std::string address_;
  kj::Own<kj::ConnectionReceiver> receiver_;
  kj::Promise<void> accepting_ = nullptr;
  kj::Own<kj::TaskSet> tasks_;
  kj::Own<kj::PromiseFulfiller<void>> joined_fulfiller_;
  kj::Own<kj::ForkedPromise<void>> all_joined_;
  std::vector<std::unique_ptr<Peer>> peers_;  // by rank
  std::map<uint64_t, std::unique_ptr<Guest>> guests_;
  uint64_t next_guest_ = 1;
  int num_strangers_ = 0;
  bool is_ending_ = false;
  absl::Status loss_;  // the first
  std::shared_ptr<ClusterSession> session_;
  uint32_t generation_ = 0;

  std::unique_ptr<ControlLoop> loop_;  // last: its thread uses all of the above
};

class Cluster::Impl::CoordinatorServer final : public control::Coordinator::Server {
 public:
  CoordinatorServer(Impl& cluster, uint64_t guest) : cluster_(cluster), guest_(guest) {}

  kj::Promise<void> join(JoinContext context) override {
    const auto params = context.getParams();
    const absl::StatusOr<uint32_t> rank =
        cluster_.Admit(guest_, params.getInfo(), params.getNode());
    if (!rank.ok()) return control::ToException(rank.status());
    context.getResults().setRank(*rank);
    const absl::Duration silence = cluster_.options_.heartbeat_timeout + absl::Seconds(1);
    context.getResults().setSilenceMs(static_cast<uint32_t>(
        std::clamp<int64_t>(absl::ToInt64Milliseconds(silence), 1, 3'600'000)));
    return kj::READY_NOW;
  }

 private:
  Impl& cluster_;
  const uint64_t guest_;
};

void Cluster::Impl::Serve(kj::Own<kj::AsyncIoStream> stream) {
  const uint64_t id = next_guest_++;
  auto guest = std::make_unique<Guest>();
  guest->rpc = kj::heap<control::RpcConnection>(kj::mv(stream), capnp::rpc::twoparty::Side::SERVER,
                                                kj::heap<CoordinatorServer>(*this, id));
  const auto leave = [this, id] {
    const auto it = guests_.find(id);
    if (it == guests_.end()) return;
    const int rank = it->second->rank;
    // Not from inside of what it destroys.
    tasks_->add(kj::evalLater([this, id] { guests_.erase(id); }));
    if (rank >= 0) LoseConnection(*peers_[rank]);
  };
  guest->watch =
      guest->rpc->OnDisconnect().then(kj::cp(leave)).eagerlyEvaluate([leave](const kj::Exception&) {
        leave();
      });
  guests_[id] = std::move(guest);
}

// What a node tells of its session.
class Cluster::Impl::ObserverServer final : public control::Observer::Server {
 public:
  ObserverServer(Impl& cluster, std::shared_ptr<ClusterSession> session, uint32_t rank)
      : cluster_(cluster), session_(std::move(session)), rank_(rank) {}

  kj::Promise<void> stepDone(StepDoneContext context) override {
    const auto params = context.getParams();
    if (!IsCurrent(params.getGeneration())) return kj::READY_NOW;
    const int64_t step = params.getStep();
    const auto it = session_->steps.find(step);
    if (it == session_->steps.end() || it->second.has_reported[rank_]) {
      return Refuse(StrCat("a report of step ", step));
    }
    std::vector<DeviceStepReport> reports;
    for (const auto report : params.getReports()) {
      if (!IsOurs(report.getDevice())) {
        return Refuse(StrCat("a report of device ", report.getDevice()));
      }
      reports.push_back({report.getDevice(), step, report.getIsPoisoned(), report.getWallNs(),
                         report.getWaitNs()});
    }
    for (const auto tile : params.getFetches()) {
      const absl::Status status =
          IsOurs(tile.getDevice())
              ? session_->fetch_tiles.Write(tile.getDevice(), tile.getActor(), tile.getMicrobatch(),
                                            {reinterpret_cast<const char*>(tile.getBytes().begin()),
                                             tile.getBytes().size()},
                                            it->second.buffers->fetches)
              : absl::InvalidArgumentError("a result of another's device");
      if (!status.ok()) return Refuse(ToStd(status.message()));
    }
    cluster_.Report(session_, [session = session_, step, reports] {
      for (const DeviceStepReport& report : reports) session->observer->OnStepDone(report);
    });
    it->second.has_reported[rank_] = true;
    const std::vector<bool>& has_reported = it->second.has_reported;
    if (std::find(has_reported.begin(), has_reported.end(), false) == has_reported.end()) {
      session_->steps.erase(it);
    }
    return kj::READY_NOW;
  }

  kj::Promise<void> error(ErrorContext context) override {
    const auto params = context.getParams();
    if (!IsCurrent(params.getGeneration())) return kj::READY_NOW;
    if (!IsOurs(params.getDevice()) || !session_->steps.contains(params.getStep())) {
      return Refuse(StrCat("an error of device ", params.getDevice(), ", step ", params.getStep()));
    }
    cluster_.OnError(session_, params.getDevice(), params.getStep(), GetStatus(params.getStatus()));
    return kj::READY_NOW;
  }

  kj::Promise<void> failure(FailureContext context) override {
    const auto params = context.getParams();
    if (!IsCurrent(params.getGeneration())) return kj::READY_NOW;
    cluster_.OnFailure(session_, rank_, GetStatus(params.getStatus()));
    return kj::READY_NOW;
  }

 private:
  bool IsCurrent(uint32_t generation) const {
    return session_->observer != nullptr && generation == session_->generation;
  }

  bool IsOurs(uint32_t device) const {
    const auto num_processes = static_cast<uint32_t>(cluster_.peers_.size());
    const size_t num_devices = session_->plan.devices.size();
    return device >= FirstDevice(rank_, num_processes, num_devices) &&
           device < FirstDevice(rank_ + 1, num_processes, num_devices);
  }

  kj::Promise<void> Refuse(std::string_view what) {
    cluster_.OnFailure(session_, rank_,
                       absl::InternalError(StrCat("sent what nobody asked for: ", what)));
    return kj::READY_NOW;
  }

  Impl& cluster_;
  const std::shared_ptr<ClusterSession> session_;
  const uint32_t rank_;
};

class Cluster::Impl::ClusterEngine final : public Engine {
 public:
  ClusterEngine(Impl& cluster, const planner::Plan& plan, EngineObserver* observer,
                absl::Duration timeout)
      : cluster_(cluster),
        timeout_(timeout),
        session_(std::make_shared<ClusterSession>(plan, observer)) {}
  ~ClusterEngine() override { Stop(); }

  absl::Status Open(const SessionOptions& options) {
    const planner::Plan& plan = session_->plan;
    const auto num_processes = static_cast<uint32_t>(cluster_.peers_.size());
    if (plan.devices.size() < num_processes) {
      return absl::InvalidArgumentError(StrCat("a plan for ", plan.devices.size(),
                                               " devices cannot run in ", num_processes,
                                               " processes"));
    }
    ASSIGN_OR_RETURN(const std::string bytes, planner::PlanToBytes(plan));
    if (bytes.size() > control::kMaxDataBytes) {
      return absl::ResourceExhaustedError(StrCat("the plan has ", bytes.size(),
                                                 " bytes; processes are sent at most ",
                                                 control::kMaxDataBytes));
    }
    const auto addresses = std::make_shared<std::vector<std::string>>(num_processes);
    const auto open = [&](Peer& peer, control::Node::Client& node) {
      const uint32_t rank = peer.description.rank;
      auto call = node.openRequest();
      auto spec = call.initSession();
      spec.setGeneration(session_->generation);
      spec.setPlan(AsData(bytes.data(), bytes.size()));
      const uint32_t first = FirstDevice(rank, num_processes, plan.devices.size());
      spec.setFirstDevice(first);
      spec.setNumDevices(FirstDevice(rank + 1, num_processes, plan.devices.size()) - first);
      spec.setThreadsPerDevice(static_cast<uint32_t>(std::max(options.threads_per_device, 1)));
      spec.setSeed(options.seed);
      spec.setTimeoutMs(static_cast<uint64_t>(absl::ToInt64Milliseconds(options.timeout)));
      spec.setTraceCapacity(options.trace ? options.trace_capacity : 0);
      spec.setMaxMemoryBytes(options.max_memory_bytes);
      call.setObserver(kj::heap<ObserverServer>(cluster_, session_, rank));
      return call.send().then([addresses, rank](auto&& response) {
        const auto address = response.getAddress();
        (*addresses)[rank].assign(reinterpret_cast<const char*>(address.begin()), address.size());
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
          session_->generation = ++cluster_.generation_;
          return kj::READY_NOW;
        },
        "the start of the session"));
    RETURN_IF_ERROR(CallAll(open, "the loading of the plan"));
    return CallAll(
        [&](Peer&, control::Node::Client& node) {
          auto call = node.connectRequest();
          call.setGeneration(session_->generation);
          auto processes = call.initProcesses(num_processes);
          for (uint32_t rank = 0; rank < num_processes; ++rank) {
            processes[rank].setFirstDevice(FirstDevice(rank, num_processes, plan.devices.size()));
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
      if (session->observer == nullptr || !cluster.loss_.ok()) return;
      session->last_step = step;
      session->steps[step] = {buffers, std::vector<bool>(cluster.peers_.size(), false)};
      for (const auto& peer : cluster.peers_) {
        KJ_IF_MAYBE (node, peer->node) {
          auto call = node->submitRequest();
          call.setGeneration(session->generation);
          call.setStep(step);
          auto feeds = call.initFeeds(static_cast<unsigned>(buffers->feeds.size()));
          for (unsigned i = 0; i < feeds.size(); ++i) {
            feeds.set(i, AsData(buffers->feeds[i].data(), buffers->feeds[i].num_bytes()));
          }
          const uint32_t rank = peer->description.rank;
          cluster.tasks_->add(call.send().ignoreResult().catch_(
              [&cluster, session, rank](const kj::Exception& exception) {
                cluster.OnFailure(session, rank, control::FromException(exception));
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
          call.setGeneration(session_->generation);
          call.setTimeoutMs(static_cast<uint32_t>(absl::ToInt64Milliseconds(timeout)));
          const std::string late = StrCat(cluster_.NameOf(peer), ": does not answer");
          return call.send()
              .then([lines](auto&& response) {
                for (const auto line : response.getLines()) lines->emplace_back(line.cStr());
              })
              .exclusiveJoin(cluster_.loop_->timer()
                                 .afterDelay(ToKj(timeout + absl::Seconds(1)))
                                 .then([lines, late] { lines->push_back(late); }));
        },
        "the description of the devices", timeout + absl::Seconds(2));
    if (!status.ok()) lines->emplace_back(ToStd(status.message()));
    return *lines;
  }

  absl::Status ReadState(const planner::StatePlan& state, Tensor* value) override {
    const auto& placements = state.placements;
    return CallAll(
        [&](Peer&, control::Node::Client& node) {
          auto call = node.readStateRequest();
          call.setGeneration(session_->generation);
          call.setState(IndexOf(state));
          return call.send().then([&placements, value](auto&& response) {
            for (const auto tile : response.getTiles()) {
              if (tile.getPlacement() >= placements.size() ||
                  tile.getBytes().size() != placements[tile.getPlacement()].tile.num_bytes()) {
                kj::throwFatalException(control::ToException(
                    absl::InternalError("a node sent a tile that is not of the state")));
              }
              TileCopy(placements[tile.getPlacement()].tile)
                  .ToGlobal(tile.getBytes().begin(), value->data(), 0);
            }
          });
        },
        StrCat("reading the state '", state.name, "'"));
  }

  absl::Status WriteState(const planner::StatePlan& state, const Tensor& value) override {
    if (value.num_bytes() > control::kMaxDataBytes) {
      return absl::ResourceExhaustedError(
          StrCat("the state '", state.name, "' is too large to be sent in one piece"));
    }
    return CallAll(
        [&](Peer&, control::Node::Client& node) {
          auto call = node.writeStateRequest();
          call.setGeneration(session_->generation);
          call.setState(IndexOf(state));
          call.setValue(AsData(value.data(), value.num_bytes()));
          return call.send().ignoreResult();
        },
        StrCat("writing the state '", state.name, "'"));
  }

  absl::StatusOr<std::vector<TraceEvent>> TakeTrace() override {
    const auto events = std::make_shared<std::vector<TraceEvent>>();
    RETURN_IF_ERROR(CallAll(
        [&](Peer&, control::Node::Client& node) {
          auto call = node.takeTraceRequest();
          call.setGeneration(session_->generation);
          return call.send().then([this, events](auto&& response) {
            for (const auto event : response.getEvents()) {
              if (event.getDevice() >= session_->plan.devices.size()) continue;
              const planner::DevicePlan& device = session_->plan.devices[event.getDevice()];
              const bool is_phase = event.getActor() == planner::kNone;
              if (event.getPhase() >= device.phases.size()) continue;
              if (!is_phase && event.getActor() >= device.actors.size()) continue;
              events->push_back({event.getDevice(), event.getActor(), event.getPhase(),
                                 event.getMicrobatch(), event.getStep(), event.getBeginNs(),
                                 event.getEndNs()});
            }
          });
        },
        "reading the trace"));
    return *std::move(events);
  }

  void Stop() override {
    if (is_stopped_) return;
    is_stopped_ = true;
    (void)Await(
        [&]() -> kj::Promise<void> {
          session_->observer = nullptr;
          session_->held.clear();
          session_->steps.clear();
          return kj::READY_NOW;
        },
        "the end of the session");
    const absl::Duration bound = std::min(cluster_.options_.stop_timeout, kCloseTimeout);
    (void)cluster_.loop_->Await(
        [&] {
          if (!cluster_.loss_.ok()) return kj::Promise<void>(kj::READY_NOW);
          return ForAll([&](Peer&, control::Node::Client& node) {
            auto call = node.closeRequest();
            call.setGeneration(session_->generation);
            return call.send().ignoreResult();
          });
        },
        bound, "the end of the session in the nodes");
    (void)Await(
        [&]() -> kj::Promise<void> {
          if (cluster_.session_ == session_) cluster_.session_ = nullptr;
          return kj::READY_NOW;
        },
        "the end of the session");
  }

 private:
  using CallNode = std::function<kj::Promise<void>(Peer&, control::Node::Client&)>;

  uint32_t IndexOf(const planner::StatePlan& state) const {
    return static_cast<uint32_t>(&state - session_->plan.states.data());
  }

  kj::Promise<void> ForAll(const CallNode& call) {
    auto calls = kj::heapArrayBuilder<kj::Promise<void>>(cluster_.peers_.size());
    for (const auto& peer : cluster_.peers_) {
      KJ_IF_MAYBE (node, peer->node) {
        calls.add(call(*peer, *node));
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
        [&] { return AwaitLoss(cluster_.loop_->timer().now() + kPeerGrace, &status); },
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
