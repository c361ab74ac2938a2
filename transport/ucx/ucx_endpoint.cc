#include "transport/ucx/ucx_endpoint.h"

#include <sys/epoll.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "base/counted.h"
#include "base/status_macros.h"
#include "base/strings.h"
#include "transport/ucx/ucx_status.h"

namespace penstock::transport::ucx {
namespace {

using Clock = std::chrono::steady_clock;
using Lock = SpinLockHolder;

// In Request::internal_word: who holds the request. The inproc transport keeps device numbers
// there.
constexpr uint64_t kLocal = 0;
constexpr uint64_t kRemoteSend = ~uint64_t{0};
constexpr uint64_t kRemoteReceive = ~uint64_t{1};

// Attempts to arm a worker that has something to do.
constexpr int kArmRounds = 64;

// How long Close waits: for the last acks to be flushed, which a dead peer prevents; and for
// connections that other devices may have begun.
constexpr std::chrono::milliseconds kFlushTimeout{200};
constexpr std::chrono::milliseconds kUnknownTimeout{20};

uint64_t MakeKey() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

// --- Making and closing --------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<UcxEndpoint>> UcxEndpoint::Create(const UcxOptions& options,
                                                                 ucp_context_h context,
                                                                 uint32_t device, Endpoint* local,
                                                                 Receiver::Transfers* transfers) {
  std::unique_ptr<UcxEndpoint> endpoint(new UcxEndpoint(options, device, local, transfers));
  RETURN_IF_ERROR(endpoint->Open(context));
  return endpoint;
}

UcxEndpoint::UcxEndpoint(const UcxOptions& options, uint32_t device, Endpoint* local,
                         Receiver::Transfers* transfers)
    : options_(options),
      device_(device),
      local_(local),
      address_{.key = MakeKey(), .worker = {}, .network = {}},
      peers_(options, device, address_.key),
      control_(&peers_),
      sender_(options, device, &peers_, &control_, &counters_),
      receiver_(options, device, &peers_, &control_, &counters_, transfers, [this] { Wake(); }) {}

absl::Status UcxEndpoint::Open(ucp_context_h context) {
  const Lock lock(lock_);
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  {
    const LogScope log;
    const ucs_status_t status = ucp_worker_create(context, &params, &worker_);
    RETURN_IF_ERROR(FromUcs(status, StrCat("making the UCX worker of device ", device_), log));
    log.PassWarnings(options_.on_warning);
  }
  receiver_.set_worker(worker_);

  const auto handle = [worker = worker_](unsigned id, ucp_am_recv_callback_t callback, void* self) {
    ucp_am_handler_param_t handler = {};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.cb = callback;
    handler.arg = self;
    return FromUcs(ucp_worker_set_am_recv_handler(worker, &handler), "setting a handler");
  };
  RETURN_IF_ERROR(handle(kMessageId, &Receiver::OnMessage, &receiver_));
  RETURN_IF_ERROR(handle(kAcksId, &Sender::OnAcks, &sender_));
  RETURN_IF_ERROR(handle(kCancelRequestId, &Receiver::OnCancelRequest, &receiver_));
  RETURN_IF_ERROR(handle(kFetchRequestId, &Sender::OnFetchRequest, &sender_));
  RETURN_IF_ERROR(handle(kChunkId, &Receiver::OnChunk, &receiver_));
  RETURN_IF_ERROR(handle(kProbeId, &OnProbe, this));

  for (std::string* address : {&address_.worker, &address_.network}) {
    ucp_worker_attr_t attributes = {};
    attributes.field_mask = UCP_WORKER_ATTR_FIELD_ADDRESS | UCP_WORKER_ATTR_FIELD_ADDRESS_FLAGS;
    attributes.address_flags = address == &address_.network ? UCP_WORKER_ADDRESS_FLAG_NET_ONLY : 0;
    RETURN_IF_ERROR(FromUcs(ucp_worker_query(worker_, &attributes), "reading the address"));
    address->assign(reinterpret_cast<const char*>(attributes.address), attributes.address_length);
    ucp_worker_release_address(worker_, attributes.address);
  }
  return FromUcs(ucp_worker_get_efd(worker_, &event_fd_), "the worker's descriptor");
}

UcxEndpoint::~UcxEndpoint() { Close(Clock::now()); }

// Without transfers in flight, the connections are flushed, so that the last acks reach the peers.
// Otherwise they are closed by force. UCX then lets go of the memory, unless a peer on the same
// host stands still with a full queue; destroying the worker ends that, too. To close or lose a
// connection that is being made fails an assertion of UCX, here or in the peer. Nobody else uses
// the endpoint, so this takes no lock.
void UcxEndpoint::Close(Clock::time_point deadline) {
  if (worker_ == nullptr) return;
  peers_.BeginClosing();
  SetWakeup(nullptr);
  const auto progress_until = [worker = worker_](Clock::time_point end, const auto& is_reached) {
    while (!is_reached() && Clock::now() < end) {
      if (ucp_worker_progress(worker) == 0) std::this_thread::yield();
    }
  };
  const bool is_transferring = IsTransferring();
  receiver_.DropMessages();
  std::vector<ucs_status_ptr_t> closing;
  bool has_unknown_peers = false;
  for (Peer& peer : peers_.all()) {
    has_unknown_peers |= peer.ep == nullptr && !peer.is_failed && !peer.is_excluded;
    if (peer.ep == nullptr || peer.is_connecting) continue;
    ucs_status_ptr_t request = Peers::Disconnect(peer, is_transferring || peer.is_failed);
    if (request != nullptr) closing.push_back(request);
  }
  progress_until(is_transferring ? deadline : Clock::now() + kFlushTimeout, [&] {
    return !IsTransferring() &&
           std::none_of(closing.begin(), closing.end(), [](ucs_status_ptr_t request) {
             return ucp_request_check_status(request) == UCS_INPROGRESS;
           });
  });
  for (ucs_status_ptr_t request : closing) ucp_request_free(request);
  // A device that was never connected may have begun to connect to this one, which UCX does not
  // show.
  if (has_unknown_peers) progress_until(Clock::now() + kUnknownTimeout, [] { return false; });
  is_leaked_ = peers_.state() == ConnectionState::kConnecting;
  if (!is_leaked_) ucp_worker_destroy(worker_);
  worker_ = nullptr;
}

bool UcxEndpoint::IsTransferring() {
  const Lock lock(lock_);
  const bool is_destroyed = worker_ == nullptr && !is_leaked_;
  return !is_destroyed && NumTransferring() > 0;
}

const std::vector<uint64_t>& UcxEndpoint::CountTransferring() {
  num_transferring_.assign(peers_.all().size(), 0);
  sender_.CountTransferring(&num_transferring_);
  receiver_.CountTransferring(&num_transferring_);
  return num_transferring_;
}

uint64_t UcxEndpoint::NumTransferring() {
  const std::vector<uint64_t>& counts = CountTransferring();
  return std::accumulate(counts.begin(), counts.end(), uint64_t{0});
}

std::string UcxEndpoint::DescribeTransferring() {
  const Lock lock(lock_);
  const std::vector<uint64_t>& counts = CountTransferring();
  std::vector<std::string> parts;
  for (const Peer& peer : peers_.all()) {
    if (counts[peer.index] == 0) continue;
    parts.push_back(StrCat(Counted(counts[peer.index], "request"), " of device ", device_,
                           " with device ", peer.device));
  }
  return StrJoin(parts, ", ");
}

void UcxEndpoint::AddStats(TransportStats* stats) {
  counters_.AddTo(stats);
  const Lock lock(lock_);
  stats->transferring += NumTransferring();
}

absl::Status UcxEndpoint::Connect(uint32_t device, uint64_t key, const std::string& worker,
                                  PeerMemory* memory,
                                  std::shared_ptr<const std::vector<NetworkAddress>> addresses) {
  const Lock lock(lock_);
  RETURN_IF_ERROR(peers_.Connect(worker_, device, key, worker, memory, std::move(addresses)));
  // Whoever drives the endpoint makes the connection.
  Wake();
  return absl::OkStatus();
}

void UcxEndpoint::LeaveUnconnected(uint32_t device, PeerMemory* memory) {
  const Lock lock(lock_);
  Peer& peer = peers_[device];
  peer.memory = memory;
  peer.is_excluded = true;
}

void UcxEndpoint::AddMemory(const void* data, size_t num_bytes, ucp_mem_h handle, uint64_t place) {
  const Lock lock(lock_);
  memory_.Add(data, num_bytes, handle, place);
}

bool UcxEndpoint::CanView(uint32_t device) const {
  if (IsLocal(device)) return true;
  const Lock lock(lock_);
  return peers_[device].memory != nullptr;
}

bool UcxEndpoint::can_view() const {
  const Lock lock(lock_);
  return std::all_of(peers_.all().begin(), peers_.all().end(),
                     [](const Peer& peer) { return peer.memory != nullptr; });
}

void UcxEndpoint::SetWakeup(std::function<void()> wakeup) {
  local_->SetWakeup(wakeup);
  const absl::MutexLock lock(&wakeup_mutex_);
  wakeup_ = std::move(wakeup);
}

void UcxEndpoint::Wake() {
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const absl::MutexLock lock(&wakeup_mutex_);
  if (wakeup_) wakeup_();
}

// --- Requests ------------------------------------------------------------------------------------

// Begins a request of the endpoint itself; fails it and returns false if no message can have this
// tag, or `peer` cannot be reached.
bool UcxEndpoint::BeginRemote(const Peer& peer, Tag tag, uint64_t kind, Request* request) {
  request->internal_word = kind;
  if (!Begin(options_.transport, tag, request)) {
    if (kind == kRemoteSend) counters_.CountDropped();
    return false;
  }
  if (peer.is_failed) {
    Fail(request, peer.failure);
    return false;
  }
  if (peer.ep == nullptr) {
    Fail(request, absl::FailedPreconditionError(
                      StrCat("device ", device_, " is not connected to ", peer.device)));
    return false;
  }
  return true;
}

void UcxEndpoint::Send(uint32_t device, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
                       Request* request) {
  if (IsLocal(device)) {
    request->internal_word = kLocal;
    local_->Send(device, tag, data, num_bytes, flags, request);
    return;
  }
  const Lock lock(lock_);
  Peer& peer = peers_[device];
  if (!BeginRemote(peer, tag, kRemoteSend, request)) return;
  MemoryRegions::Registration memory;
  if (num_bytes > kMaxEagerBytes) memory = memory_.Find(data, num_bytes);
  sender_.Send(peer, tag, data, num_bytes, flags, memory, request);
}

void UcxEndpoint::Recv(uint32_t device, Tag tag, void* data, size_t num_bytes, Request* request) {
  if (IsLocal(device)) {
    request->internal_word = kLocal;
    local_->Recv(device, tag, data, num_bytes, request);
    return;
  }
  const Lock lock(lock_);
  Peer& peer = peers_[device];
  if (!BeginRemote(peer, tag, kRemoteReceive, request)) return;
  const ucp_mem_h memory = memory_.Find(data, num_bytes).handle;
  if (receiver_.Recv(peer, tag, data, num_bytes, memory, request)) FinishMatch();
}

void UcxEndpoint::View(uint32_t device, Tag tag, size_t num_bytes, Request* request) {
  if (IsLocal(device)) {
    request->internal_word = kLocal;
    local_->View(device, tag, num_bytes, request);
    return;
  }
  const Lock lock(lock_);
  Peer& peer = peers_[device];
  if (!BeginRemote(peer, tag, kRemoteReceive, request)) return;
  if (receiver_.View(peer, tag, num_bytes, request)) FinishMatch();
}

// A new receive has found its message.
void UcxEndpoint::FinishMatch() {
  control_.FlushAcks();
  CompleteRequests();
}

void UcxEndpoint::Release(Request* request) {
  if (request->internal_word != kRemoteReceive) {
    local_->Release(request);
    return;
  }
  const Lock lock(lock_);
  receiver_.Release(request);
  control_.FlushAcks();
}

void UcxEndpoint::Cancel(Request* request) {
  if (request->state != Request::State::kPending) return;
  if (request->internal_word != kRemoteSend && request->internal_word != kRemoteReceive) {
    local_->Cancel(request);
    return;
  }
  const Lock lock(lock_);
  if (request->internal_word == kRemoteSend) {
    sender_.Cancel(request);
  } else {
    receiver_.Cancel(request);
  }
}

bool UcxEndpoint::CompleteRequests() {
  const bool has_sent = sender_.CompleteRequests();
  const bool has_received = receiver_.CompleteRequests();
  return has_sent || has_received;
}

// --- Progress ------------------------------------------------------------------------------------

bool UcxEndpoint::Progress() {
  is_driven_.store(true, std::memory_order_relaxed);
  bool has_changed = local_->Progress();
  const Lock lock(lock_);
  ProgressWorker();
  if (peers_.has_new_failures()) HandleFailures();
  if (has_expired_) {
    has_expired_ = false;
    sender_.Expire();
    receiver_.Expire();
    peers_.AskSilent([this](Peer& peer) {
      lock_.AssertHeld();
      control_.Probe(peer);
    });
    if (peers_.has_new_failures()) HandleFailures();
  }
  has_changed |= receiver_.CopyChunk();
  receiver_.StartTransfers();
  if (control_.has_acks()) control_.FlushAcks();
  if (has_ended()) has_changed |= CompleteRequests();
  return has_changed;
}

ConnectionState UcxEndpoint::ProgressConnections() {
  const Lock lock(lock_);
  ProgressWorker();
  for (Peer& peer : peers_.all()) {
    if (peer.ep == nullptr || peer.is_connecting || peer.hello_sent || peer.is_failed) continue;
    // UCX watches only peers that something was sent to.
    peer.hello_sent = true;
    control_.Greet(peer);
  }
  if (has_ended() || peers_.has_new_failures()) Wake();
  return peers_.state();
}

// `is_watched`: an arrival also ends Transport::Wait.
void UcxEndpoint::PrepareSleep(bool is_watched) {
  is_driven_.store(true, std::memory_order_relaxed);
  local_->PrepareSleep();
  const Lock lock(lock_);
  // A worker cannot be armed while it has something to do. Whatever that changes is found by the
  // owner's next Progress.
  for (int i = 0; i < kArmRounds; ++i) {
    if (Arm(is_watched)) return;
    ucp_worker_progress(worker_);
  }
  Wake();  // not armed: the owner must not sleep
}

absl::Status UcxEndpoint::Watch(int watch_fd, uint32_t index) {
  watch_fd_ = watch_fd;
  watch_index_ = index;
  epoll_event event = {};
  event.data.u32 = index;  // no events before Arm
  if (epoll_ctl(watch_fd_, EPOLL_CTL_ADD, event_fd_, &event) != 0) {
    return absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  return absl::OkStatus();
}

// The descriptor of a worker that was armed is readable, or the worker is still armed, until it is
// armed again.
bool UcxEndpoint::Arm(bool is_watched) {
  if (ucp_worker_arm(worker_) != UCS_OK) return false;
  if (!is_watched && !is_watched_) return true;
  is_watched_ = is_watched;
  epoll_event event = {};
  if (is_watched) event.events = EPOLLIN | EPOLLONESHOT;
  event.data.u32 = watch_index_;
  epoll_ctl(watch_fd_, EPOLL_CTL_MOD, event_fd_, &event);
  return true;
}

// --- Failures and time limits --------------------------------------------------------------------

void UcxEndpoint::FailPeer(uint32_t device, const absl::Status& cause) {
  const Lock lock(lock_);
  peers_.Fail(peers_[device], cause);
  Wake();
}

// Fails the requests of peers that have failed. Those whose bytes UCX uses end when it has let go
// of them, which disconnecting by force brings about.
void UcxEndpoint::HandleFailures() {
  peers_.ClearNewFailures();
  for (Peer& peer : peers_.all()) {
    if (!peer.is_failed || peer.is_failure_handled) continue;
    peer.is_failure_handled = true;
    receiver_.FailReceives(peer);
    sender_.FailSends(peer);
    if (peer.ep == nullptr) continue;
    ucs_status_ptr_t request = Peers::Disconnect(peer, true);
    if (request != nullptr) ucp_request_free(request);
  }
  // A process that dies while it writes into the shared receive queue of this one blocks what other
  // processes write behind it. So the others are asked for a sign of life.
  for (Peer& peer : peers_.all()) {
    if (peer.ep == nullptr || peer.is_failed) continue;
    peer.is_probed = true;
    peer.seconds_since_probe = 0;
    control_.Probe(peer);
  }
}

ucs_status_t UcxEndpoint::OnProbe(void* self, const void* header, size_t header_length,
                                  void* /*data*/, size_t length,
                                  const ucp_am_recv_param_t* /*param*/) {
  auto& endpoint = *static_cast<UcxEndpoint*>(self);
  endpoint.lock_.AssertHeld();
  Origin origin;
  Peer* peer = nullptr;
  if (length == 0 && header_length == sizeof(origin)) {
    std::memcpy(&origin, header, sizeof(origin));
    peer = endpoint.peers_.Authenticate(origin);
  }
  if (peer == nullptr) {
    endpoint.counters_.CountDropped();
  } else if (peer->ep != nullptr) {
    endpoint.control_.Greet(*peer);
  }
  return UCS_OK;
}

absl::Status UcxEndpoint::OnSecondPassed() {
  const Lock lock(lock_);
  const bool has_failed_peers = peers_.OnSecondPassed();
  const bool has_late_sends = sender_.OnSecondPassed();
  const bool has_late_receives = receiver_.OnSecondPassed();
  absl::Status late;
  bool is_used_by_failed = false;
  if (peers_.has_failed()) {
    const std::vector<uint64_t>& counts = CountTransferring();
    for (Peer& peer : peers_.all()) {
      if (!peer.is_failed || counts[peer.index] == 0) continue;
      is_used_by_failed = true;
      if (peer.seconds_since_failure <= options_.answer_timeout.count() || peer.is_reported)
        continue;
      peer.is_reported = true;
      late.Update(absl::UnavailableError(
          StrCat(ToStd(peer.failure.message()), "; for ", peer.seconds_since_failure,
                 " s the data plane has not let go of the memory of ",
                 Counted(counts[peer.index], "request"), " of device ", device_)));
    }
  }
  // UCX lets go while its worker is progressed.
  if (has_failed_peers || has_late_sends || has_late_receives || is_used_by_failed) {
    has_expired_ = true;
    Wake();
  }
  return late;
}

std::vector<uint32_t> UcxEndpoint::FindCutLinks(std::chrono::milliseconds elapsed) {
  {
    const Lock lock(lock_);
    sender_.MarkAwaited();
    receiver_.MarkAwaited();
    const bool is_any_silent = peers_.CountSilence(elapsed);
    if (peers_.needs_signs_of_life()) {
      has_expired_ = true;
      Wake();
    }
    if (!is_any_silent) return {};
  }
  // Takes too long for the lock. The kernel gives a connection up after about 15 retries without an
  // answer, which has to be later than what is found here.
  const TcpLinks links = ReadTcpLinks(event_fd_, options_.link_timeout / 4);
  const Lock lock(lock_);
  std::vector<uint32_t> devices;
  for (const Peer* peer : peers_.FindCutLinks(links, elapsed)) devices.push_back(peer->device);
  if (!devices.empty()) Wake();
  return devices;
}

}  // namespace penstock::transport::ucx
