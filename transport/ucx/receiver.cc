#include "transport/ucx/receiver.h"

#include <cstring>
#include <utility>

#include "base/copy_bytes.h"
#include "base/strings.h"
#include "transport/ucx/ucx_status.h"

namespace penstock::transport::ucx {
namespace {

// Unexpected messages of one peer; more are an attack or the result of a broken plan.
constexpr uint32_t kMaxUnexpected = 1 << 16;

// Without the callback.
ucp_request_param_t FetchParam(ucp_mem_h memory) {
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  if (memory != nullptr) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = memory;
  }
  return param;
}

}  // namespace

Receiver::Receiver(const UcxOptions& options, uint32_t device, Peers* peers, ControlSender* control,
                   MessageCounters* counters, Transfers* network, std::function<void()> wake)
    : options_(options),
      device_(device),
      peers_(*peers),
      control_(*control),
      counters_(*counters),
      starter_{[this, wake = std::move(wake)] {
        may_start_.store(true, std::memory_order_release);
        wake();
      }},
      network_transfers_(*network) {
  sources_.reserve(peers->all().size());
  for (size_t i = 0; i < peers->all().size(); ++i) {
    sources_.emplace_back(options.transport.num_channels);
    sources_.back().flow.starter = &starter_;
  }
}

// --- Requests ------------------------------------------------------------------------------------

bool Receiver::Recv(Peer& peer, Tag tag, void* data, size_t num_bytes, ucp_mem_h memory,
                    Request* request) {
  ReceiveOperation* receive = receives_.Acquire(peer.device, request);
  receive->data = data;
  receive->memory = memory;
  return Post(peer, tag, num_bytes, receive);
}

bool Receiver::View(Peer& peer, Tag tag, size_t num_bytes, Request* request) {
  ReceiveOperation* receive = receives_.Acquire(peer.device, request);
  receive->data = nullptr;
  receive->memory = nullptr;
  receive->is_view = true;
  return Post(peer, tag, num_bytes, receive);
}

bool Receiver::Post(Peer& peer, Tag tag, size_t num_bytes, ReceiveOperation* receive) {
  receive->receiver = this;
  receive->sequence = tag.sequence;
  receive->num_bytes = num_bytes;
  receive->channel = tag.channel;
  Source& source = sources_[peer.index];
  Matches::Queues& queues = source.matches[tag.channel];
  Message* message = queues.TakeMessage(tag.sequence);
  if (message == nullptr) {
    queues.AddReceive(receive);
    return false;
  }
  --source.num_unexpected;
  Deliver(peer, *message, receive);
  messages_.Recycle(message);
  return true;
}

void Receiver::Release(Request* request) {
  auto* view = static_cast<ReceiveOperation*>(std::exchange(request->internal, nullptr));
  request->view = nullptr;
  control_.Acknowledge(peers_[view->peer], view->send, Ack::kDelivered);
  Recycle(view);
}

void Receiver::Cancel(Request* request) {
  auto* receive = static_cast<ReceiveOperation*>(request->internal);
  if (receive->is_ended) return;
  Source& source = sources_[peers_[receive->peer].index];
  if (!source.matches[receive->channel].RemoveReceive(receive)) return;
  Recycle(receive);
  Fail(request, absl::CancelledError("the request was cancelled"));
}

bool Receiver::CompleteRequests() {
  if (!receives_.has_ended()) return false;
  while (receives_.has_ended()) {
    const auto [receive, request] = receives_.TakeEnded();
    if (receive->status.ok()) {
      Complete(request);
      request->flags = receive->flags;
      if (receive->is_view) {  // kept until it is released
        request->internal = receive;
        request->view = receive->data;
        continue;
      }
    } else {
      Fail(request, receive->status);
    }
    Recycle(receive);
  }
  return true;
}

void Receiver::Recycle(ReceiveOperation* receive) {
  if (std::exchange(receive->is_view, false)) {
    if (receive->staging.bytes != nullptr) {
      staging_buffers_.Release(std::exchange(receive->staging, {}));
    } else if (receive->location == Location::kEager && receive->data != nullptr) {
      eager_buffers_.Release(receive->data);
    }
  }
  if (std::exchange(receive->in_chunks, false)) DropChunks(receive);
  receive->is_taken = false;
  receive->num_started = receive->num_received = 0;
  receive->chunk_status = UCS_OK;
  receive->location = Location::kEager;
  receives_.Recycle(receive);
}

// --- Messages ------------------------------------------------------------------------------------

ucs_status_t Receiver::OnMessage(void* self, const void* header_bytes, size_t header_length,
                                 void* data, size_t length, const ucp_am_recv_param_t* param) {
  auto& receiver = *static_cast<Receiver*>(self);
  const auto drop = [&receiver] {
    receiver.counters_.CountDropped();
    return UCS_OK;
  };
  Message message;
  MessageHeader& header = message;
  if (header_length != sizeof(header)) return drop();
  std::memcpy(&header, header_bytes, sizeof(header));
  Peer* peer = receiver.peers_.Authenticate(header.origin);
  if (peer == nullptr) return drop();
  const bool is_rendezvous = (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0;
  const bool is_announced = !is_rendezvous && length == 0 && header.num_bytes > kNetworkChunkBytes;
  ReplayWindow& received = receiver.sources_[peer->index].received;
  if (header.channel >= receiver.options_.transport.num_channels ||
      (header.num_bytes != length && !is_announced) || !received.MayAccept(header.serial) ||
      (!is_rendezvous && length > kMaxEagerBytes)) {
    return drop();
  }
  received.Accept(header.serial);
  message.data = data;
  message.location = is_announced    ? Location::kAnnounced
                     : is_rendezvous ? Location::kRendezvous
                                     : Location::kEager;
  if (is_rendezvous && header.place != kNoPlace && peer->memory != nullptr) {
    if (const std::byte* bytes = peer->memory->Find(header.place, header.num_bytes)) {
      message.location = Location::kShared;
      message.data = const_cast<std::byte*>(bytes);  // only read
    }
  }
  return receiver.Arrive(*peer, message) ? UCS_INPROGRESS : UCS_OK;
}

bool Receiver::Arrive(Peer& peer, const Message& message) {
  Source& source = sources_[peer.index];
  Matches::Queues& queues = source.matches[message.channel];
  if (ReceiveOperation* receive = queues.TakeReceive(message.sequence)) {
    return Deliver(peer, message, receive);
  }
  if (source.num_unexpected == kMaxUnexpected) {
    peers_.Fail(peer, absl::ResourceExhaustedError(
                          StrCat(kMaxUnexpected, " of its messages wait for receives")));
    return false;
  }
  Message* kept = messages_.Acquire();
  *kept = message;
  kept->is_unexpected = true;
  if (message.location == Location::kEager) {
    kept->data = eager_buffers_.Acquire();
    CopyBytes(kept->data, message.data, message.num_bytes);
  }
  ++source.num_unexpected;
  queues.AddMessage(kept);
  return message.location == Location::kRendezvous;
}

bool Receiver::Deliver(Peer& peer, const Message& message, ReceiveOperation* receive) {
  if (message.num_bytes != receive->num_bytes) {
    control_.Acknowledge(peer, message.operation, Ack::kSizeMismatch, receive->num_bytes);
    Discard(message);
    receives_.End(receive, SizeMismatch(peer.device, device_, message.channel, message.num_bytes,
                                        receive->num_bytes));
    return false;
  }
  receive->flags = message.flags;
  receive->send = message.operation;
  if (message.location == Location::kShared && !receive->is_view &&
      message.num_bytes > kCopyChunkBytes) {
    receive->is_taken = true;
    copies_.Add(receive, message.data);
    return false;
  }
  const bool is_announced = message.location == Location::kAnnounced;
  if (message.location != Location::kRendezvous && !is_announced) {
    CopyOrShow(message, receive);
    EndReceived(receive, UCS_OK, message.num_bytes);
    return false;
  }
  if (receive->is_view) {
    receive->location = Location::kRendezvous;
    receive->staging = staging_buffers_.Acquire(message.num_bytes);
    receive->data = receive->staging.bytes.get();
  }
  receive->in_chunks = is_announced;
  receive->descriptor = is_announced ? nullptr : message.data;
  receive->flow = &sources_[peer.index].flow;
  receive->is_taken = true;
  TransfersFrom(peer).Add(receive);
  StartTransfers(TransfersFrom(peer));
  return !is_announced;
}

// REQUIRES: the bytes of the message are in the memory of this host.
void Receiver::CopyOrShow(const Message& message, ReceiveOperation* receive) {
  const bool is_eager = message.location == Location::kEager;
  if (receive->is_view && (message.is_unexpected || !is_eager)) {
    receive->location = message.location;
    receive->data = message.data;
    return;
  }
  if (receive->is_view) receive->data = eager_buffers_.Acquire();
  CopyBytes(receive->data, message.data, message.num_bytes);
  Discard(message);
}

bool Receiver::CopyChunk() {
  if (copies_.empty()) return false;
  if (ReceiveOperation* done = copies_.CopyChunk()) EndReceived(done, UCS_OK, done->num_bytes);
  return true;
}

void Receiver::StartTransfers() {
  if (!may_start_.load(std::memory_order_relaxed)) return;
  if (may_start_.exchange(false, std::memory_order_acquire)) StartTransfers(network_transfers_);
}

void Receiver::StartTransfers(Transfers& transfers) {
  // A transfer that finishes at once calls this again.
  if (is_starting_transfers_ || peers_.is_closing()) return;
  is_starting_transfers_ = true;
  for (;;) {
    const Transfers::Chunk next = transfers.StartNext(&starter_);
    ReceiveOperation* receive = next.transfer;
    if (receive == nullptr) break;
    Peer& peer = peers_[receive->peer];
    if (peer.is_failed) {  // FailReceives ends it
      transfers.Finish(receive->flow, next.num_bytes);
      transfers.Remove(receive);
      continue;
    }
    receive->seconds = 0;
    if (!receive->in_chunks) {
      FetchWhole(receive);
      continue;
    }
    Chunk* chunk = chunks_.Acquire();
    chunk->receive = receive;
    chunk->offset = next.offset;
    chunk->num_bytes = next.num_bytes;
    receive->requested.PushBack(chunk);
    control_.RequestChunk(peer, receive->send, receive->id, chunk->offset);
  }
  is_starting_transfers_ = false;
}

void Receiver::FetchWhole(ReceiveOperation* receive) {
  receive->is_transferring = true;
  ucp_request_param_t param = FetchParam(receive->memory);
  param.cb.recv_am = &OnReceived;
  param.user_data = receive;
  const size_t num_bytes = receive->num_bytes;
  ucs_status_ptr_t request = ucp_am_recv_data_nbx(
      worker_, std::exchange(receive->descriptor, nullptr), receive->data, num_bytes, &param);
  if (!UCS_PTR_IS_PTR(request)) OnReceived(nullptr, UCS_PTR_STATUS(request), num_bytes, receive);
}

void Receiver::OnReceived(void* request, ucs_status_t status, size_t length, void* operation) {
  if (request != nullptr) ucp_request_free(request);
  auto* receive = static_cast<ReceiveOperation*>(operation);
  Receiver& self = *receive->receiver;
  Peer& peer = self.peers_[receive->peer];
  receive->is_transferring = false;
  Transfers& transfers = self.TransfersFrom(peer);
  transfers.Finish(receive->flow, receive->num_bytes);
  self.StartTransfers(transfers);
  self.EndReceived(receive, status, length);
}

ucs_status_t Receiver::OnChunk(void* self, const void* header_bytes, size_t header_length,
                               void* data, size_t length, const ucp_am_recv_param_t* param) {
  auto& receiver = *static_cast<Receiver*>(self);
  const auto drop = [&receiver] {
    receiver.counters_.CountDropped();
    return UCS_OK;
  };
  ChunkHeader header;
  if (header_length != sizeof(header)) return drop();
  std::memcpy(&header, header_bytes, sizeof(header));
  Peer* peer = receiver.peers_.Authenticate(header.origin);
  ReceiveOperation* receive = receiver.receives_.Find(header.receive);
  if (peer == nullptr || receive == nullptr || receive->peer != peer->device) return drop();
  Chunk* chunk = receive->requested.RemoveFirst([&header, length](const Chunk& requested) {
    return requested.offset == header.offset && requested.num_bytes == length;
  });
  if (chunk == nullptr) return drop();
  ++receive->num_writing;
  receive->is_transferring = true;
  std::byte* const to = static_cast<std::byte*>(receive->data) + chunk->offset;
  if ((param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) == 0) {
    CopyBytes(to, data, length);
    receiver.FinishChunk(chunk, UCS_OK, length);
    return UCS_OK;
  }
  ucp_request_param_t fetch = FetchParam(receive->memory);
  fetch.cb.recv_am = &OnChunkReceived;
  fetch.user_data = chunk;
  ucs_status_ptr_t request = ucp_am_recv_data_nbx(receiver.worker_, data, to, length, &fetch);
  if (!UCS_PTR_IS_PTR(request)) OnChunkReceived(nullptr, UCS_PTR_STATUS(request), length, chunk);
  return UCS_INPROGRESS;
}

void Receiver::OnChunkReceived(void* request, ucs_status_t status, size_t length, void* chunk) {
  if (request != nullptr) ucp_request_free(request);
  auto* received = static_cast<Chunk*>(chunk);
  received->receive->receiver->FinishChunk(received, status, length);
}

void Receiver::FinishChunk(Chunk* chunk, ucs_status_t status, size_t num_bytes) {
  ReceiveOperation* receive = chunk->receive;
  Peer& peer = peers_[receive->peer];
  if (status == UCS_OK && num_bytes != chunk->num_bytes) status = UCS_ERR_MESSAGE_TRUNCATED;
  if (status == UCS_OK) {
    receive->num_received += num_bytes;
    receive->seconds = 0;  // it goes on
  } else {
    receive->chunk_status = status;
    // The sender would wait for an answer, and UCX may keep the chunk.
    if (!peer.is_failed) {
      peers_.Fail(peer, FromUcs(status, StrCat("receiving from device ", peer.device)));
    }
  }
  receive->is_transferring = --receive->num_writing > 0;
  Transfers& transfers = TransfersFrom(peer);
  transfers.Finish(receive->flow, chunk->num_bytes);
  chunks_.Recycle(chunk);
  if (receive->chunk_status != UCS_OK || peer.is_failed) DropChunks(receive);
  const bool has_ended =
      !receive->is_transferring && (receive->chunk_status != UCS_OK || peer.is_failed ||
                                    receive->num_received == receive->num_bytes);
  StartTransfers(transfers);
  if (has_ended) EndReceived(receive, receive->chunk_status, receive->num_received);
}

void Receiver::DropChunks(ReceiveOperation* receive) {
  Transfers& transfers = TransfersFrom(peers_[receive->peer]);
  transfers.Remove(receive);
  while (!receive->requested.empty()) {
    Chunk* chunk = receive->requested.PopFront();
    transfers.Finish(receive->flow, chunk->num_bytes);
    chunks_.Recycle(chunk);
  }
}

void Receiver::DropDescriptor(ReceiveOperation* receive) {
  if (receive->descriptor == nullptr) return;
  ucp_am_data_release(worker_, std::exchange(receive->descriptor, nullptr));
}

void Receiver::EndReceived(ReceiveOperation* receive, ucs_status_t status, size_t num_bytes) {
  Peer& peer = peers_[receive->peer];
  if (status == UCS_OK && num_bytes == receive->num_bytes) {
    counters_.CountMessage(num_bytes);
    if (!receive->is_view) control_.Acknowledge(peer, receive->send, Ack::kDelivered);
    receives_.End(receive, absl::OkStatus());
    return;
  }
  if (status == UCS_OK) status = UCS_ERR_MESSAGE_TRUNCATED;
  receives_.End(receive, peer.is_failed
                             ? peer.failure
                             : FromUcs(status, StrCat("receiving from device ", peer.device,
                                                      " on channel ", receive->channel)));
}

ucs_status_t Receiver::OnCancelRequest(void* self, const void* header, size_t header_length,
                                       void* /*data*/, size_t length,
                                       const ucp_am_recv_param_t* /*param*/) {
  auto& receiver = *static_cast<Receiver*>(self);
  const auto drop = [&receiver] {
    receiver.counters_.CountDropped();
    return UCS_OK;
  };
  CancelRequest cancel;
  if (length != 0 || header_length != sizeof(cancel)) return drop();
  std::memcpy(&cancel, header, sizeof(cancel));
  Peer* peer = receiver.peers_.Authenticate(cancel.origin);
  if (peer == nullptr || cancel.channel >= receiver.options_.transport.num_channels) return drop();
  Source& source = receiver.sources_[peer->index];
  Message* message = source.matches[static_cast<uint32_t>(cancel.channel)].RemoveMessage(
      [&cancel](const Message& other) { return other.operation == cancel.operation; });
  if (message == nullptr) {  // a receive has taken it, and another ack says so in the end
    if (receiver.HasTaken(*peer, cancel.operation)) {
      receiver.control_.Acknowledge(*peer, cancel.operation, Ack::kTaken);
    }
    return UCS_OK;
  }
  receiver.control_.Acknowledge(*peer, cancel.operation, Ack::kCancelled);
  receiver.DropUnexpected(source, message);
  return UCS_OK;
}

bool Receiver::HasTaken(const Peer& peer, OperationId send) {
  bool has_taken = false;
  receives_.ForEachPending([&](const ReceiveOperation& receive) {
    has_taken |= receive.is_taken && receive.peer == peer.device && receive.send == send;
  });
  return has_taken;
}

// The bytes of a message are not needed any more. UCX itself discards those that it has lent to
// OnMessage.
void Receiver::Discard(const Message& message) {
  if (!message.is_unexpected) return;
  if (message.location == Location::kRendezvous) {
    ucp_am_data_release(worker_, message.data);
  } else if (message.location == Location::kEager) {
    eager_buffers_.Release(message.data);
  }
}

// REQUIRES: removed from its queue.
void Receiver::DropUnexpected(Source& source, Message* message) {
  --source.num_unexpected;
  Discard(*message);
  messages_.Recycle(message);
}

void Receiver::DropMessages(Source& source) {
  source.matches.ForEach([this, &source](Matches::Queues& queues) {
    while (Message* message = queues.RemoveFirstMessage()) DropUnexpected(source, message);
  });
  for (Transfers* transfers : {&host_transfers_, &network_transfers_}) {
    while (transfers->RemoveWaiting(&source.flow) != nullptr) {
    }
  }
}

void Receiver::DropMessages() {
  for (Source& source : sources_) DropMessages(source);
  receives_.ForEachPending([this](ReceiveOperation& receive) { DropDescriptor(&receive); });
}

// --- Failures and time limits --------------------------------------------------------------------

void Receiver::FailReceives(const Peer& peer) {
  Source& source = sources_[peer.index];
  source.matches.ForEach([](Matches::Queues& queues) { queues.RemoveAllReceives(); });
  DropMessages(source);
  const auto is_of_peer = [&peer](const ReceiveOperation& receive) {
    return receive.peer == peer.device;
  };
  while (copies_.Remove(is_of_peer) != nullptr) {
  }
  receives_.ForEachPending([this, &peer](ReceiveOperation& receive) {
    if (receive.peer != peer.device) return;
    if (receive.in_chunks) DropChunks(&receive);  // other transfers may take their place
    DropDescriptor(&receive);
    if (!receive.is_transferring) receives_.End(&receive, peer.failure);
  });
  for (Transfers* transfers : {&host_transfers_, &network_transfers_}) StartTransfers(*transfers);
}

bool Receiver::OnSecondPassed() {
  bool has_expired = false;
  receives_.ForEachPending([&](ReceiveOperation& receive) {
    if (receive.waits_for_turn()) return;
    ++receive.seconds;
    has_expired |= receive.seconds > options_.request_timeout.count();
  });
  return has_expired;
}

void Receiver::MarkAwaited() {
  receives_.ForEachPending(
      [&](const ReceiveOperation& receive) { peers_[receive.peer].is_awaited = true; });
}

void Receiver::Expire() {
  receives_.ForEachPending([&](ReceiveOperation& receive) {
    Peer& peer = peers_[receive.peer];
    if (peer.is_failed) return;  // it ends when UCX has let go of its bytes
    if (receive.waits_for_turn()) return;
    if (receive.seconds <= options_.request_timeout.count()) return;
    const auto late = absl::DeadlineExceededError(
        StrCat("device ", device_, " waited for device ", peer.device, " on channel ",
               receive.channel, " for ", receive.seconds, " s"));
    if (sources_[peer.index].matches[receive.channel].RemoveReceive(&receive)) {
      receives_.End(&receive, late);
    } else {
      peers_.Fail(peer, late);
    }
  });
}

void Receiver::CountTransferring(std::vector<uint64_t>* counts) {
  receives_.ForEachTransferring(
      [&](const ReceiveOperation& receive) { ++(*counts)[peers_[receive.peer].index]; });
}

}  // namespace penstock::transport::ucx
