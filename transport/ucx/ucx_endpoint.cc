#include "transport/ucx/ucx_endpoint.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <string>
#include <thread>

#include "base/status_macros.h"
#include "base/stream_copy.h"
#include "base/strings.h"

namespace penstock::transport::ucx {
namespace {

using Clock = std::chrono::steady_clock;

// In Request::internal_word: `internal` is an Operation here, not the inproc transport's.
constexpr uint64_t kRemote = ~uint64_t{0};

// Calls of ucp_worker_progress in one Progress.
constexpr int kProgressRounds = 4;
// Attempts to arm a worker that has something to do.
constexpr int kArmRounds = 64;

// Messages of one peer that nobody has asked for; more is an attack or a broken plan.
constexpr uint32_t kMaxArrived = 1 << 16;

// Bytes on their way from one peer: enough to keep a link of 10 Gbit/s busy while a message is
// asked for; and, as messages may be longer, how many there may be at least.
constexpr uint64_t kMaxTransferBytes = 1 << 20;
constexpr uint32_t kMinTransfers = 2;

// How long closing waits: for the last answers to leave, a peer that is gone already keeps them
// from it; or for UCX to let go of registers.
constexpr std::chrono::milliseconds kFlushPatience{200};
constexpr std::chrono::milliseconds kForcePatience{5000};
constexpr std::chrono::milliseconds kUnknownPatience{20};

void Fail(Request* request, absl::Status status) {
  request->state = Request::State::kFailed;
  request->status = std::move(status);
  request->internal = nullptr;
}

uint64_t MakeKey() {
  std::random_device device;
  return uint64_t{device()} << 32 | device();
}

}  // namespace

absl::Status FromUcs(ucs_status_t status, std::string_view what) {
  if (status == UCS_OK) return absl::OkStatus();
  return absl::UnavailableError(
      StrCat("data plane: ", what, " failed (UCX: ", ucs_status_string(status), ")"));
}

// --- Making and closing --------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<UcxEndpoint>> UcxEndpoint::Create(const UcxOptions& options,
                                                                 ucp_context_h context,
                                                                 uint32_t device, Endpoint* local) {
  std::unique_ptr<UcxEndpoint> endpoint(new UcxEndpoint(options, device, local));
  RETURN_IF_ERROR(endpoint->Open(context));
  return endpoint;
}

UcxEndpoint::UcxEndpoint(const UcxOptions& options, uint32_t device, Endpoint* local)
    : options_(options), device_(device), local_(local), peers_(options.transport.num_devices) {
  for (uint32_t i = 0; i < peers_.size(); ++i) {
    if (IsLocal(i)) continue;
    peers_[i] = std::make_unique<Peer>();
    peers_[i]->endpoint = this;
    peers_[i]->device = i;
    peers_[i]->pages.resize((options.transport.num_channels + kPageChannels - 1) / kPageChannels);
  }
  answered_.reserve(peers_.size());
}

absl::Status UcxEndpoint::Open(ucp_context_h context) {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  RETURN_IF_ERROR(FromUcs(ucp_worker_create(context, &params, &worker_), "making a worker"));

  const auto handle = [this](unsigned id, ucp_am_recv_callback_t callback) {
    ucp_am_handler_param_t handler = {};
    handler.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                         UCP_AM_HANDLER_PARAM_FIELD_ARG;
    handler.id = id;
    handler.cb = callback;
    handler.arg = this;
    return FromUcs(ucp_worker_set_am_recv_handler(worker_, &handler), "setting a handler");
  };
  RETURN_IF_ERROR(handle(kMessageId, &OnMessage));
  RETURN_IF_ERROR(handle(kOutcomesId, &OnOutcomes));
  RETURN_IF_ERROR(handle(kWithdrawalId, &OnWithdrawal));
  RETURN_IF_ERROR(handle(kProbeId, &OnProbe));

  ucp_address_t* bytes = nullptr;
  size_t num_bytes = 0;
  RETURN_IF_ERROR(
      FromUcs(ucp_worker_get_address(worker_, &bytes, &num_bytes), "reading the address"));
  address_.key = MakeKey();
  address_.worker.assign(reinterpret_cast<const char*>(bytes), num_bytes);
  ucp_worker_release_address(worker_, bytes);
  return FromUcs(ucp_worker_get_efd(worker_, &event_fd_), "the worker's descriptor");
}

UcxEndpoint::~UcxEndpoint() { Close(); }

// What was answered last is still on its way where nothing is under transfer: it is waited for. To
// close or lose a connection in the making is an assertion in UCX, here or in the peer, so one that
// has not come about is left behind with its worker.
bool UcxEndpoint::Close() {
  if (worker_ == nullptr) return true;
  is_closing_ = true;
  SetWakeup(nullptr);
  const auto progress_until = [this](Clock::duration patience, const auto& is_reached) {
    const auto deadline = Clock::now() + patience;
    while (!is_reached() && Clock::now() < deadline) {
      if (ucp_worker_progress(worker_) == 0) std::this_thread::yield();
    }
  };
  const bool is_transferring = std::any_of(blocks_.begin(), blocks_.end(), [](const auto& block) {
    return std::any_of(block->begin(), block->end(),
                       [](const Operation& operation) { return operation.is_transferring; });
  });
  std::vector<ucs_status_ptr_t> closing;
  bool has_unknown_peers = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr) continue;
    DropWaiting(*peer);
    for (const std::unique_ptr<Page>& page : peer->pages) {
      if (page == nullptr) continue;
      for (Match& match : *page) {
        while (!match.arrived.empty()) ReleaseArrival(match.arrived.PopFront());
      }
    }
    has_unknown_peers |= peer->ep == nullptr && !peer->is_failed;
    if (peer->ep == nullptr || peer->is_connecting) continue;
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    param.flags = is_transferring || peer->is_failed ? UCP_EP_CLOSE_FLAG_FORCE : 0;
    ucs_status_ptr_t request = ucp_ep_close_nbx(peer->ep, &param);
    peer->ep = nullptr;
    if (UCS_PTR_IS_PTR(request)) closing.push_back(request);
  }
  progress_until(is_transferring ? kForcePatience : kFlushPatience, [&closing] {
    return std::none_of(closing.begin(), closing.end(), [](ucs_status_ptr_t request) {
      return ucp_request_check_status(request) == UCS_INPROGRESS;
    });
  });
  for (ucs_status_ptr_t request : closing) ucp_request_free(request);
  // A device that was not connected may have begun to connect to us, which nothing shows.
  if (has_unknown_peers) progress_until(kUnknownPatience, [] { return false; });
  const bool is_closed = connections() != Connections::kBeingMade;
  if (is_closed) ucp_worker_destroy(worker_);
  worker_ = nullptr;
  return is_closed;
}

absl::Status UcxEndpoint::Connect(uint32_t device, const ProcessAddress::Device& address,
                                  PeerMemory* memory) {
  const Turn turn(this);
  Peer& peer = *peers_[device];
  if (peer.ep != nullptr || peer.is_closed) {
    return absl::AlreadyExistsError(StrCat("device ", device, " is connected already"));
  }
  ucp_ep_params_t params = {};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(address.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &OnPeerError;
  params.err_handler.arg = &peer;
  ucp_ep_h ep = nullptr;
  if (const ucs_status_t status = ucp_ep_create(worker_, &params, &ep); status != UCS_OK) {
    return absl::UnavailableError(
        StrCat("device ", device, " cannot be reached over interface ", options_.interfaces,
               ": give both nodes the interface (--interface) of a network that joins them (UCX: ",
               ucs_status_string(status), ")"));
  }
  peer.ep = ep;
  peer.key = address.key;
  peer.memory = memory;
  // Flushed is what has a connection to go through.
  peer.is_connecting = true;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &OnConnected;
  param.user_data = &peer;
  ucs_status_ptr_t request = ucp_ep_flush_nbx(ep, &param);
  if (!UCS_PTR_IS_PTR(request)) peer.is_connecting = false;
  // Also makes UCX watch over the peer.
  Greet(peer);
  // Whoever drives the endpoint makes the connection.
  Wake();
  return absl::OkStatus();
}

void UcxEndpoint::OnConnected(void* request, ucs_status_t /*status*/, void* peer) {
  ucp_request_free(request);
  static_cast<Peer*>(peer)->is_connecting = false;
}

void UcxEndpoint::AddMemory(const void* data, size_t num_bytes, ucp_mem_h handle, uint64_t place) {
  const Turn turn(this);
  const size_t shared_bytes = place == kNoPlace ? 0 : SharedMemory::WholePages(num_bytes);
  memory_.push_back({static_cast<const std::byte*>(data), num_bytes, handle, shared_bytes, place});
}

bool UcxEndpoint::can_view() const {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const auto& peer) { return peer == nullptr || peer->memory != nullptr; });
}

void UcxEndpoint::SetWakeup(std::function<void()> wakeup) {
  local_->SetWakeup(wakeup);
  const std::lock_guard lock(wakeup_mutex_);
  wakeup_ = std::move(wakeup);
}

void UcxEndpoint::Wake() {
  const std::lock_guard lock(wakeup_mutex_);
  if (wakeup_) wakeup_();
}

void UcxEndpoint::AddStats(TransportStats* stats) const {
  stats->messages += messages_.load(std::memory_order_relaxed);
  stats->bytes += bytes_.load(std::memory_order_relaxed);
  stats->dropped += dropped_.load(std::memory_order_relaxed);
}

// --- Requests ------------------------------------------------------------------------------------

void UcxEndpoint::Send(uint32_t peer, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
                       Request* request) {
  if (IsLocal(peer)) {
    request->internal_word = 0;
    local_->Send(peer, tag, data, num_bytes, flags, request);
    return;
  }
  const Turn turn(this);
  if (!Begin(Kind::kSend, peer, tag, request)) return;
  Operation* send = Acquire(Kind::kSend, peer);
  send->request = request;
  request->internal = send;
  send->data = const_cast<void*>(data);
  send->header.serial = peers_[peer]->next_serial++;
  send->header.sequence = tag.sequence;
  send->header.num_bytes = num_bytes;
  send->header.channel = tag.channel;
  send->header.flags = flags;
  send->header.operation = send->id;
  send->header.place = kNoPlace;
  send->memory = nullptr;
  const Region* region = num_bytes > kMaxEagerBytes ? FindRegion(data, num_bytes) : nullptr;
  if (region != nullptr) {
    send->memory = region->handle;
    const auto offset = static_cast<size_t>(static_cast<const std::byte*>(data) - region->begin);
    if (offset <= region->shared_bytes && num_bytes <= region->shared_bytes - offset) {
      send->header.place = region->place + offset;
    }
  }
  Start(send);
}

void UcxEndpoint::Recv(uint32_t peer, Tag tag, void* data, size_t num_bytes, Request* request) {
  if (IsLocal(peer)) {
    request->internal_word = 0;
    local_->Recv(peer, tag, data, num_bytes, request);
    return;
  }
  Post(peer, tag, data, num_bytes, false, request);
}

void UcxEndpoint::Post(uint32_t peer, Tag tag, void* data, size_t num_bytes, bool is_view,
                       Request* request) {
  const Turn turn(this);
  if (!Begin(Kind::kReceive, peer, tag, request)) return;
  Operation* receive = Acquire(Kind::kReceive, peer);
  receive->request = request;
  request->internal = receive;
  receive->data = data;
  receive->is_view = is_view;
  receive->header.sequence = tag.sequence;
  receive->header.num_bytes = num_bytes;
  receive->header.channel = tag.channel;
  const Region* region = is_view ? nullptr : FindRegion(data, num_bytes);
  receive->memory = region == nullptr ? nullptr : region->handle;
  Peer& source = *peers_[peer];
  Match& match = MatchOf(source, tag.channel);
  Operation* arrival = match.arrived.RemoveFirst(
      [&tag](const Operation& operation) { return operation.header.sequence == tag.sequence; });
  if (arrival == nullptr) {
    match.posted.PushBack(receive);
    return;
  }
  --source.num_arrived;
  Deliver({arrival->header, arrival->data, arrival->source, true}, receive);
  Recycle(arrival);
  FlushOutcomes();
  EndRequests();
}

void UcxEndpoint::View(uint32_t peer, Tag tag, size_t num_bytes, Request* request) {
  if (IsLocal(peer)) {
    request->internal_word = 0;
    local_->View(peer, tag, num_bytes, request);
    return;
  }
  Post(peer, tag, nullptr, num_bytes, true, request);
}

void UcxEndpoint::Release(Request* request) {
  if (request->internal_word != kRemote) {
    local_->Release(request);
    return;
  }
  const Turn turn(this);
  auto* view = static_cast<Operation*>(std::exchange(request->internal, nullptr));
  request->view = nullptr;
  Answer(*peers_[view->peer], view->header.operation, Outcome::kDelivered, 0);
  Recycle(view);
  FlushOutcomes();
}

void UcxEndpoint::Cancel(Request* request) {
  if (request->state != Request::State::kPending) return;
  if (request->internal_word != kRemote) {
    local_->Cancel(request);
    return;
  }
  const Turn turn(this);
  auto* operation = static_cast<Operation*>(request->internal);
  const absl::Status cancelled = absl::CancelledError("the request was cancelled");
  if (operation->is_over) return;
  if (operation->kind == Kind::kSend) {
    if (!operation->is_withdrawing) Withdraw(operation, cancelled);
    return;
  }
  Match& match = MatchOf(*peers_[operation->peer], operation->header.channel);
  const auto is_it = [operation](const Operation& other) { return &other == operation; };
  if (match.posted.RemoveFirst(is_it) == nullptr) return;  // the message is under way
  Recycle(operation);
  Fail(request, cancelled);
}

Connections UcxEndpoint::ProgressConnections() {
  const Turn turn(this);
  for (int i = 0; i < kProgressRounds && ucp_worker_progress(worker_) != 0; ++i) {
  }
  if (!ended_.empty() || has_failures_) Wake();
  return connections();
}

Connections UcxEndpoint::connections() const {
  Connections least = Connections::kEstablished;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr || (peer->ep == nullptr && !peer->is_connecting)) continue;
    if (peer->is_connecting) return Connections::kBeingMade;
    if (!peer->is_heard && !peer->is_failed) least = Connections::kUnheard;
  }
  return least;
}

bool UcxEndpoint::Progress() {
  is_driven_.store(true, std::memory_order_relaxed);
  bool changed = local_->Progress();
  const Turn turn(this);
  for (int i = 0; i < kProgressRounds && ucp_worker_progress(worker_) != 0; ++i) {
  }
  if (has_failures_) FailPeers();
  if (has_expired_) Expire();
  if (!answered_.empty()) FlushOutcomes();
  if (!ended_.empty()) changed |= EndRequests();
  return changed;
}

void UcxEndpoint::PrepareSleep() {
  is_driven_.store(true, std::memory_order_relaxed);
  local_->PrepareSleep();
  const Turn turn(this);
  // Busy: something has come. What it changes is found by the owner's next Progress.
  for (int i = 0; i < kArmRounds; ++i) {
    if (Arm()) return;
    ucp_worker_progress(worker_);
  }
  Wake();  // not armed: the owner must not sleep
}

// Resets `request`; fails it and returns false if no message can have this tag or peer.
bool UcxEndpoint::Begin(Kind kind, uint32_t peer, Tag tag, Request* request) {
  request->flags = 0;
  request->view = nullptr;
  request->internal = nullptr;
  request->internal_word = kRemote;
  if (tag.generation != generation()) {
    if (kind == Kind::kSend) Count(&dropped_, 1);
    Fail(request, absl::FailedPreconditionError(StrCat("generation ", tag.generation,
                                                       " of channel ", tag.channel,
                                                       " is not the transport's, ", generation())));
    return false;
  }
  if (tag.channel >= options_.transport.num_channels) {
    if (kind == Kind::kSend) Count(&dropped_, 1);
    Fail(request, absl::InvalidArgumentError(StrCat("there is no channel ", tag.channel,
                                                    ": the transport has ",
                                                    options_.transport.num_channels)));
    return false;
  }
  const Peer& other = *peers_[peer];
  if (other.is_failed || other.ep == nullptr) {
    Fail(request, other.is_failed ? other.failure
                                  : absl::FailedPreconditionError(
                                        StrCat("device ", device_, " is not connected to ", peer)));
    return false;
  }
  request->state = Request::State::kPending;
  if (!request->status.ok()) request->status = absl::OkStatus();
  return true;
}

// Ends the requests of `ended_`; returns whether there were any.
bool UcxEndpoint::EndRequests() {
  bool changed = false;
  while (!ended_.empty()) {
    Operation* operation = ended_.PopFront();
    Request* request = std::exchange(operation->request, nullptr);
    changed = true;
    if (operation->status.ok()) {
      request->internal = nullptr;
      if (operation->is_view) {  // kept until it is released
        request->internal = operation;
        request->view = operation->data;
        request->flags = operation->header.flags;
        request->state = Request::State::kDone;
        continue;
      }
      if (operation->kind == Kind::kReceive) request->flags = operation->header.flags;
      request->state = Request::State::kDone;
    } else {
      Fail(request, operation->status);
    }
    if (!operation->is_transferring) Recycle(operation);  // else UCX has yet to let go of it
  }
  return changed;
}

// --- Operations ----------------------------------------------------------------------------------

UcxEndpoint::Operation* UcxEndpoint::Acquire(Kind kind, uint32_t peer) {
  if (free_.empty()) {
    const auto first = static_cast<uint32_t>(blocks_.size() * 64);
    blocks_.push_back(std::make_unique<std::array<Operation, 64>>());
    for (uint32_t i = 0; i < 64; ++i) {
      Operation& operation = (*blocks_.back())[i];
      operation.endpoint = this;
      operation.id.index = first + i;
      free_.PushBack(&operation);
    }
  }
  Operation* operation = free_.PopFront();
  operation->kind = kind;
  operation->peer = peer;
  return operation;
}

void UcxEndpoint::Recycle(Operation* operation) {
  ++operation->id.use;
  if (operation->is_view) FreeView(operation);
  operation->kind = Kind::kFree;
  operation->request = nullptr;
  operation->is_transferring = operation->is_over = operation->is_withdrawing = false;
  operation->has_outcome = false;
  operation->source = Source::kEager;
  operation->seconds = 0;
  if (!operation->status.ok()) operation->status = absl::OkStatus();
  if (!operation->reason.ok()) operation->reason = absl::OkStatus();
  free_.PushFront(operation);
}

// The send to `peer` that bears the name, if it is still waiting for its outcome.
UcxEndpoint::Operation* UcxEndpoint::Find(OperationId id, uint32_t peer) {
  if (id.index >= blocks_.size() * 64) return nullptr;
  Operation* operation = &(*blocks_[id.index / 64])[id.index % 64];
  const bool is_it = operation->kind == Kind::kSend && operation->id == id &&
                     operation->peer == peer && !operation->has_outcome && !operation->is_over;
  return is_it ? operation : nullptr;
}

UcxEndpoint::Match& UcxEndpoint::MatchOf(Peer& peer, uint64_t channel) {
  std::unique_ptr<Page>& page = peer.pages[channel / kPageChannels];
  if (page == nullptr) page = std::make_unique<Page>();
  return (*page)[channel % kPageChannels];
}

const UcxEndpoint::Region* UcxEndpoint::FindRegion(const void* data, size_t num_bytes) const {
  const auto begin = reinterpret_cast<uintptr_t>(data);
  for (const Region& region : memory_) {
    const uintptr_t offset = begin - reinterpret_cast<uintptr_t>(region.begin);
    if (offset <= region.num_bytes && num_bytes <= region.num_bytes - offset) return &region;
  }
  return nullptr;
}

// To be told to the request by the owner.
void UcxEndpoint::End(Operation* operation, absl::Status status) {
  operation->is_over = true;
  operation->status = std::move(status);
  ended_.PushBack(operation);
}

// --- Sending -------------------------------------------------------------------------------------

void UcxEndpoint::Start(Operation* send) {
  Peer& peer = *peers_[send->peer];
  send->header.origin = OriginFor(peer);
  send->is_transferring = true;
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &OnSent;
  param.user_data = send;
  const size_t num_bytes = send->header.num_bytes;
  param.flags = num_bytes <= kMaxEagerBytes ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  if (send->memory != nullptr) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = send->memory;
  }
  ucs_status_ptr_t request = ucp_am_send_nbx(peer.ep, kMessageId, &send->header,
                                             sizeof(send->header), send->data, num_bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) OnSent(nullptr, UCS_PTR_STATUS(request), send);
}

void UcxEndpoint::OnSent(void* request, ucs_status_t status, void* operation) {
  if (request != nullptr) ucp_request_free(request);
  auto* send = static_cast<Operation*>(operation);
  UcxEndpoint& self = *send->endpoint;
  send->is_transferring = false;
  if (send->is_over) {
    if (send->request == nullptr) self.Recycle(send);
  } else if (status != UCS_OK && !send->has_outcome) {
    const Peer& peer = *self.peers_[send->peer];
    self.End(send, peer.is_failed ? peer.failure
                                  : FromUcs(status, StrCat("sending to device ", peer.device,
                                                           " on channel ", send->header.channel)));
  } else {
    self.EndIfOver(send);
  }
}

// A send is over when its receiver has said what became of it and UCX has let go of its bytes.
void UcxEndpoint::EndIfOver(Operation* send) {
  if (!send->has_outcome || send->is_transferring) return;
  switch (send->outcome.kind) {
    case Outcome::kDelivered:
      End(send, absl::OkStatus());
      break;
    case Outcome::kSizeMismatch:
      End(send, SizeMismatch(device_, send->peer, send->header.channel, send->header.num_bytes,
                             send->outcome.expected_bytes));
      break;
    default:
      End(send, send->is_withdrawing
                    ? send->reason
                    : absl::DataLossError(StrCat("device ", send->peer, " gave back a message on ",
                                                 "channel ", send->header.channel, " unasked")));
  }
}

void UcxEndpoint::Withdraw(Operation* send, const absl::Status& reason) {
  send->is_withdrawing = true;
  send->reason = reason;
  send->seconds = 0;
  Peer& peer = *peers_[send->peer];
  if (peer.is_failed || send->has_outcome) return;  // it ends anyway
  ControlMessage* message = AcquireControl();
  message->withdrawal = {OriginFor(peer), send->id, send->header.channel};
  SendControl(peer, kWithdrawalId, message, &message->withdrawal, sizeof(message->withdrawal));
}

UcxEndpoint::ControlMessage* UcxEndpoint::AcquireControl() {
  if (free_controls_.empty()) {
    controls_.push_back(std::make_unique<ControlMessage>());
    controls_.back()->endpoint = this;
    return controls_.back().get();
  }
  return free_controls_.PopFront();
}

void UcxEndpoint::SendControl(Peer& peer, unsigned id, ControlMessage* message, const void* bytes,
                              size_t num_bytes) {
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &OnControlSent;
  param.user_data = message;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  ucs_status_ptr_t request = ucp_am_send_nbx(peer.ep, id, bytes, num_bytes, nullptr, 0, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  OnControlSent(nullptr, UCS_PTR_STATUS(request), message);
  // What the peer was to be told is lost: there is no going on with it.
  if (UCS_PTR_IS_ERR(request)) NoteFailure(peer, FromUcs(UCS_PTR_STATUS(request), "answering"));
}

void UcxEndpoint::OnControlSent(void* request, ucs_status_t /*status*/, void* message) {
  if (request != nullptr) ucp_request_free(request);
  auto* control = static_cast<ControlMessage*>(message);
  control->endpoint->free_controls_.PushBack(control);
}

void UcxEndpoint::Greet(Peer& peer) {
  ControlMessage* message = AcquireControl();
  message->outcomes.origin = OriginFor(peer);
  SendControl(peer, kOutcomesId, message, &message->outcomes, sizeof(Origin));
}

// A process that dies while it writes into our shared receive queue blocks what comes behind, from
// whomever. So the others are asked for a sign of life when a peer has failed.
void UcxEndpoint::Probe(Peer& peer) {
  peer.is_probed = true;
  peer.seconds_since_probe = 0;
  ControlMessage* message = AcquireControl();
  message->outcomes.origin = OriginFor(peer);
  SendControl(peer, kProbeId, message, &message->outcomes, sizeof(Origin));
}

void UcxEndpoint::Answer(Peer& peer, OperationId operation, Outcome::Kind kind,
                         uint64_t expected_bytes) {
  if (peer.is_failed || peer.ep == nullptr || is_closing_) return;
  if (peer.pending == nullptr) {
    peer.pending = AcquireControl();
    peer.pending->outcomes.origin = OriginFor(peer);
    peer.num_pending = 0;
    answered_.push_back(&peer);
  }
  Outcome& outcome = peer.pending->outcomes.outcomes[peer.num_pending++];
  outcome = {operation, kind, 0, expected_bytes};
  if (peer.num_pending == kMaxOutcomes) FlushOutcomes();
}

void UcxEndpoint::FlushOutcomes() {
  while (!answered_.empty()) {
    Peer& peer = *answered_.back();
    answered_.pop_back();
    ControlMessage* message = std::exchange(peer.pending, nullptr);
    if (peer.is_failed) {
      free_controls_.PushBack(message);
    } else {
      SendControl(peer, kOutcomesId, message, &message->outcomes,
                  sizeof(Origin) + peer.num_pending * sizeof(Outcome));
    }
  }
}

// --- Receiving -----------------------------------------------------------------------------------

UcxEndpoint::Peer* UcxEndpoint::Admit(const Origin& origin) {
  if (origin.key == address_.key && origin.generation == generation() &&
      origin.source < peers_.size() && !is_closing_) {
    Peer* peer = peers_[origin.source].get();
    if (peer != nullptr && !peer->is_failed) {
      peer->is_probed = false;
      peer->is_heard = true;
      return peer;
    }
  }
  Count(&dropped_, 1);
  return nullptr;
}

ucs_status_t UcxEndpoint::OnMessage(void* self, const void* header, size_t header_length,
                                    void* data, size_t length, const ucp_am_recv_param_t* param) {
  auto& endpoint = *static_cast<UcxEndpoint*>(self);
  Incoming incoming;
  incoming.data = data;
  const bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  incoming.source = is_rendezvous ? Source::kRendezvous : Source::kEager;
  if (header_length != sizeof(incoming.header)) {
    Count(&endpoint.dropped_, 1);
    return UCS_OK;
  }
  std::memcpy(&incoming.header, header, sizeof(incoming.header));
  const MessageHeader& message = incoming.header;
  Peer* peer = endpoint.Admit(message.origin);
  if (peer == nullptr) return UCS_OK;
  if (message.channel >= endpoint.options_.transport.num_channels || message.num_bytes != length ||
      !peer->received.MayAccept(message.serial) || (!is_rendezvous && length > kMaxEagerBytes)) {
    Count(&endpoint.dropped_, 1);
    return UCS_OK;
  }
  peer->received.Accept(message.serial);
  if (is_rendezvous && message.place != kNoPlace && peer->memory != nullptr) {
    if (const std::byte* bytes = peer->memory->Find(message.place, message.num_bytes)) {
      incoming.source = Source::kShared;
      incoming.data = const_cast<std::byte*>(bytes);  // only read
    }
  }
  return endpoint.Arrive(incoming) ? UCS_INPROGRESS : UCS_OK;
}

bool UcxEndpoint::Arrive(const Incoming& incoming) {
  const MessageHeader& message = incoming.header;
  Peer& peer = *peers_[message.origin.source];
  Match& match = MatchOf(peer, message.channel);
  const auto has_tag = [&message](const Operation& operation) {
    return operation.header.sequence == message.sequence;
  };
  Operation* receive = match.posted.RemoveFirst(has_tag);
  if (receive != nullptr) return Deliver(incoming, receive);
  if (peer.num_arrived == kMaxArrived) {
    NoteFailure(peer, absl::ResourceExhaustedError(
                          StrCat(kMaxArrived, " of its messages wait for receives")));
    return false;
  }
  Operation* arrival = Acquire(Kind::kArrival, peer.device);
  arrival->header = message;
  arrival->source = incoming.source;
  arrival->data = incoming.data;
  if (incoming.source == Source::kEager) {
    arrival->data = AcquireHeld();
    if (message.num_bytes > 0) std::memcpy(arrival->data, incoming.data, message.num_bytes);
  }
  ++peer.num_arrived;
  match.arrived.PushBack(arrival);
  return incoming.source == Source::kRendezvous;
}

std::byte* UcxEndpoint::AcquireHeld() {
  if (free_held_.empty()) {
    held_.push_back(std::make_unique_for_overwrite<std::byte[]>(kMaxEagerBytes));
    free_held_.reserve(held_.size());
    return held_.back().get();
  }
  std::byte* held = free_held_.back();
  free_held_.pop_back();
  return held;
}

UcxEndpoint::Staging UcxEndpoint::AcquireStaging(size_t num_bytes) {
  const auto found =
      std::find_if(free_staging_.begin(), free_staging_.end(),
                   [num_bytes](const Staging& staging) { return staging.num_bytes >= num_bytes; });
  if (found == free_staging_.end()) {
    return {std::make_unique_for_overwrite<std::byte[]>(num_bytes), num_bytes};
  }
  std::swap(*found, free_staging_.back());
  Staging staging = std::move(free_staging_.back());
  free_staging_.pop_back();
  return staging;
}

// Of a view that is recycled: its bytes, if they were held here.
void UcxEndpoint::FreeView(Operation* view) {
  view->is_view = false;
  if (view->staging.bytes != nullptr) {
    free_staging_.push_back(std::move(view->staging));
    view->staging = {};
  } else if (view->source == Source::kEager && view->data != nullptr) {
    free_held_.push_back(static_cast<std::byte*>(view->data));
  }
  view->data = nullptr;
}

bool UcxEndpoint::Deliver(const Incoming& incoming, Operation* receive) {
  const MessageHeader& message = incoming.header;
  Peer& peer = *peers_[receive->peer];
  const uint64_t expected_bytes = receive->header.num_bytes;
  if (message.num_bytes != expected_bytes) {
    Answer(peer, message.operation, Outcome::kSizeMismatch, expected_bytes);
    Refuse(incoming);
    End(receive,
        SizeMismatch(peer.device, device_, message.channel, message.num_bytes, expected_bytes));
    return incoming.source == Source::kRendezvous && incoming.is_held;
  }
  receive->header.flags = message.flags;
  receive->header.operation = message.operation;
  if (incoming.source != Source::kRendezvous) {
    const bool is_eager = incoming.source == Source::kEager;
    if (receive->is_view && (incoming.is_held || !is_eager)) {
      receive->source = incoming.source;
      receive->data = incoming.data;
    } else {
      if (receive->is_view) receive->data = AcquireHeld();
      if (message.num_bytes >= kStreamBytes) {
        StreamCopy(receive->data, incoming.data, message.num_bytes);
      } else if (message.num_bytes > 0) {
        std::memcpy(receive->data, incoming.data, message.num_bytes);
      }
      if (incoming.is_held && is_eager) {
        free_held_.push_back(static_cast<std::byte*>(incoming.data));
      }
    }
    OnReceived(nullptr, UCS_OK, message.num_bytes, receive);
    return false;
  }
  if (receive->is_view) {
    receive->source = Source::kRendezvous;
    receive->staging = AcquireStaging(expected_bytes);
    receive->data = receive->staging.bytes.get();
  }
  receive->descriptor = incoming.data;
  peer.waiting.PushBack(receive);
  StartTransfers(peer);
  return true;
}

// What is on its way from `peer` is bounded, so that what comes later and is more urgent is not
// behind all of it.
void UcxEndpoint::StartTransfers(Peer& peer) {
  if (peer.is_starting || is_closing_) return;
  peer.is_starting = true;
  while (!peer.waiting.empty() && !peer.is_failed &&
         (peer.num_transfers < kMinTransfers || peer.transfer_bytes < kMaxTransferBytes)) {
    Operation* receive = peer.waiting.front();
    for (Operation* other = receive->next; other != nullptr; other = other->next) {
      if (other->header.channel < receive->header.channel) receive = other;
    }
    peer.waiting.RemoveFirst([receive](const Operation& other) { return &other == receive; });
    ++peer.num_transfers;
    peer.transfer_bytes += receive->header.num_bytes;
    receive->is_transferring = true;
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.recv_am = &OnReceived;
    param.user_data = receive;
    if (receive->memory != nullptr) {
      param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
      param.memh = receive->memory;
    }
    const size_t num_bytes = receive->header.num_bytes;
    ucs_status_ptr_t request = ucp_am_recv_data_nbx(
        worker_, std::exchange(receive->descriptor, nullptr), receive->data, num_bytes, &param);
    if (!UCS_PTR_IS_PTR(request)) {
      OnReceived(nullptr, UCS_PTR_STATUS(request), num_bytes, receive);
    }
  }
  peer.is_starting = false;
}

// Of a peer that is gone, or of an endpoint that closes.
void UcxEndpoint::DropWaiting(Peer& peer) {
  while (!peer.waiting.empty()) {
    ucp_am_data_release(worker_, std::exchange(peer.waiting.PopFront()->descriptor, nullptr));
  }
}

void UcxEndpoint::OnReceived(void* request, ucs_status_t status, size_t length, void* operation) {
  if (request != nullptr) ucp_request_free(request);
  auto* receive = static_cast<Operation*>(operation);
  UcxEndpoint& self = *receive->endpoint;
  Peer& peer = *self.peers_[receive->peer];
  if (std::exchange(receive->is_transferring, false)) {
    --peer.num_transfers;
    peer.transfer_bytes -= receive->header.num_bytes;
    self.StartTransfers(peer);
  }
  if (receive->is_over) {
    if (receive->request == nullptr) self.Recycle(receive);
    return;
  }
  if (status == UCS_OK && length == receive->header.num_bytes) {
    Count(&self.messages_, 1);
    Count(&self.bytes_, length);
    if (!receive->is_view) {
      self.Answer(peer, receive->header.operation, Outcome::kDelivered, 0);
    }
    self.End(receive, absl::OkStatus());
    return;
  }
  if (status == UCS_OK) status = UCS_ERR_MESSAGE_TRUNCATED;
  self.End(receive, peer.is_failed
                        ? peer.failure
                        : FromUcs(status, StrCat("receiving from device ", peer.device,
                                                 " on channel ", receive->header.channel)));
}

// The bytes of a message are not wanted. Inside UCX's callback nothing needs to be done.
void UcxEndpoint::Refuse(const Incoming& incoming) {
  if (!incoming.is_held) return;
  if (incoming.source == Source::kRendezvous) {
    ucp_am_data_release(worker_, incoming.data);
  } else if (incoming.source == Source::kEager) {
    free_held_.push_back(static_cast<std::byte*>(incoming.data));
  }
}

void UcxEndpoint::ReleaseArrival(Operation* arrival) {
  --peers_[arrival->peer]->num_arrived;
  Refuse({arrival->header, arrival->data, arrival->source, true});
  Recycle(arrival);
}

ucs_status_t UcxEndpoint::OnOutcomes(void* self, const void* header, size_t header_length,
                                     void* /*data*/, size_t length,
                                     const ucp_am_recv_param_t* /*param*/) {
  auto& endpoint = *static_cast<UcxEndpoint*>(self);
  Origin origin;
  if (length != 0 || header_length < sizeof(origin) || header_length > sizeof(Outcomes) ||
      (header_length - sizeof(origin)) % sizeof(Outcome) != 0) {
    Count(&endpoint.dropped_, 1);
    return UCS_OK;
  }
  std::memcpy(&origin, header, sizeof(origin));
  if (endpoint.Admit(origin) == nullptr) return UCS_OK;
  const auto* bytes = static_cast<const std::byte*>(header);
  for (size_t at = sizeof(origin); at < header_length; at += sizeof(Outcome)) {
    Outcome outcome;
    std::memcpy(&outcome, bytes + at, sizeof(outcome));
    Operation* send = endpoint.Find(outcome.operation, origin.source);
    if (send == nullptr) {
      Count(&endpoint.dropped_, 1);
      continue;
    }
    send->outcome = outcome;
    send->has_outcome = true;
    endpoint.EndIfOver(send);
  }
  return UCS_OK;
}

ucs_status_t UcxEndpoint::OnWithdrawal(void* self, const void* header, size_t header_length,
                                       void* /*data*/, size_t length,
                                       const ucp_am_recv_param_t* /*param*/) {
  auto& endpoint = *static_cast<UcxEndpoint*>(self);
  Withdrawal withdrawal;
  if (length != 0 || header_length != sizeof(withdrawal)) {
    Count(&endpoint.dropped_, 1);
    return UCS_OK;
  }
  std::memcpy(&withdrawal, header, sizeof(withdrawal));
  Peer* peer = endpoint.Admit(withdrawal.origin);
  if (peer == nullptr) return UCS_OK;
  if (withdrawal.channel >= endpoint.options_.transport.num_channels) {
    Count(&endpoint.dropped_, 1);
    return UCS_OK;
  }
  Match& match = endpoint.MatchOf(*peer, withdrawal.channel);
  Operation* arrival = match.arrived.RemoveFirst([&withdrawal](const Operation& operation) {
    return operation.header.operation == withdrawal.operation;
  });
  if (arrival == nullptr) return UCS_OK;  // taken: the outcome says so
  endpoint.Answer(*peer, withdrawal.operation, Outcome::kWithdrawn, 0);
  endpoint.ReleaseArrival(arrival);
  return UCS_OK;
}

ucs_status_t UcxEndpoint::OnProbe(void* self, const void* header, size_t header_length,
                                  void* /*data*/, size_t length,
                                  const ucp_am_recv_param_t* /*param*/) {
  auto& endpoint = *static_cast<UcxEndpoint*>(self);
  Origin origin;
  if (length != 0 || header_length != sizeof(origin)) {
    Count(&endpoint.dropped_, 1);
    return UCS_OK;
  }
  std::memcpy(&origin, header, sizeof(origin));
  Peer* peer = endpoint.Admit(origin);
  if (peer != nullptr && peer->ep != nullptr) endpoint.Greet(*peer);
  return UCS_OK;
}

absl::Status UcxEndpoint::SizeMismatch(uint32_t source, uint32_t destination, uint64_t channel,
                                       uint64_t num_bytes, uint64_t expected_bytes) const {
  return absl::InvalidArgumentError(StrCat("device ", source, " sent ", num_bytes,
                                           " bytes on channel ", channel, " where device ",
                                           destination, " expects ", expected_bytes));
}

// --- Failures and bounds -------------------------------------------------------------------------

void UcxEndpoint::OnPeerError(void* peer, ucp_ep_h /*ep*/, ucs_status_t status) {
  auto* failed = static_cast<Peer*>(peer);
  failed->endpoint->NoteFailure(*failed, absl::UnavailableError(ucs_status_string(status)));
}

void UcxEndpoint::NoteFailure(Peer& peer, const absl::Status& cause) {
  if (peer.is_failed) return;
  peer.is_failed = true;
  peer.failure =
      absl::UnavailableError(StrCat("device ", peer.device, " is gone: ", ToStd(cause.message())));
  has_failures_ = true;
}

void UcxEndpoint::FailPeer(uint32_t device, const absl::Status& cause) {
  const Turn turn(this);
  NoteFailure(*peers_[device], cause);
  Wake();
}

void UcxEndpoint::FailPeers() {
  has_failures_ = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer != nullptr && peer->is_failed && !peer->is_closed) FailOperations(*peer);
  }
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer != nullptr && peer->ep != nullptr && !peer->is_failed) Probe(*peer);
  }
}

// Ends all operations of a failed peer but those that UCX holds: closing makes it let go of them.
void UcxEndpoint::FailOperations(Peer& peer) {
  peer.is_closed = true;
  for (const std::unique_ptr<Page>& page : peer.pages) {
    if (page == nullptr) continue;
    for (Match& match : *page) {
      match.posted = {};
      while (!match.arrived.empty()) ReleaseArrival(match.arrived.PopFront());
    }
  }
  DropWaiting(peer);
  for (const auto& block : blocks_) {
    for (Operation& operation : *block) {
      if (operation.peer == peer.device && operation.request != nullptr && !operation.is_over &&
          !operation.is_transferring) {
        End(&operation, peer.failure);
      }
    }
  }
  if (peer.ep == nullptr) return;
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = UCP_EP_CLOSE_FLAG_FORCE;
  ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(peer.ep, nullptr), &param);
  if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
}

void UcxEndpoint::Age() {
  const Turn turn(this);
  const int64_t answer = options_.answer_timeout.count();
  bool has_expired = false;
  for (const std::unique_ptr<Peer>& peer : peers_) {
    if (peer == nullptr) continue;
    if (peer->is_failed) {
      ++peer->seconds_since_failure;
    } else if (peer->is_probed && ++peer->seconds_since_probe > answer) {
      NoteFailure(*peer, absl::DeadlineExceededError("it is silent since another peer has failed"));
      has_expired = true;
    }
  }
  for (const auto& block : blocks_) {
    for (Operation& operation : *block) {
      if (operation.request == nullptr || operation.is_over) continue;
      ++operation.seconds;
      has_expired |= operation.seconds >
                         (operation.is_withdrawing ? answer : options_.request_timeout.count()) ||
                     peers_[operation.peer]->seconds_since_failure > answer;
    }
  }
  if (!has_expired) return;
  has_expired_ = true;
  Wake();
}

void UcxEndpoint::Expire() {
  has_expired_ = false;
  const int64_t answer = options_.answer_timeout.count();
  for (const auto& block : blocks_) {
    for (Operation& operation : *block) {
      if (operation.request == nullptr || operation.is_over) continue;
      Peer& peer = *peers_[operation.peer];
      const auto late = absl::DeadlineExceededError(
          StrCat("device ", device_, operation.kind == Kind::kSend ? " sent to" : " waited for",
                 " device ", peer.device, " on channel ", operation.header.channel, " for ",
                 operation.seconds, " s"));
      if (peer.is_failed) {
        if (peer.seconds_since_failure > answer) End(&operation, peer.failure);
      } else if (operation.is_withdrawing) {
        if (operation.seconds > answer) NoteFailure(peer, late);
      } else if (operation.seconds > options_.request_timeout.count()) {
        if (operation.kind == Kind::kSend) {
          Withdraw(&operation, late);
          continue;
        }
        Match& match = MatchOf(peer, operation.header.channel);
        const auto is_it = [&operation](const Operation& other) { return &other == &operation; };
        if (match.posted.RemoveFirst(is_it) != nullptr) {
          End(&operation, late);
        } else {
          NoteFailure(peer, late);
        }
      }
    }
  }
  if (has_failures_) FailPeers();
}

// --- Turns ---------------------------------------------------------------------------------------

void UcxEndpoint::WaitForTurn() {
  do {
    std::this_thread::yield();
  } while (is_taken_.exchange(true, std::memory_order_acquire));
}

absl::Status UcxEndpoint::Watch(int watch_fd, uint32_t index) {
  watch_fd_ = watch_fd;
  watch_index_ = index;
  epoll_event event = {};
  event.data.u32 = index;  // nothing is asked for before Arm
  if (epoll_ctl(watch_fd_, EPOLL_CTL_ADD, event_fd_, &event) != 0) {
    return absl::ErrnoToStatus(errno, "epoll_ctl");
  }
  return absl::OkStatus();
}

// With the turn. An armed worker either has its descriptor readable or is still armed, until
// somebody arms it again.
bool UcxEndpoint::Arm() {
  if (ucp_worker_arm(worker_) != UCS_OK) return false;
  epoll_event event = {};
  event.events = EPOLLIN | EPOLLONESHOT;
  event.data.u32 = watch_index_;
  epoll_ctl(watch_fd_, EPOLL_CTL_MOD, event_fd_, &event);
  return true;
}

void UcxEndpoint::OnArrival() { Wake(); }

}  // namespace penstock::transport::ucx
