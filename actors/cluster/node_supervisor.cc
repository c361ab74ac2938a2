#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "absl/time/time.h"
#include <kj/debug.h>

#include "actors/cluster/network_interface.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/cluster/oom_kills.h"
#include "actors/cluster/process_notes_internal.h"
#include "actors/cluster/socket_address.h"
#include "actors/cluster/wire_cores_internal.h"
#include "actors/engine/error_origin.h"
#include "actors/engine/step_name.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr kj::Duration kPollInterval = 10 * kj::MILLISECONDS;
// While as many nodes as may be are starting on other hosts.
constexpr kj::Duration kStartPause = 2 * kj::MILLISECONDS;
// A node that is not asked for so much longer than one that does not answer ends.
constexpr absl::Duration kSilenceMargin = absl::Milliseconds(200);
// How long a closed connection waits for the report of whoever has started the process.
constexpr kj::Duration kReportGrace = 1 * kj::SECONDS;
// A link between nodes may carry nothing for so long at least: after a pause of two seconds, TCP
// takes up to one more to go on.
constexpr absl::Duration kMinLinkTimeout = absl::Milliseconds(3300);
// How much longer a node may be silent while others join, for each of them, up to the longest time.
constexpr absl::Duration kPatiencePerNode = absl::Milliseconds(100);
constexpr absl::Duration kJoiningPatience = absl::Seconds(20);
// So that thousands of nodes do not keep this process busy with asking them.
constexpr absl::Duration kHeartbeatPerNode = absl::Microseconds(250);
// Longest name of a host or an interface that is taken from a node.
constexpr size_t kMaxNameBytes = 255;

// For a bound of control.capnp.
uint32_t ToMilliseconds(absl::Duration bound) {
  return static_cast<uint32_t>(std::clamp<int64_t>(absl::ToInt64Milliseconds(bound), 1, 3'600'000));
}

std::string Truncated(capnp::Text::Reader name) {
  return std::string(name.begin(), std::min(name.size(), kMaxNameBytes));
}

}  // namespace

NodeSupervisor::NodeSupervisor(const ClusterOptions& options, control::ControlLoop& loop)
    : options_(options), loop_(loop), starts_(options.max_starts) {
  for (uint32_t rank = 0; rank < options.num_processes; ++rank) {
    nodes_.push_back(std::make_unique<Node>());
    nodes_.back()->description.rank = rank;
  }
}

FailureDetector::Times NodeSupervisor::TimesOf(const ClusterOptions& options) {
  const absl::Duration timeout = options.heartbeat_timeout;
  const absl::Duration patience = timeout + options.num_processes * kPatiencePerNode;
  return {timeout, std::max(timeout, std::min(kJoiningPatience, patience))};
}

FailureDetector::Handlers NodeSupervisor::detector_handlers() {
  return {
      .on_loss = [this](const MemberLoss& loss,
                        bool counts) { loop_.Post([this, loss, counts] { Lose(loss, counts); }); },
      .look_again = [this](uint32_t rank) { loop_.Post([this, rank] { LookAgain(rank); }); },
      .kill = nullptr,
  };
}

ProcessLauncher::Events NodeSupervisor::process_events() {
  // Used by the thread of the launcher alone: lines do not pass through this loop.
  const auto notes = std::make_shared<ProcessNotes>();
  return {
      .on_launched =
          [this, notes](const LaunchCommand& command, const LaunchedProcess& process) {
            notes->OnLaunched(command);
            // Before the first line.
            for (uint32_t i = 0; i < std::max(command.agent_ranks, 1u); ++i) {
              const uint32_t rank = command.rank + i;
              actors_->pump().SetHost(rank, HostOf(rank, command, process));
            }
            loop_.Post([this, command, process] { OnLaunched(command, process); });
          },
      .on_line = [notes](uint32_t rank, std::string_view line) { notes->OnLine(rank, line); },
      .on_exit =
          [this, notes](uint32_t rank, int wait_status, std::string_view note) {
            loop_.Post([this, rank, wait_status, note = notes->NoteOf(rank, wait_status, note)] {
              OnExit(rank, wait_status, note);
            });
          },
      .on_finished = [this](uint32_t rank) { loop_.Post([this, rank] { OnFinished(rank); }); },
      .on_ended = [this] { loop_.Post([this] { OnLauncherEnded(); }); },
  };
}

// --- Joining -------------------------------------------------------------------------------------

control::StatusPromise NodeSupervisor::Listen(std::string key, ClusterActors& actors) {
  actors_ = &actors;
  auto paf = kj::newPromiseAndFulfiller<absl::Status>();
  joined_fulfiller_ = kj::mv(paf.fulfiller);
  all_joined_ = kj::heap(paf.promise.fork());
  tasks_ = kj::heap<kj::TaskSet>(*this);
  RETURN_IF_ERROR(loss_);  // one of the actors has ended already
  questions_ = std::make_unique<control::Questions<JobStatus>>(loop_, options_.status_answers);
  pings_ = {
      .interval = std::max(options_.heartbeat_interval, options_.num_processes * kHeartbeatPerNode),
      .silence_ms = ToMilliseconds(options_.heartbeat_timeout + kSilenceMargin),
      .have_all_joined = false};
  // The system protects what passes through a socket of this host.
  std::unique_ptr<control::SecureChannel> channel;
  if (!options_.insecure && !IsUnixAddress(options_.listen)) {
    ASSIGN_OR_RETURN(channel,
                     control::SecureChannel::Create(key, control::ChannelSide::kCoordinator));
  }
  port_ = kj::heap<control::ControlPort>(
      loop_.timer(), std::move(key), ToMilliseconds(TimesOf(options_).patience + kSilenceMargin),
      *this, std::move(channel));
  port_->SetFarewell(StrCat("pid ", getpid(), " on ", HostName()), options_.resume_hint);
  RemoveStaleSocket(options_.listen);
  return loop_.io()
      .provider->getNetwork()
      .parseAddress(options_.listen.c_str())
      .then([this](kj::Own<kj::NetworkAddress> address) {
        kj::Own<kj::ConnectionReceiver> receiver = address->listen();
        address_ = options_.listen;
        if (!IsUnixAddress(address_)) {
          // Port 0 has become another, and nobody can connect to a wildcard.
          const std::string host = SplitAddress(address_).host;
          address_ = JoinAddress(IsWildcard(host) ? ReachableAddress() : host, receiver->getPort());
        }
        port_->Listen(kj::mv(receiver));
        return absl::OkStatus();
      })
      .catch_([this](kj::Exception&& exception) -> absl::Status {
        return absl::InvalidArgumentError(
            StrCat("cannot listen at ", options_.listen, ": ", control::SystemReason(exception),
                   IsUnixAddress(options_.listen)
                       ? "; choose a path where no other job listens, in a folder that exists and "
                         "can be written"
                       : "; choose an address of this host and a free port (port 0: any)"));
      });
}

control::StatusPromise NodeSupervisor::AwaitTurn(const LaunchCommand& command) {
  // A job that has ended says so.
  if (command.remote_host.empty() || has_ended() || starts_.HasRoom(loop_.timer().now())) {
    return absl::Status(loss_);
  }
  return loop_.timer().afterDelay(kStartPause).then([this, &command] {
    return AwaitTurn(command);
  });
}

const std::string& NodeSupervisor::HostOf(uint32_t rank, const LaunchCommand& command,
                                          const LaunchedProcess& process) const {
  // The agents of a tree are on several hosts.
  const bool is_placed = !command.remote_host.empty() && !options_.places.empty();
  return is_placed ? options_.places[rank].host : process.host;
}

void NodeSupervisor::OnLaunched(const LaunchCommand& command, const LaunchedProcess& process) {
  if (nodes_.empty()) return;
  for (uint32_t i = 0; i < std::max(command.agent_ranks, 1u); ++i) {
    Node& node = *nodes_[command.rank + i];
    node.is_launched = true;
    node.description.pid = process.pid;
    node.description.host = HostOf(command.rank + i, command, process);
    actors_->membership().Reserve(
        {node.description.rank, node.description.pid, node.description.host});
  }
  if (!command.remote_host.empty()) {
    starts_.Begin(command.rank, std::max(command.agent_ranks, 1u), loop_.timer().now());
  }
  // The job has ended since its turn came: nobody has told it.
  if (is_killed_) {
    actors_->launcher().Kill(command.rank);
  } else if (is_ending_) {
    actors_->launcher().Terminate(command.rank);
  }
}

void NodeSupervisor::OnExit(uint32_t rank, int wait_status, std::string_view note) {
  if (nodes_.empty()) return;
  // A start that has failed keeps its place: it is the end of the job, and until that is known
  // nobody else's turn comes.
  actors_->failure_detector().OnExit({rank, wait_status, std::string(note), WhenLost(rank)});
}

void NodeSupervisor::OnFinished(uint32_t rank) {
  if (!nodes_.empty()) nodes_[rank]->is_finished = true;
}

void NodeSupervisor::OnLauncherEnded() {
  for (const auto& node : nodes_) node->is_finished = true;
}

kj::Promise<absl::StatusOr<control::Admission>> NodeSupervisor::Admit(
    uint64_t connection, control::NodeInfo::Reader info, control::Node::Client client) {
  using Result = absl::StatusOr<control::Admission>;
  if (is_ending_) return Result(absl::UnavailableError("the job is over"));
  NodeDescription joining;
  joining.pid = info.getPid();
  joining.host = Truncated(info.getHost());
  joining.cores = control::ReadCores(info);
  joining.memory_bytes = info.getMemoryBytes();
  joining.interface = Truncated(info.getInterface());
  auto answer = kj::newPromiseAndFulfiller<Joined>();
  const uint64_t number = ++num_joining_;
  joining_[number] = kj::mv(answer.fulfiller);
  actors_->membership().Join(
      {info.getRank(), std::move(joining)},
      [this, number](const absl::StatusOr<NodeDescription>& joined) {
        loop_.Post([this, number, joined] {
          const auto it = joining_.find(number);
          if (it == joining_.end()) return;
          it->second->fulfill(std::make_shared<const absl::StatusOr<NodeDescription>>(joined));
          joining_.erase(it);
        });
      });
  return answer.promise.then([this, connection, is_watched = info.getIsWatched(),
                              client = kj::mv(client)](Joined&& joined) mutable -> Result {
    if (!joined->ok()) return joined->status();
    nodes_[(*joined)->rank]->is_watched = is_watched;
    return AddMember(**joined, connection, kj::mv(client));
  });
}

control::Admission NodeSupervisor::AddMember(const NodeDescription& joined, uint64_t connection,
                                             control::Node::Client client) {
  Node& node = *nodes_[joined.rank];
  node.description = joined;
  node.has_joined = true;
  node.connection = connection;
  node.client = client;
  starts_.End(joined.rank);
  actors_->pump().SetHost(joined.rank, ShownHost(joined));
  if (options_.on_join) options_.on_join(joined);
  StartHeartbeat(joined.rank, kj::mv(client));
  const bool have_all_joined = std::all_of(nodes_.begin(), nodes_.end(),
                                           [](const auto& other) { return other->has_joined; });
  if (have_all_joined) {
    pings_.have_all_joined = true;
    actors_->failure_detector().OnAllJoined();
    joined_fulfiller_->fulfill(absl::OkStatus());
  }
  return {joined.rank, joined.first_device, joined.num_devices};
}

void NodeSupervisor::StartHeartbeat(uint32_t rank, control::Node::Client client) {
  nodes_[rank]->heartbeat = std::make_unique<Heartbeat>(
      loop_.timer(), kj::mv(client), pings_,
      Heartbeat::Events{
          .on_asked = [this, rank] { actors_->failure_detector().OnAsked(rank); },
          .on_answered = [this, rank] { actors_->failure_detector().OnAnswered(rank); },
          .on_error =
              [this, rank](const kj::Exception& exception) {
                if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
                  OnDisconnected(rank);
                } else {
                  actors_->failure_detector().OnAnswerFailed({rank, WhenLost(rank)});
                }
              }});
}

void NodeSupervisor::OnMemberGone(uint32_t rank) {
  if (nodes_[rank]->is_lost) return;
  if (is_ending_ && !MayBeReported(*nodes_[rank])) return;
  OnDisconnected(rank);
}

void NodeSupervisor::OnDisconnected(uint32_t rank) {
  Node& node = *nodes_[rank];
  ConnectionClosed closed{rank, node.is_launched, WhenLost(rank)};
  if (!MayBeReported(node)) {
    actors_->failure_detector().OnDisconnected(std::move(closed));
    return;
  }
  // Whoever has started the process will say more of its end than that its connection is closed,
  // and that says more than its silence.
  if (std::exchange(node.is_end_awaited, true)) return;
  actors_->failure_detector().Unwatch(rank);
  tasks_->add(loop_.timer().afterDelay(kReportGrace).then([this, closed = std::move(closed)] {
    if (std::exchange(nodes_[closed.rank]->is_end_known, true)) return;
    actors_->failure_detector().OnDisconnected(closed);
  }));
}

void NodeSupervisor::OnMemberEnd(const control::MemberEnd& end) {
  if (end.rank >= nodes_.size()) return;
  Node& node = *nodes_[end.rank];
  // Of another process, it is not news.
  if (!node.is_watched || node.description.pid != end.pid || node.is_end_known) return;
  if (!WIFEXITED(end.wait_status) && !WIFSIGNALED(end.wait_status)) return;
  node.is_end_known = true;
  actors_->failure_detector().OnExit({end.rank, end.wait_status,
                                      end.is_out_of_memory ? kProbablyOutOfMemory : "",
                                      WhenLost(end.rank)});
}

absl::Duration NodeSupervisor::LinkTimeout() const {
  return std::max(options_.heartbeat_timeout, kMinLinkTimeout);
}

uint32_t NodeSupervisor::LinkTimeoutMs() const { return ToMilliseconds(LinkTimeout()); }

// --- Sessions ------------------------------------------------------------------------------------

kj::Maybe<control::Node::Client> NodeSupervisor::NodeOf(uint32_t rank) {
  if (rank >= nodes_.size()) return nullptr;
  return kj::Maybe<control::Node::Client>(nodes_[rank]->client);
}

absl::Status NodeSupervisor::BeginSession(const std::shared_ptr<ClusterSession>& session) {
  RETURN_IF_ERROR(loss_);
  sessions_.push_back(session);
  CountMemory(*session, 1);
  session->Begin({loop_.timer(), *tasks_, [this](uint32_t rank) { return NameOf(rank); },
                  [this](uint32_t rank) { return NodeOf(rank); },
                  [this](uint32_t rank) { return TrafficOf(rank); }, LinkTimeout()},
                 ++generation_);
  return absl::OkStatus();
}

void NodeSupervisor::EndSession(const std::shared_ptr<ClusterSession>& session) {
  const auto it = std::find(sessions_.begin(), sessions_.end(), session);
  if (it == sessions_.end()) return;
  CountMemory(**it, -1);
  sessions_.erase(it);
}

void NodeSupervisor::CountMemory(const ClusterSession& session, int sign) {
  for (uint32_t rank = 0; rank < session.num_processes(); ++rank) {
    const DeviceRange devices = session.DevicesOf(rank);
    for (uint32_t i = 0; i < devices.count; ++i) {
      const planner::DevicePlan& device = session.plan().devices[devices.first + i];
      const uint64_t num_bytes = device.arena_bytes + device.host_bytes;
      AddBytesInUse(rank, sign * static_cast<int64_t>(num_bytes));
    }
  }
}

void NodeSupervisor::FailSessionsOver(uint32_t rank, const absl::Status& cause) {
  // They may end and leave the list meanwhile.
  const std::vector<std::shared_ptr<ClusterSession>> sessions = sessions_;
  for (const auto& session : sessions) {
    if (rank < session->num_processes()) session->Fail(cause);
  }
}

// --- Losing nodes --------------------------------------------------------------------------------

// What has arrived of the node is handled first, and told.
void NodeSupervisor::LookAgain(uint32_t rank) {
  if (tasks_.get() == nullptr) return;
  tasks_->add(loop_.timer().afterDelay(control::kSecondLook).then([this, rank] {
    actors_->failure_detector().OnLookedAgain({rank, nodes_[rank]->is_launched, WhenLost(rank)});
  }));
}

// From here on the node is not called any more; what its loss means comes back from the membership.
void NodeSupervisor::Lose(const MemberLoss& loss, bool counts) {
  if (loss.rank >= nodes_.size() || nodes_[loss.rank]->is_lost) return;
  Node& node = *nodes_[loss.rank];
  node.is_lost = true;
  Disconnect(node);
  actors_->launcher().Kill(loss.rank);
  if (counts) NoteLoss(loss);
}

void NodeSupervisor::NoteLoss(const MemberLoss& loss) {
  noted_losses_.push_back({loss.rank, LossReport(NameOf(loss.rank), loss)});
}

absl::Status NodeSupervisor::loss() const {
  if (!loss_.ok()) return loss_;
  for (const NotedLoss& noted : noted_losses_) {
    if (!noted.is_continued) return noted.report;
  }
  return absl::OkStatus();
}

absl::Status NodeSupervisor::LossAmong(uint32_t num_processes) const {
  if (!loss_.ok()) return loss_;
  for (const NotedLoss& noted : noted_losses_) {
    if (noted.rank < num_processes) return noted.report;
  }
  return absl::OkStatus();
}

std::string NodeSupervisor::WhenLost(uint32_t rank) const {
  // One that runs a step says more than one that waits.
  std::string last;
  for (const auto& session : sessions_) {
    if (session->oldest_step() >= 0) {
      return StrCat(" in ", StepName(session->oldest_step(), session->first_step()));
    }
    if (session->last_step() >= 0) {
      last = StrCat(" after ", StepName(session->last_step(), session->first_step()));
    }
  }
  if (!last.empty()) return last;
  return nodes_[rank]->has_joined ? " while the job was loading" : " before it joined";
}

void NodeSupervisor::Disconnect(Node& node) {
  node.client = nullptr;
  node.heartbeat = nullptr;
  actors_->failure_detector().Unwatch(node.description.rank);
}

void NodeSupervisor::taskFailed(kj::Exception&& exception) {
  KJ_LOG(ERROR, "control plane", exception);
}

// --- The end -------------------------------------------------------------------------------------

void NodeSupervisor::BeginEnding() {
  is_ending_ = true;
  if (actors_ != nullptr) actors_->failure_detector().OnJobEnding();
}

kj::Promise<void> NodeSupervisor::Stop(const absl::Status& outcome, bool joins_again) {
  BeginEnding();
  if (port_.get() == nullptr) return kj::READY_NOW;  // nothing was launched or has joined
  TellToExit(outcome, joins_again);
  return AwaitExits(StopDeadline());
}

void NodeSupervisor::Fail(const absl::Status& cause) {
  if (is_ending_) return;
  BeginEnding();
  loss_ = cause;
  // Before Listen, which will tell it, or after it has failed.
  if (tasks_.get() == nullptr || port_.get() == nullptr) return;
  if (joined_fulfiller_->isWaiting()) joined_fulfiller_->fulfill(absl::Status(cause));
  FailSessionsOver(0, cause);
  TellToExit(cause);
  tasks_->add(AwaitExits(StopDeadline()));
}

void NodeSupervisor::ContinueWithout(uint32_t rank, const absl::Status& report) {
  if (!is_ending_ && joined_fulfiller_->isWaiting()) {
    Fail(report);
    return;
  }
  for (NotedLoss& noted : noted_losses_) noted.is_continued |= noted.rank == rank;
  if (!is_ending_) FailSessionsOver(rank, report);
}

void NodeSupervisor::Kill() {
  BeginEnding();
  is_killed_ = true;
  for (uint32_t rank = 0; rank < nodes_.size(); ++rank) {
    actors_->launcher().Kill(rank);
    Disconnect(*nodes_[rank]);
  }
  if (port_.get() != nullptr) port_->CloseAll();
  if (loss_.ok()) loss_ = absl::CancelledError("the job was ended");
  FailSessionsOver(0, loss_);
}

void NodeSupervisor::Close() {
  port_ = nullptr;
  questions_ = nullptr;
  tasks_ = nullptr;
  joining_.clear();
  nodes_.clear();
  all_joined_ = nullptr;
  joined_fulfiller_ = nullptr;
}

void NodeSupervisor::TellToExit(const absl::Status& cause, bool joins_again) {
  for (uint32_t rank = 0; rank < nodes_.size(); ++rank) {
    if (nodes_[rank]->is_lost) continue;
    Node& node = *nodes_[rank];
    KJ_IF_MAYBE (client, node.client) {
      auto call = client->exitRequest();
      if (!node.is_launched) {
        call.setJoinsAgain(joins_again);
        auto told = call.initCause();
        control::WriteStatus(cause, told);
        told.setRank(OriginOf(cause).rank);
      }
      tasks_->add(call.send().ignoreResult().then([&node] { node.has_answered_exit = true; },
                                                  [](const kj::Exception&) {}));
    } else {
      // It has not joined yet: there is no other way to tell it.
      actors_->launcher().Terminate(rank);
    }
  }
}

// Kills or disconnects the nodes that have not exited by `deadline`.
kj::Promise<void> NodeSupervisor::AwaitExits(kj::TimePoint deadline) {
  bool have_exited = true;
  for (uint32_t rank = 0; rank < nodes_.size(); ++rank) {
    // One that cannot be reached does not close its end.
    if (nodes_[rank]->is_lost) port_->Close(nodes_[rank]->connection);
    have_exited = have_exited && IsFinished(rank) &&
                  !port_->IsConnected(nodes_[rank]->connection) && !IsReportAwaited(*nodes_[rank]);
  }
  if (have_exited) return kj::READY_NOW;
  if (loop_.timer().now() >= deadline) {
    for (uint32_t rank = 0; rank < nodes_.size(); ++rank) {
      if (!IsFinished(rank)) {
        NoteLoss({rank,
                  StrCat("has not exited for ", absl::FormatDuration(options_.stop_timeout),
                         " since it was told to, and was killed"),
                  /*when=*/"", /*shell_status=*/0});
      }
      actors_->launcher().Kill(rank);
      port_->Close(nodes_[rank]->connection);
    }
    return kj::READY_NOW;
  }
  return loop_.timer().afterDelay(kPollInterval).then([this, deadline] {
    return AwaitExits(deadline);
  });
}

kj::TimePoint NodeSupervisor::StopDeadline() const {
  return loop_.timer().now() + control::ToKj(options_.stop_timeout);
}

}  // namespace penstock::actors
