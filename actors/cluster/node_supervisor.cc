#include <signal.h>

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/time/time.h"
#include <kj/debug.h>

#include "actors/cluster/network_interface.h"
#include "actors/cluster/node_supervisor_internal.h"
#include "actors/cluster/socket_address.h"
#include "actors/step_name.h"
#include "base/machine.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// How long a closed connection or silence waits for the status of the process.
constexpr kj::Duration kExitGrace = 500 * kj::MILLISECONDS;
constexpr kj::Duration kPollInterval = 10 * kj::MILLISECONDS;
// Longest name of a host or an interface that is taken from a node.
constexpr size_t kMaxNameBytes = 255;

std::string Truncated(capnp::Text::Reader name) {
  return std::string(name.begin(), std::min(name.size(), kMaxNameBytes));
}

}  // namespace

NodeSupervisor::NodeSupervisor(const ClusterOptions& options, control::ControlLoop& loop)
    : options_(options), loop_(loop), ranks_(options.num_processes, options.num_devices) {}

// --- Joining -------------------------------------------------------------------------------------

kj::Promise<void> NodeSupervisor::Listen(std::string key) {
  auto paf = kj::newPromiseAndFulfiller<void>();
  joined_fulfiller_ = kj::mv(paf.fulfiller);
  all_joined_ = kj::heap(paf.promise.fork());
  tasks_ = kj::heap<kj::TaskSet>(*this);
  const absl::Duration silence = options_.heartbeat_timeout + absl::Seconds(1);
  port_ = kj::heap<control::ControlPort>(
      loop_.timer(), std::move(key),
      static_cast<uint32_t>(std::clamp<int64_t>(absl::ToInt64Milliseconds(silence), 1, 3'600'000)),
      *this);
  for (uint32_t rank = 0; rank < ranks_.size(); ++rank) nodes_.push_back(std::make_unique<Node>());
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
      })
      .catch_([this](kj::Exception&& exception) {
        kj::throwFatalException(control::ToException(absl::InvalidArgumentError(
            StrCat("cannot listen at ", options_.listen, ": ", control::SystemReason(exception),
                   "; choose an address of this host and a free port (port 0: any)"))));
      });
}

void NodeSupervisor::Watch(uint32_t rank, ChildProcess child) {
  ranks_.Reserve(rank, child.pid(), HostName());
  nodes_[rank]->process.emplace(
      loop_.io(), std::move(child),
      [this, rank](std::string_view line) {
        if (options_.on_output) options_.on_output(rank, ranks_.node(rank).host, line);
      },
      [this, rank](int wait_status) { OnExit(rank, wait_status); });
}

absl::StatusOr<control::Admission> NodeSupervisor::Admit(uint64_t connection,
                                                         control::NodeInfo::Reader info,
                                                         control::Node::Client client) {
  if (is_ending_) return absl::UnavailableError("the job is over");
  NodeDescription joining;
  joining.pid = info.getPid();
  joining.host = Truncated(info.getHost());
  joining.num_cores = info.getNumCores();
  joining.host_cores = info.getHostCores();
  joining.memory_bytes = info.getMemoryBytes();
  joining.interface = Truncated(info.getInterface());
  ASSIGN_OR_RETURN(const uint32_t rank, ranks_.Join(info.getRank(), std::move(joining)));
  const NodeDescription& description = ranks_.node(rank);
  if (options_.on_join) options_.on_join(description);
  Node& node = *nodes_[rank];
  node.connection = connection;
  node.client = client;
  node.heartbeat.emplace(
      loop_.timer(), kj::mv(client), options_.heartbeat_interval, options_.heartbeat_timeout,
      [this, rank] { OnSilence(rank); },
      [this, rank](const kj::Exception& exception) {
        if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
          OnDisconnected(rank);
        } else {
          Lose(rank, "answers with errors");
        }
      });
  if (ranks_.have_all_joined()) joined_fulfiller_->fulfill();
  return control::Admission{rank, description.first_device, description.num_devices};
}

// --- Sessions ------------------------------------------------------------------------------------

kj::Maybe<control::Node::Client> NodeSupervisor::NodeOf(uint32_t rank) {
  if (rank >= nodes_.size()) return nullptr;
  return kj::Maybe<control::Node::Client>(nodes_[rank]->client);
}

absl::Status NodeSupervisor::BeginSession(const std::shared_ptr<ClusterSession>& session) {
  RETURN_IF_ERROR(loss_);
  if (session_ != nullptr) {
    return absl::FailedPreconditionError("another session runs on the cluster");
  }
  session_ = session;
  session->Begin({loop_.timer(), *tasks_, [this](uint32_t rank) { return ranks_.NameOf(rank); },
                  [this](uint32_t rank) { return NodeOf(rank); }},
                 ++generation_);
  return absl::OkStatus();
}

void NodeSupervisor::EndSession(const std::shared_ptr<ClusterSession>& session) {
  if (session_ == session) session_ = nullptr;
}

// --- Losing nodes --------------------------------------------------------------------------------

void NodeSupervisor::OnExit(uint32_t rank, int wait_status) {
  const Node& node = *nodes_[rank];
  if (!node.silence.empty() && ShellStatus(wait_status) == 128 + SIGKILL) {
    Lose(rank, node.silence);
  } else {
    Lose(rank, DescribeWaitStatus(wait_status), ShellStatus(wait_status));
  }
}

// A process that was started here may be dead already, and about to be reported so (a large core
// file is being written): its status is more important than its silence.
void NodeSupervisor::OnSilence(uint32_t rank) {
  const std::string cause =
      StrCat("has not answered for ", absl::FormatDuration(options_.heartbeat_timeout));
  Node& node = *nodes_[rank];
  if (!node.process.has_value()) {
    Lose(rank, cause);
    return;
  }
  node.silence = cause;
  node.process->Kill();
  LoseAfterGrace(rank, cause);
}

void NodeSupervisor::OnDisconnected(uint32_t rank) {
  if (ranks_.is_lost(rank) || is_ending_) return;
  constexpr char kCause[] = "has closed its connection";
  if (nodes_[rank]->process.has_value()) {
    LoseAfterGrace(rank, kCause);
  } else {
    Lose(rank, kCause);
  }
}

void NodeSupervisor::LoseAfterGrace(uint32_t rank, const std::string& cause) {
  tasks_->add(
      loop_.timer().afterDelay(kExitGrace).then([this, rank, cause] { Lose(rank, cause); }));
}

void NodeSupervisor::Lose(uint32_t rank, std::string_view cause, int shell_status) {
  if (ranks_.is_lost(rank)) return;
  ranks_.MarkLost(rank);
  Node& node = *nodes_[rank];
  Disconnect(node);
  if (is_ending_) return;
  is_ending_ = true;
  std::string text = StrCat(ranks_.NameOf(rank), " ", cause);
  if (session_ != nullptr && session_->last_step() >= 0) {
    const int64_t oldest = session_->oldest_step();
    StrAppend(&text, oldest < 0 ? " after " : " in ",
              StepName(oldest < 0 ? session_->last_step() : oldest));
  } else {
    StrAppend(&text, ranks_.has_joined(rank) ? " while the job was loading" : " before it joined");
  }
  loss_ = absl::UnavailableError(text);
  if (shell_status > 0) loss_.SetPayload(kShellStatusPayload, absl::Cord(StrCat(shell_status)));
  if (!ranks_.has_joined(rank) || joined_fulfiller_->isWaiting()) {
    joined_fulfiller_->reject(control::ToException(loss_));
  }
  if (session_ != nullptr) session_->Fail(loss_);
  if (node.process.has_value()) node.process->Kill();
  TellToExit(text);
  tasks_->add(AwaitExits(StopDeadline()));
}

void NodeSupervisor::Disconnect(Node& node) {
  node.client = nullptr;
  if (node.heartbeat.has_value()) node.heartbeat->Stop();
}

void NodeSupervisor::taskFailed(kj::Exception&& exception) {
  KJ_LOG(ERROR, "control plane", exception);
}

// --- The end -------------------------------------------------------------------------------------

kj::Promise<void> NodeSupervisor::Stop() {
  is_ending_ = true;
  TellToExit("");
  return AwaitExits(StopDeadline());
}

void NodeSupervisor::Kill() {
  is_ending_ = true;
  for (const auto& node : nodes_) {
    if (node->process.has_value()) node->process->Kill();
    Disconnect(*node);
  }
  if (port_.get() != nullptr) port_->CloseAll();
  if (loss_.ok()) loss_ = absl::CancelledError("the job was ended");
  if (session_ != nullptr) session_->Fail(loss_);
}

void NodeSupervisor::Close() {
  port_ = nullptr;
  tasks_ = nullptr;
  nodes_.clear();  // kills the processes that still run
  all_joined_ = nullptr;
  joined_fulfiller_ = nullptr;
}

void NodeSupervisor::TellToExit(std::string_view failure) {
  for (uint32_t rank = 0; rank < nodes_.size(); ++rank) {
    if (ranks_.is_lost(rank)) continue;
    Node& node = *nodes_[rank];
    KJ_IF_MAYBE (client, node.client) {
      auto call = client->exitRequest();
      if (!node.process.has_value()) call.setFailure(std::string(failure).c_str());
      tasks_->add(call.send().ignoreResult().catch_([](const kj::Exception&) {}));
    } else if (node.process.has_value()) {
      node.process->Kill();  // it has not joined yet: there is no other way to tell it
    }
  }
}

// Kills or disconnects the nodes that have not exited by `deadline`.
kj::Promise<void> NodeSupervisor::AwaitExits(kj::TimePoint deadline) {
  const bool have_exited = std::all_of(nodes_.begin(), nodes_.end(), [this](const auto& node) {
    return (!node->process.has_value() || node->process->is_finished()) &&
           !port_->IsConnected(node->connection);
  });
  if (have_exited) return kj::READY_NOW;
  if (loop_.timer().now() >= deadline) {
    for (const auto& node : nodes_) {
      if (node->process.has_value()) node->process->Kill();
      port_->Close(node->connection);
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
