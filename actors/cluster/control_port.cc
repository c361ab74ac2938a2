#include <algorithm>
#include <utility>

#include <kj/debug.h>

#include "actors/cluster/control_port_internal.h"
#include "actors/cluster/forwarding_stream_internal.h"
#include "actors/cluster/peer_user_internal.h"
#include "actors/cluster/wire_job_status_internal.h"
#include "actors/cluster/wire_status_internal.h"

namespace penstock::actors::control {
namespace {

// After a connection could not be accepted: the process may have too many files open for now.
constexpr kj::Duration kAcceptPause = 100 * kj::MILLISECONDS;
// While as many connections as may be wait for their hello.
constexpr kj::Duration kRoomPause = 2 * kj::MILLISECONDS;

}  // namespace

// Notes whether the peer has said anything, and hands on what it says in turns.
class ControlPort::PendingStream final : public ForwardingStream {
 public:
  PendingStream(kj::Own<kj::AsyncIoStream> stream, std::shared_ptr<Greeting> greeting)
      : ForwardingStream(kj::mv(stream)), greeting_(std::move(greeting)) {}

  kj::Promise<size_t> read(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return InTurn(ForwardingStream::read(buffer, min_bytes, max_bytes));
  }
  kj::Promise<size_t> tryRead(void* buffer, size_t min_bytes, size_t max_bytes) override {
    return InTurn(ForwardingStream::tryRead(buffer, min_bytes, max_bytes));
  }

 private:
  kj::Promise<size_t> InTurn(kj::Promise<size_t> reading) {
    if (greeting_->turns == nullptr) return reading;
    return reading.then([greeting = greeting_](size_t num_bytes) -> kj::Promise<size_t> {
      greeting->has_spoken = greeting->has_spoken || num_bytes > 0;
      if (greeting->turns == nullptr) return num_bytes;
      return greeting->turns->Await().then([num_bytes] { return num_bytes; });
    });
  }

  const std::shared_ptr<Greeting> greeting_;
};

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
          results.setCoordinator(port.coordinator_.c_str());
          results.setResumeHint(port.resume_hint_.c_str());
        });
  }

  kj::Promise<void> status(StatusContext context) override {
    return AnswerStatus(port_.host_.Status(), context);
  }

  kj::Promise<void> reportEnd(ReportEndContext context) override {
    const auto params = context.getParams();
    port_.host_.OnMemberEnd({.rank = params.getRank(),
                             .pid = params.getPid(),
                             .wait_status = params.getWaitStatus(),
                             .is_out_of_memory = params.getIsOutOfMemory()});
    return kj::READY_NOW;
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
            if (IsUnixSocket(*stream) && !IsOfThisUser(*stream)) return kj::READY_NOW;
            return turns_.Await()
                .then([this] { return MakeRoom(); })
                .then([this, stream = kj::mv(stream)]() mutable { Welcome(kj::mv(stream)); });
          },
          [this](const kj::Exception&) -> kj::Promise<void> {
            return timer_.afterDelay(kAcceptPause);
          })
      .then([this] { return Accept(); });
}

kj::Promise<void> ControlPort::MakeRoom() {
  if (joining_.size() >= kManyJoiningConnections) {
    return timer_.afterDelay(kRoomPause).then([this] { return MakeRoom(); });
  }
  if (unauthenticated_.size() < kMaxPendingConnections) return kj::READY_NOW;
  const kj::TimePoint now = timer_.now();
  for (auto it = unauthenticated_.begin(); it != unauthenticated_.end(); ++it) {
    const kj::Duration age = now - it->second.since;
    if (age < kSilentTime) break;
    if (it->second.greeting->has_spoken && age < kPatientTime) continue;
    unauthenticated_.erase(it);
    return kj::READY_NOW;
  }
  return timer_.afterDelay(kRoomPause).then([this] { return MakeRoom(); });
}

void ControlPort::Welcome(kj::Own<kj::AsyncIoStream> stream) {
  if (unauthenticated_.size() >= kMaxPendingConnections) {  // not through Accept
    unauthenticated_.erase(unauthenticated_.begin());
  }
  const uint64_t id = next_id_++;
  if (channel_ == nullptr) SetTcpOptions(*stream);
  const auto greeting = std::make_shared<Greeting>();
  greeting->turns = &turns_;
  stream = kj::heap<PendingStream>(kj::mv(stream), greeting);
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
                   .then([this, greeting](Welcomed&& from) {
                     greeting->turns = nullptr;
                     KJ_IF_MAYBE (welcomed, from) Serve(kj::mv(*welcomed));
                   })
                   .then(kj::cp(forget))
                   .eagerlyEvaluate([forget](const kj::Exception&) { forget(); });  // it hung up
  unauthenticated_.emplace(id, Pending{timer_.now(), greeting, kj::mv(hello)});
}

void ControlPort::Serve(kj::Own<kj::AsyncIoStream> stream) {
  if (joining_.size() >= kMaxJoiningConnections) Close(*joining_.begin());
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
  joining_.insert(id);
}

void ControlPort::Close(uint64_t connection) {
  joining_.erase(connection);
  authenticated_.erase(connection);
}

void ControlPort::CloseAll() {
  joining_.clear();
  authenticated_.clear();
}

void ControlPort::Leave(uint64_t connection) {
  const auto it = authenticated_.find(connection);
  if (it == authenticated_.end()) return;
  const bool has_joined = it->second->has_joined;
  const uint32_t rank = it->second->rank;
  // Not from inside of what it destroys.
  tasks_.add(kj::evalLater([this, connection] { Close(connection); }));
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
                        return FinishJoin(connection, std::move(admission));
                      })
                      .fork();
  // To the end, even if the node hangs up meanwhile and its call is cancelled.
  tasks_.add(admitted.addBranch().ignoreResult());
  return admitted.addBranch();
}

absl::StatusOr<Admission> ControlPort::FinishJoin(uint64_t connection,
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
  joining_.erase(connection);
  it->second->rank = admission->rank;
  it->second->rpc->Trust();
  return admission;
}

void ControlPort::taskFailed(kj::Exception&& exception) {
  KJ_LOG(ERROR, "control port", exception);
}

}  // namespace penstock::actors::control
