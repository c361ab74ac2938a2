#include "transport/ucx/sender.h"

#include <algorithm>
#include <cstring>

#include "base/strings.h"
#include "transport/ucx/ucx_status.h"

namespace penstock::transport::ucx {
namespace {

// Without the callback.
ucp_request_param_t SendParam(size_t num_bytes, ucp_mem_h memory) {
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.flags = num_bytes <= kMaxEagerBytes ? UCP_AM_SEND_FLAG_EAGER : UCP_AM_SEND_FLAG_RNDV;
  if (memory != nullptr && num_bytes > kMaxEagerBytes) {
    param.op_attr_mask |= UCP_OP_ATTR_FIELD_MEMH;
    param.memh = memory;
  }
  return param;
}

}  // namespace

void Sender::Send(Peer& peer, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
                  const MemoryRegions::Registration& memory, Request* request) {
  SendOperation* send = sends_.Acquire(peer.device, request);
  send->sender = this;
  send->header.origin = peers_.OriginFor(peer);
  send->header.serial = next_serials_[peer.index]++;
  send->header.sequence = tag.sequence;
  send->header.num_bytes = num_bytes;
  send->header.channel = tag.channel;
  send->header.flags = flags;
  send->header.operation = send->id;
  send->header.place = memory.place;
  const bool is_read_in_place = peer.memory != nullptr && memory.place != kNoPlace;
  if (num_bytes > kNetworkChunkBytes && !is_read_in_place) {
    send->chunked = static_cast<const std::byte*>(data);
    send->memory = memory.handle;
    num_bytes = 0;
  }
  send->num_uses = 1;
  send->is_transferring = true;
  ucp_request_param_t param = SendParam(num_bytes, memory.handle);
  param.cb.send = &OnSent;
  param.user_data = send;
  ucs_status_ptr_t sending = ucp_am_send_nbx(peer.ep, kMessageId, &send->header,
                                             sizeof(send->header), data, num_bytes, &param);
  if (!UCS_PTR_IS_PTR(sending)) OnSent(nullptr, UCS_PTR_STATUS(sending), send);
}

void Sender::SendChunk(Peer& peer, SendOperation* send, const FetchRequest& fetch) {
  const size_t num_bytes =
      std::min<uint64_t>(kNetworkChunkBytes, send->header.num_bytes - fetch.offset);
  ChunkSend* chunk = chunk_sends_.Acquire();
  chunk->send = send;
  chunk->header = {peers_.OriginFor(peer), fetch.receive, fetch.offset};
  ++send->num_fetched;
  if (!send->is_cancelling) send->seconds = 0;  // it goes on
  ++send->num_uses;
  send->is_transferring = true;
  ucp_request_param_t param = SendParam(num_bytes, send->memory);
  param.cb.send = &OnChunkSent;
  param.user_data = chunk;
  ucs_status_ptr_t sending =
      ucp_am_send_nbx(peer.ep, kChunkId, &chunk->header, sizeof(chunk->header),
                      send->chunked + fetch.offset, num_bytes, &param);
  if (!UCS_PTR_IS_PTR(sending)) OnChunkSent(nullptr, UCS_PTR_STATUS(sending), chunk);
}

void Sender::OnSent(void* request, ucs_status_t status, void* operation) {
  if (request != nullptr) ucp_request_free(request);
  auto* send = static_cast<SendOperation*>(operation);
  send->sender->EndUse(send, status);
}

void Sender::OnChunkSent(void* request, ucs_status_t status, void* chunk) {
  if (request != nullptr) ucp_request_free(request);
  auto* sent = static_cast<ChunkSend*>(chunk);
  SendOperation* send = sent->send;
  Sender& self = *send->sender;
  self.chunk_sends_.Recycle(sent);
  // The receiver would wait for ever for a chunk that does not come.
  if (status != UCS_OK) {
    Peer& peer = self.peers_[send->peer];
    self.peers_.Fail(peer, FromUcs(status, StrCat("sending to device ", peer.device)));
  }
  self.EndUse(send, status);
}

// UCX does not use the header, or a chunk, any more.
void Sender::EndUse(SendOperation* send, ucs_status_t status) {
  if (status != UCS_OK) send->ucx_status = status;
  send->is_transferring = --send->num_uses > 0;
  if (send->is_transferring) return;
  const Peer& peer = peers_[send->peer];
  if (send->is_acknowledged) {
    EndIfFinished(send);
  } else if (peer.is_failed) {
    sends_.End(send, peer.failure);  // nobody will acknowledge it
  } else if (send->ucx_status != UCS_OK) {
    sends_.End(send, FromUcs(send->ucx_status, StrCat("sending to device ", peer.device,
                                                      " on channel ", send->header.channel)));
  }
}

ucs_status_t Sender::OnFetchRequest(void* self, const void* header, size_t header_length,
                                    void* /*data*/, size_t length,
                                    const ucp_am_recv_param_t* /*param*/) {
  auto& sender = *static_cast<Sender*>(self);
  const auto drop = [&sender] {
    sender.counters_.CountDropped();
    return UCS_OK;
  };
  FetchRequest fetch;
  if (length != 0 || header_length != sizeof(fetch)) return drop();
  std::memcpy(&fetch, header, sizeof(fetch));
  Peer* peer = sender.peers_.Authenticate(fetch.origin);
  SendOperation* send = sender.sends_.Find(fetch.send);
  if (peer == nullptr || send == nullptr || send->peer != peer->device ||
      send->chunked == nullptr || send->is_acknowledged || fetch.offset % kNetworkChunkBytes != 0 ||
      fetch.offset >= send->header.num_bytes ||
      send->num_fetched * kNetworkChunkBytes >= send->header.num_bytes) {
    return drop();
  }
  sender.SendChunk(*peer, send, fetch);
  return UCS_OK;
}

ucs_status_t Sender::OnAcks(void* self, const void* header, size_t header_length, void* /*data*/,
                            size_t length, const ucp_am_recv_param_t* /*param*/) {
  auto& sender = *static_cast<Sender*>(self);
  Origin origin;
  if (length != 0 || header_length < sizeof(origin) || header_length > sizeof(AckBatch) ||
      (header_length - sizeof(origin)) % sizeof(Ack) != 0) {
    sender.counters_.CountDropped();
    return UCS_OK;
  }
  std::memcpy(&origin, header, sizeof(origin));
  if (sender.peers_.Authenticate(origin) == nullptr) {
    sender.counters_.CountDropped();
    return UCS_OK;
  }
  const auto* bytes = static_cast<const std::byte*>(header);
  for (size_t offset = sizeof(origin); offset < header_length; offset += sizeof(Ack)) {
    Ack ack;
    std::memcpy(&ack, bytes + offset, sizeof(ack));
    SendOperation* send = sender.sends_.Find(ack.operation);
    if (send == nullptr || send->peer != origin.source || send->is_acknowledged) {
      sender.counters_.CountDropped();
      continue;
    }
    if (ack.kind == Ack::kTaken) {
      // It is asked again when the next time limit has passed. A send that the caller has cancelled
      // is not waited for that long.
      if (absl::IsDeadlineExceeded(send->cancel_reason)) {
        send->is_cancelling = false;
        send->seconds = 0;
      }
      continue;
    }
    send->ack = ack;
    send->is_acknowledged = true;
    sender.EndIfFinished(send);
  }
  return UCS_OK;
}

void Sender::EndIfFinished(SendOperation* send) {
  if (!send->is_acknowledged || send->is_transferring) return;
  switch (send->ack.kind) {
    case Ack::kDelivered:
      sends_.End(send, absl::OkStatus());
      break;
    case Ack::kSizeMismatch:
      sends_.End(send, SizeMismatch(device_, send->peer, send->header.channel,
                                    send->header.num_bytes, send->ack.expected_bytes));
      break;
    default:
      sends_.End(send, send->is_cancelling
                           ? send->cancel_reason
                           : absl::DataLossError(StrCat("device ", send->peer,
                                                        " dropped a message on channel ",
                                                        send->header.channel, " unasked")));
  }
}

void Sender::Cancel(Request* request) {
  auto* send = static_cast<SendOperation*>(request->internal);
  if (send->is_ended) return;
  if (send->is_cancelling) {  // it was late already; now an Ack::kTaken does not let it go on
    send->cancel_reason = absl::CancelledError("the request was cancelled");
    return;
  }
  RequestCancel(send, absl::CancelledError("the request was cancelled"));
}

void Sender::RequestCancel(SendOperation* send, const absl::Status& reason) {
  send->is_cancelling = true;
  send->cancel_reason = reason;
  send->seconds = 0;
  Peer& peer = peers_[send->peer];
  if (peer.is_failed || send->is_acknowledged) return;  // it ends anyway
  control_.RequestCancel(peer, send->id, send->header.channel);
}

bool Sender::CompleteRequests() {
  if (!sends_.has_ended()) return false;
  while (sends_.has_ended()) {
    const auto [send, request] = sends_.TakeEnded();
    if (send->status.ok()) {
      Complete(request);
    } else {
      Fail(request, send->status);
    }
    Recycle(send);
  }
  return true;
}

void Sender::Recycle(SendOperation* send) {
  send->is_acknowledged = send->is_cancelling = false;
  send->ucx_status = UCS_OK;
  send->chunked = nullptr;
  send->num_fetched = 0;
  if (!send->cancel_reason.ok()) send->cancel_reason = absl::OkStatus();
  sends_.Recycle(send);
}

void Sender::FailSends(const Peer& peer) {
  sends_.ForEachPending([this, &peer](SendOperation& send) {
    if (send.peer == peer.device && !send.is_transferring) sends_.End(&send, peer.failure);
  });
}

bool Sender::OnSecondPassed() {
  const int64_t answer_seconds = options_.answer_timeout.count();
  const int64_t request_seconds = options_.request_timeout.count();
  bool has_expired = false;
  sends_.ForEachPending([&](SendOperation& send) {
    ++send.seconds;
    has_expired |= send.seconds > (send.is_cancelling ? answer_seconds : request_seconds);
  });
  return has_expired;
}

void Sender::MarkAwaited() {
  sends_.ForEachPending([&](const SendOperation& send) { peers_[send.peer].is_awaited = true; });
}

void Sender::Expire() {
  const int64_t answer_seconds = options_.answer_timeout.count();
  const int64_t request_seconds = options_.request_timeout.count();
  sends_.ForEachPending([&](SendOperation& send) {
    Peer& peer = peers_[send.peer];
    if (peer.is_failed) return;  // it ends when UCX has let go of its bytes
    if (send.seconds <= (send.is_cancelling ? answer_seconds : request_seconds)) return;
    const auto late = absl::DeadlineExceededError(
        StrCat("device ", device_, " sent to device ", peer.device, " on channel ",
               send.header.channel, " for ", send.seconds, " s"));
    if (send.is_cancelling) {
      peers_.Fail(peer, late);
    } else {
      RequestCancel(&send, late);
    }
  });
}

void Sender::CountTransferring(std::vector<uint64_t>* counts) {
  sends_.ForEachTransferring(
      [&](const SendOperation& send) { ++(*counts)[peers_[send.peer].index]; });
}

}  // namespace penstock::transport::ucx
