#include <algorithm>
#include <utility>

#include <kj/debug.h>

#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/wire_job_status_internal.h"
#include "actors/cluster/wire_status_internal.h"

namespace penstock::actors::control {
namespace {

// After a connection could not be accepted: the process may have too many files open for now.
constexpr kj::Duration kAcceptPause = 100 * kj::MILLISECONDS;

}  // namespace

class ControlPort::CoordinatorServer final : public Coordinator::Server {
 public:
  CoordinatorServer(ControlPort& port, uint64_t connection)
      : port_(port), connection_(connection) {}

  kj::Promise<void> join(JoinContext context) override {
    const auto params = context.getParams();
    return port_.Join(connection_, params.getInfo(), params.getNode())
        .then([&port = port_, context](absl::StatusOr<Admission>&& admission) mutable {
          auto results = context.getResults();
          WriteStatus(admission.status(), results.initStatus());
          if (!admission.ok()) return;
          results.setRank(admission->rank);
          results.setSilenceMs(port.silence_ms_);
          results.setFirstDevice(admission->first_device);
          results.setNumDevices(admission->num_devices);
        });
  }

  kj::Promise<void> status(StatusContext context) override {
    return AnswerStatus(port_.host_.Status(), context);
  }

 private:
  ControlPort& port_;
  const uint64_t connection_;
};

ControlPort::ControlPort(kj::Timer& timer, std::string key, uint32_t silence_ms, Host& host,
                         std::unique_ptr<SecureChannel> channel)
    : timer_(timer),
      key_(std::move(key)),
      silence_ms_(silence_ms),
      host_(host),
      channel_(std::move(channel)),
      tasks_(*this) {}

ControlPort::~ControlPort() {
  accepting_ = nullptr;
  unauthenticated_.clear();
  authenticated_.clear();
}

void ControlPort::Listen(kj::Own<kj::ConnectionReceiver> receiver) {
  receiver_ = kj::mv(receiver);
  accepting_ = Accept().eagerlyEvaluate(
      [](const kj::Exception& exception) { KJ_LOG(ERROR, "accepting", exception); });
}

kj::Promise<void> ControlPort::Accept() {
  return receiver_->accept()
      .then(
          [this](kj::Own<kj::AsyncIoStream> stream) -> kj::Promise<void> {
            Welcome(kj::mv(stream));
            return kj::READY_NOW;
          },
          [this](const kj::Exception&) -> kj::Promise<void> {
            return timer_.afterDelay(kAcceptPause);
          })
      .then([this] { return Accept(); });
}

void ControlPort::Welcome(kj::Own<kj::AsyncIoStream> stream) {
  if (unauthenticated_.size() >= kMaxPendingConnections)
    unauthenticated_.erase(unauthenticated_.begin());
  const uint64_t id = next_id_++;
  // Erased later: the promise must not destroy itself while it runs.
  const auto forget = [this, id] {
    tasks_.add(kj::evalLater([this, id] { unauthenticated_.erase(id); }));
  };
  using Stream = kj::Own<kj::AsyncIoStream>;
  auto secured =
      channel_ != nullptr ? channel_->Secure(kj::mv(stream)) : kj::Promise<Stream>(kj::mv(stream));
  // The stream if the peer may go on.
  using Welcomed = kj::Maybe<Stream>;
  auto greeted = secured.then([this](Stream&& from) {
    kj::AsyncIoStream& said_by = *from;
    return ReceiveHello(said_by, key_).then([from = kj::mv(from)](bool may_enter) mutable {
      return may_enter ? Welcomed(kj::mv(from)) : Welcomed();
    });
  });
  auto hello = greeted
                   .exclusiveJoin(timer_.afterDelay(kHelloSeconds * kj::SECONDS).then([] {
                     return Welcomed();
                   }))
                   .then([this](Welcomed&& from) {
                     KJ_IF_MAYBE (welcomed, from) Serve(kj::mv(*welcomed));
                   })
                   .then(kj::cp(forget))
                   .eagerlyEvaluate([forget](const kj::Exception&) { forget(); });  // it hung up
  unauthenticated_.emplace(id, kj::mv(hello));
}

void ControlPort::Serve(kj::Own<kj::AsyncIoStream> stream) {
  const auto has_not_joined = [](const auto& entry) { return !entry.second->has_joined; };
  if (static_cast<size_t>(std::count_if(authenticated_.begin(), authenticated_.end(),
                                        has_not_joined)) >= kMaxPendingConnections) {
    authenticated_.erase(
        std::find_if(authenticated_.begin(), authenticated_.end(), has_not_joined));
  }
  const uint64_t id = next_id_++;
  auto connection = std::make_unique<Connection>();
  connection->rpc = kj::heap<RpcConnection>(
      kj::mv(stream), capnp::rpc::twoparty::Side::SERVER,
      capnp::Capability::Client(kj::heap<CoordinatorServer>(*this, id)), timer_);
  connection->watch = connection->rpc->OnDisconnect()
                          .then([this, id] { Leave(id); })
                          .eagerlyEvaluate([this, id](const kj::Exception&) { Leave(id); });
  connection->join_timeout = timer_.afterDelay(kHelloSeconds * kj::SECONDS)
                                 .then([this, id] {
                                   const auto it = authenticated_.find(id);
                                   if (it != authenticated_.end() && !it->second->has_joined)
                                     Leave(id);
                                 })
                                 .eagerlyEvaluate([](const kj::Exception&) {});
  authenticated_.emplace(id, std::move(connection));
}

void ControlPort::Leave(uint64_t connection) {
  const auto it = authenticated_.find(connection);
  if (it == authenticated_.end()) return;
  const bool has_joined = it->second->has_joined;
  const uint32_t rank = it->second->rank;
  // Not from inside of what it destroys.
  tasks_.add(kj::evalLater([this, connection] { authenticated_.erase(connection); }));
  if (has_joined) host_.OnMemberGone(rank);
}

kj::Promise<absl::StatusOr<Admission>> ControlPort::Join(uint64_t connection, NodeInfo::Reader info,
                                                         Node::Client node) {
  using Result = absl::StatusOr<Admission>;
  const auto it = authenticated_.find(connection);
  if (it == authenticated_.end()) return Result(absl::UnavailableError("the connection has ended"));
  if (it->second->has_asked) return Result(absl::FailedPreconditionError("joined before"));
  it->second->has_asked = true;
  auto admitted = host_.Admit(connection, info, kj::mv(node))
                      .then([this, connection](Result&& admission) {
                        return TakeIn(connection, std::move(admission));
                      })
                      .fork();
  // To the end, even if the node hangs up meanwhile and its call is cancelled.
  tasks_.add(admitted.addBranch().ignoreResult());
  return admitted.addBranch();
}

absl::StatusOr<Admission> ControlPort::TakeIn(uint64_t connection,
                                              absl::StatusOr<Admission> admission) {
  const auto it = authenticated_.find(connection);
  if (!admission.ok()) {
    if (it != authenticated_.end()) it->second->has_asked = false;
    return admission;
  }
  if (it == authenticated_.end()) {
    host_.OnMemberGone(admission->rank);
    return absl::UnavailableError("the connection has ended");
  }
  it->second->has_joined = true;
  it->second->rank = admission->rank;
  it->second->rpc->Trust();
  return admission;
}

void ControlPort::taskFailed(kj::Exception&& exception) {
  KJ_LOG(ERROR, "control port", exception);
}

}  // namespace penstock::actors::control
