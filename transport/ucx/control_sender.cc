#include "transport/ucx/control_sender.h"

#include <utility>

#include "transport/ucx/ucx_status.h"

namespace penstock::transport::ucx {

void ControlSender::Acknowledge(Peer& peer, OperationId operation, Ack::Kind kind,
                                uint64_t expected_bytes) {
  if (peer.is_failed || peer.ep == nullptr || peers_.is_closing()) return;
  Batch& batch = batches_[peer.index];
  if (batch.message == nullptr) {
    batch.message = Acquire();
    batch.message->acks.origin = peers_.OriginFor(peer);
    batch.num_acks = 0;
    unflushed_.push_back(&peer);
  }
  batch.message->acks.acks[batch.num_acks++] = {operation, kind, 0, expected_bytes};
  if (batch.num_acks == kMaxAcks) FlushAcks();
}

void ControlSender::FlushAcks() {
  while (!unflushed_.empty()) {
    Peer& peer = *unflushed_.back();
    unflushed_.pop_back();
    Batch& batch = batches_[peer.index];
    ControlMessage* message = std::exchange(batch.message, nullptr);
    if (peer.is_failed) {
      pool_.Recycle(message);
    } else {
      Send(peer, kAcksId, message, &message->acks, sizeof(Origin) + batch.num_acks * sizeof(Ack));
    }
  }
}

void ControlSender::RequestCancel(Peer& peer, OperationId operation, uint64_t channel) {
  ControlMessage* message = Acquire();
  message->cancel = {peers_.OriginFor(peer), operation, channel};
  Send(peer, kCancelRequestId, message, &message->cancel, sizeof(message->cancel));
}

void ControlSender::RequestChunk(Peer& peer, OperationId send, OperationId receive,
                                 uint64_t offset) {
  ControlMessage* message = Acquire();
  message->fetch = {peers_.OriginFor(peer), send, receive, offset};
  Send(peer, kFetchRequestId, message, &message->fetch, sizeof(message->fetch));
}

void ControlSender::Greet(Peer& peer) { SendOrigin(peer, kAcksId); }

void ControlSender::Probe(Peer& peer) { SendOrigin(peer, kProbeId); }

void ControlSender::SendOrigin(Peer& peer, MessageId id) {
  ControlMessage* message = Acquire();
  message->acks.origin = peers_.OriginFor(peer);
  Send(peer, id, message, &message->acks, sizeof(Origin));
}

ControlSender::ControlMessage* ControlSender::Acquire() {
  return pool_.Acquire([this](ControlMessage& message, uint32_t) { message.sender = this; });
}

void ControlSender::Send(Peer& peer, MessageId id, ControlMessage* message, const void* bytes,
                         size_t num_bytes) {
  ucp_request_param_t param = {};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_FLAGS;
  param.cb.send = &OnSent;
  param.user_data = message;
  param.flags = UCP_AM_SEND_FLAG_EAGER;
  ucs_status_ptr_t request = ucp_am_send_nbx(peer.ep, id, bytes, num_bytes, nullptr, 0, &param);
  if (UCS_PTR_IS_PTR(request)) return;
  pool_.Recycle(message);
  // The peer would wait for ever for what it was not told.
  if (UCS_PTR_IS_ERR(request)) {
    peers_.Fail(peer, FromUcs(UCS_PTR_STATUS(request), "answering"));
  }
}

void ControlSender::OnSent(void* request, ucs_status_t /*status*/, void* message) {
  ucp_request_free(request);
  auto* sent = static_cast<ControlMessage*>(message);
  sent->sender->pool_.Recycle(sent);
}

}  // namespace penstock::transport::ucx
