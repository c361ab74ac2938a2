// The sends of an endpoint to devices of other processes.
//
// A send has ended when its receiver has acknowledged it and UCX does not use its bytes any more;
// or when it fails and UCX does not use its bytes any more. To cancel one is to ask the receiver,
// which may have taken the message already.
//
// Thread rule: external synchronisation. Requests are completed by CompleteRequests only.
// Invariant: allocates only when more sends are in flight than ever before.

#ifndef PENSTOCK_TRANSPORT_UCX_SENDER_H_
#define PENSTOCK_TRANSPORT_UCX_SENDER_H_

#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include <ucp/api/ucp.h>

#include "transport/object_pool.h"
#include "transport/request_internal.h"
#include "transport/transport.h"
#include "transport/ucx/control_sender.h"
#include "transport/ucx/memory_regions.h"
#include "transport/ucx/operation_table.h"
#include "transport/ucx/peers.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

class Sender {
 public:
  // All arguments outlive the result, which belongs to the endpoint of `device`.
  Sender(const UcxOptions& options, uint32_t device, Peers* peers, ControlSender* control,
         MessageCounters* counters)
      : options_(options),
        device_(device),
        peers_(*peers),
        control_(*control),
        counters_(*counters),
        next_serials_(peers->all().size()) {}

  // REQUIRES: `request` is pending; `peer` is connected. `memory` is how `data` is registered.
  void Send(Peer& peer, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
            const MemoryRegions::Registration& memory, Request* request);
  // REQUIRES: `request` is a pending one of Send.
  void Cancel(Request* request);

  bool has_ended() const { return sends_.has_ended(); }
  // Returns whether there were any.
  bool CompleteRequests();

  // Ends the sends to a failed peer; those whose bytes UCX uses end when it has let go of them.
  void FailSends(const Peer& peer);
  // A second has passed. Returns whether Expire has something to do.
  bool OnSecondPassed();
  // Marks the peers that pending sends await.
  void MarkAwaited();
  // Cancels the sends that have taken too long, and fails peers that do not answer cancel requests.
  void Expire();

  // Adds to `counts`, by the index of the peer, the sends whose bytes UCX uses.
  void CountTransferring(std::vector<uint64_t>* counts);

  // Handle kAcksId and kFetchRequestId; `self` is a Sender.
  static ucs_status_t OnAcks(void* self, const void* header, size_t header_length, void* data,
                             size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnFetchRequest(void* self, const void* header, size_t header_length,
                                     void* data, size_t length, const ucp_am_recv_param_t* param);

 private:
  struct SendOperation : Operation<SendOperation> {
    Sender* sender = nullptr;
    MessageHeader header;
    Ack ack;
    uint32_t num_uses = 0;               // by UCX, of the header or of bytes
    ucs_status_t ucx_status = UCS_OK;    // the last failure
    const std::byte* chunked = nullptr;  // the bytes, if they are fetched in chunks
    ucp_mem_h memory = nullptr;          // where those are registered
    uint64_t num_fetched = 0;            // of their chunks
    bool is_acknowledged = false;
    bool is_cancelling = false;  // the receiver has been asked; `seconds` counts from there
    absl::Status cancel_reason;
  };

  struct ChunkSend {
    ChunkSend* next = nullptr;
    SendOperation* send = nullptr;
    ChunkHeader header;
  };

  void SendChunk(Peer& peer, SendOperation* send, const FetchRequest& fetch);
  void EndUse(SendOperation* send, ucs_status_t status);
  void RequestCancel(SendOperation* send, const absl::Status& reason);
  void EndIfFinished(SendOperation* send);
  void Recycle(SendOperation* send);
  static void OnSent(void* request, ucs_status_t status, void* operation);
  static void OnChunkSent(void* request, ucs_status_t status, void* chunk);

  const UcxOptions& options_;
  const uint32_t device_;
  Peers& peers_;
  ControlSender& control_;
  MessageCounters& counters_;
  std::vector<uint64_t> next_serials_;  // of the next message to each peer, by its index
  OperationTable<SendOperation> sends_;
  ObjectPool<ChunkSend> chunk_sends_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_SENDER_H_
