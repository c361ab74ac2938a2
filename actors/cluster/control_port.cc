#include <algorithm>
#include <utility>

#include <kj/debug.h>

#include "actors/cluster/control_loop_internal.h"
#include "actors/cluster/control_port_internal.h"

namespace penstock::actors::control {
namespace {

// After a connection could not be accepted: the process may have too many files open for now.
constexpr kj::Duration kAcceptPause = 100 * kj::MILLISECONDS;

}  // namespace

class ControlPort::CoordinatorServer final : public Coordinator::Server {
 public:
  CoordinatorServer(ControlPort& port, uint64_t guest) : port_(port), guest_(guest) {}

  kj::Promise<void> join(JoinContext context) override {
    const auto params = context.getParams();
    const absl::StatusOr<Admission> admission =
        port_.Join(guest_, params.getInfo(), params.getNode());
    if (!admission.ok()) return ToException(admission.status());
    auto results = context.getResults();
    results.setRank(admission->rank);
    results.setSilenceMs(port_.silence_ms_);
    results.setFirstDevice(admission->first_device);
    results.setNumDevices(admission->num_devices);
    return kj::READY_NOW;
  }

 private:
  ControlPort& port_;
  const uint64_t guest_;
};

ControlPort::ControlPort(kj::Timer& timer, std::string key, uint32_t silence_ms, Host& host)
    : timer_(timer), key_(std::move(key)), silence_ms_(silence_ms), host_(host), tasks_(*this) {}

ControlPort::~ControlPort() {
  accepting_ = nullptr;
  strangers_.clear();
  guests_.clear();
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
  if (strangers_.size() >= kMaxStrangers) strangers_.erase(strangers_.begin());
  const uint64_t id = next_id_++;
  kj::AsyncIoStream& said_by = *stream;
  // A stranger's end is not from inside of what it destroys.
  const auto forget = [this, id] {
    tasks_.add(kj::evalLater([this, id] { strangers_.erase(id); }));
  };
  auto hello =
      ReceiveHello(said_by, key_)
          .exclusiveJoin(timer_.afterDelay(kHelloSeconds * kj::SECONDS).then([] { return false; }))
          .then([this, stream = kj::mv(stream)](bool may_enter) mutable {
            if (may_enter) Serve(kj::mv(stream));
          })
          .then(kj::cp(forget))
          .eagerlyEvaluate([forget](const kj::Exception&) { forget(); });  // it hung up
  strangers_.emplace(id, kj::mv(hello));
}

void ControlPort::Serve(kj::Own<kj::AsyncIoStream> stream) {
  const auto has_not_joined = [](const auto& entry) { return !entry.second->has_joined; };
  if (static_cast<size_t>(std::count_if(guests_.begin(), guests_.end(), has_not_joined)) >=
      kMaxStrangers) {
    guests_.erase(std::find_if(guests_.begin(), guests_.end(), has_not_joined));
  }
  const uint64_t id = next_id_++;
  auto guest = std::make_unique<Guest>();
  guest->rpc = kj::heap<RpcConnection>(
      kj::mv(stream), capnp::rpc::twoparty::Side::SERVER,
      capnp::Capability::Client(kj::heap<CoordinatorServer>(*this, id)), timer_);
  guest->watch = guest->rpc->OnDisconnect()
                     .then([this, id] { Leave(id); })
                     .eagerlyEvaluate([this, id](const kj::Exception&) { Leave(id); });
  guest->join_timeout = timer_.afterDelay(kHelloSeconds * kj::SECONDS)
                            .then([this, id] {
                              const auto it = guests_.find(id);
                              if (it != guests_.end() && !it->second->has_joined) Leave(id);
                            })
                            .eagerlyEvaluate([](const kj::Exception&) {});
  guests_.emplace(id, std::move(guest));
}

void ControlPort::Leave(uint64_t guest) {
  const auto it = guests_.find(guest);
  if (it == guests_.end()) return;
  const bool has_joined = it->second->has_joined;
  const uint32_t rank = it->second->rank;
  // Not from inside of what it destroys.
  tasks_.add(kj::evalLater([this, guest] { guests_.erase(guest); }));
  if (has_joined) host_.OnMemberGone(rank);
}

absl::StatusOr<Admission> ControlPort::Join(uint64_t guest, NodeInfo::Reader info,
                                            Node::Client node) {
  const auto it = guests_.find(guest);
  if (it == guests_.end()) return absl::UnavailableError("the connection has ended");
  if (it->second->has_joined) return absl::FailedPreconditionError("joined before");
  absl::StatusOr<Admission> admission = host_.Admit(guest, info, kj::mv(node));
  if (admission.ok()) {
    it->second->has_joined = true;
    it->second->rank = admission->rank;
    it->second->rpc->Trust();
  }
  return admission;
}

void ControlPort::taskFailed(kj::Exception&& exception) {
  KJ_LOG(ERROR, "control port", exception);
}

}  // namespace penstock::actors::control
