// Sends the messages of an endpoint that carry no tensors (wire.h): acks, requests to cancel and to
// fetch, greetings and probes.
//
// Acks are collected for each peer until FlushAcks, or until a batch is full. Control messages are
// never lost on a live connection: a peer to which one cannot be sent has failed.
//
// Thread rule: external synchronisation.
// Invariant: allocates only when more messages are on their way than ever before.

#ifndef PENSTOCK_TRANSPORT_UCX_CONTROL_SENDER_H_
#define PENSTOCK_TRANSPORT_UCX_CONTROL_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include <ucp/api/ucp.h>

#include "transport/object_pool.h"
#include "transport/ucx/peers.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

class ControlSender {
 public:
  // `peers` outlives the result.
  explicit ControlSender(Peers* peers) : peers_(*peers), batches_(peers->all().size()) {
    unflushed_.reserve(batches_.size());
  }

  // Nothing is sent to a peer that has failed, or while the endpoint closes. `expected_bytes` is
  // that of a size mismatch.
  void Acknowledge(Peer& peer, OperationId operation, Ack::Kind kind, uint64_t expected_bytes = 0);
  bool has_acks() const { return !unflushed_.empty(); }
  void FlushAcks();

  // REQUIRES for all: peer.ep is not null.
  void RequestCancel(Peer& peer, OperationId operation, uint64_t channel);
  void RequestChunk(Peer& peer, OperationId send, OperationId receive, uint64_t offset);
  void Greet(Peer& peer);
  void Probe(Peer& peer);

 private:
  struct ControlMessage {
    ControlMessage* next = nullptr;
    ControlSender* sender = nullptr;
    AckBatch acks;
    CancelRequest cancel;
    FetchRequest fetch;
  };

  struct Batch {
    ControlMessage* message = nullptr;  // null: empty
    int num_acks = 0;
  };

  ControlMessage* Acquire();
  void SendOrigin(Peer& peer, MessageId id);
  void Send(Peer& peer, MessageId id, ControlMessage* message, const void* bytes, size_t num_bytes);
  static void OnSent(void* request, ucs_status_t status, void* message);

  Peers& peers_;
  std::vector<Batch> batches_;    // by index of the peer
  std::vector<Peer*> unflushed_;  // with a batch that is not empty
  ObjectPool<ControlMessage> pool_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_CONTROL_SENDER_H_
