#include <unistd.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "actors/cluster/node_agent_internal.h"
#include "actors/cluster/node_description.h"
#include "actors/cluster/secure_channel_internal.h"
#include "actors/cluster/wire_cores_internal.h"
#include "actors/cluster/wire_job_status_internal.h"
#include "base/machine.h"
#include "base/start_thread.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {

using control::ControlLoop;

namespace {

// From the first byte to the rank. Thousands of nodes may arrive over a network with this one; a
// coordinator on this host that does not answer is stopped.
constexpr kj::Duration kGreetingTimeout = 15 * kj::SECONDS;
constexpr kj::Duration kGreetingTimeoutOnHost = 4 * kj::SECONDS;
constexpr uint32_t kMaxSilenceMs = 3'600'000;

// A text of the coordinator, for one line of a terminal.
std::string Printable(capnp::Text::Reader text) {
  std::string result(text.begin(), std::min(text.size(), control::kMaxTextBytes));
  std::replace_if(
      result.begin(), result.end(), [](unsigned char c) { return c < ' ' || c == 0x7f; }, ' ');
  return result;
}

}  // namespace

NodeAgent::NodeAgent(const NodeOptions& options, ControlLoop& loop, OnEnd on_end,
                     TransportFactory create_transport)
    : options_(options),
      loop_(loop),
      on_end_(std::move(on_end)),
      sessions_(options, std::move(create_transport)),
      receiver_(loop) {}

NodeAgent::~NodeAgent() = default;

control::StatusPromise NodeAgent::Join(kj::Own<kj::AsyncIoStream> stream, const std::string& key) {
  using Stream = kj::Own<kj::AsyncIoStream>;
  const bool is_on_host = options_.coordinator.starts_with("unix");
  const kj::Duration timeout = is_on_host ? kGreetingTimeoutOnHost : kGreetingTimeout;
  return control::Greet(kj::mv(stream), options_.coordinator, key, channel_, EncryptionOf(options_))
      .then([this](absl::StatusOr<Stream>&& greeted) -> control::StatusPromise {
        if (greeted.ok()) return JoinOver(kj::mv(*greeted));
        const bool may_try_again = absl::IsUnavailable(greeted.status());
        if (!may_try_again && !absl::IsUnauthenticated(greeted.status())) return greeted.status();
        const std::string text = StrCat(
            "the connection was closed before the coordinator answered: the key is not the one of "
            "this job (PENSTOCK_KEY or --key-file), or the server at ",
            options_.coordinator, " is not its coordinator");
        return may_try_again ? absl::AbortedError(text) : absl::PermissionDeniedError(text);
      })
      .exclusiveJoin(loop_.timer().afterDelay(timeout).then([]() -> absl::Status {
        return absl::DeadlineExceededError(
            "the server at this address did not answer as a coordinator; use the address that "
            "`penstock run --listen` prints, and check that the job still runs");
      }));
}

std::string NodeAgent::CoordinatorName() const {
  return coordinator_.empty() ? "the coordinator" : StrCat("the coordinator (", coordinator_, ")");
}

void NodeAgent::EndAlone(std::string_view what) {
  const std::string hint = resume_hint_.empty() ? "" : StrCat("; ", resume_hint_);
  End(absl::UnavailableError(StrCat(CoordinatorName(), " ", what, hint)), /*is_orphan=*/true);
}

void NodeAgent::OnPing(uint32_t silence_ms) {
  last_ping_ = loop_.timer().now();
  if (silence_ms > 0 && silence_ms_ > 0) SetSilence(silence_ms);
}

void NodeAgent::SetSilence(uint32_t silence_ms) {
  silence_ms = std::min(silence_ms, kMaxSilenceMs);
  if (silence_ms == silence_ms_) return;
  silence_ms_ = silence_ms;
  listen_ =
      ListenForPings(silence_ms * kj::MILLISECONDS).eagerlyEvaluate([](const kj::Exception&) {});
}

// Ends the node when no ping has come for `bound`. Whoever was stopped itself first looks at what
// has come meanwhile.
kj::Promise<void> NodeAgent::ListenForPings(kj::Duration bound) {
  return loop_.timer()
      .atTime(last_ping_ + bound)
      .then([this] { return loop_.timer().afterDelay(control::kSecondLook); })
      .then([this, bound, before = last_ping_]() -> kj::Promise<void> {
        if (last_ping_ > before) return ListenForPings(bound);
        EndAlone("has gone silent");
        return kj::READY_NOW;
      });
}

control::StatusPromise NodeAgent::JoinOver(kj::Own<kj::AsyncIoStream> stream) {
  connection_ = kj::heap<control::RpcConnection>(kj::mv(stream), capnp::rpc::twoparty::Side::CLIENT,
                                                 nullptr, loop_.timer());
  watch_ = connection_->OnDisconnect()
               .then([this] { EndAlone("is gone"); })
               .eagerlyEvaluate([this](const kj::Exception& exception) {
                 if (exception.getType() == kj::Exception::Type::DISCONNECTED) {
                   EndAlone("is gone");
                 } else {
                   End(control::FromException(exception));
                 }
               });
  auto call = connection_->Bootstrap().castAs<control::Coordinator>().joinRequest();
  auto info = call.initInfo();
  NodeDescription self;
  self.pid = getpid();
  self.host = HostName();
  self.cores = CoresOfThisProcess();
  self.interface = options_.interfaces;
  self.memory_bytes = MachineMemoryBytes();
  info.setRank(options_.rank);
  info.setPid(self.pid);
  info.setHost(self.host.c_str());
  control::WriteCores(self.cores, info);
  info.setInterface(self.interface.c_str());
  info.setMemoryBytes(self.memory_bytes);
  info.setIsWatched(options_.is_watched);
  call.setNode(CreateNodeServer({.options = options_,
                                 .loop = loop_,
                                 .work = work_,
                                 .files = files_,
                                 .sessions = sessions_,
                                 .exchanges = exchanges_,
                                 .receiver = receiver_,
                                 .on_ping = [this](uint32_t silence_ms) { OnPing(silence_ms); },
                                 .on_exit =
                                     [this](const absl::Status& cause, bool joins_again) {
                                       if (joins_again && options_.on_rejoin) options_.on_rejoin();
                                       End(cause);
                                     }}));
  return control::StatusOf(call.send(), [this, self = std::move(self)](auto&& response) mutable {
    self.rank = response.getRank();
    self.first_device = response.getFirstDevice();
    self.num_devices = response.getNumDevices();
    coordinator_ = Printable(response.getCoordinator());
    resume_hint_ = Printable(response.getResumeHint());
    if (options_.on_joined) options_.on_joined(self);
    last_ping_ = loop_.timer().now();
    SetSilence(std::max(response.getSilenceMs(), 1u));
    return absl::OkStatus();
  });
}

control::StatusPromise NodeAgent::AskStatus(std::shared_ptr<JobStatus> result) {
  if (connection_.get() == nullptr) return absl::UnavailableError("the coordinator is gone");
  auto call = connection_->Bootstrap().castAs<control::Monitor>().statusRequest();
  return control::StatusOf(call.send(), [result](auto&& response) -> absl::Status {
    ASSIGN_OR_RETURN(*result, control::ReadJobStatus(response.getJob()));
    return absl::OkStatus();
  });
}

absl::Status NodeAgent::Run() {
  ASSIGN_OR_RETURN(std::thread files,
                   StartThread("the file writer", [this] { (void)files_.Run(); }));
  absl::Status status = work_.Run();
  files_.End(status);
  // Has no bound of its own: a write that the disk does not end uses memory of this node, and
  // cannot be ended from outside. The watchdog, which End has started, ends the process then
  // (node.cc).
  files.join();
  return status;
}

void NodeAgent::Disconnect() {
  work_.Clear();
  files_.Clear();
  exchanges_.Clear();
  listen_ = nullptr;
  watch_ = nullptr;
  connection_ = nullptr;
}

void NodeAgent::End(const absl::Status& status, bool is_orphan) {
  if (on_end_) on_end_(status, is_orphan);
  receiver_.Cancel();
  exchanges_.Stop();
  files_.End(status);
  work_.End(status);
}

}  // namespace penstock::actors
