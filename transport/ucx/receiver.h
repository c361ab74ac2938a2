// The receives and views of an endpoint from devices of other processes.
//
// UCX's tags have 64 bits, ours with the source have 160, so messages are matched here
// (match_table.h), one table for each peer. What happens to the bytes of a message that has found
// its receive depends on where they are:
//
//              Recv                               View
//   eager      copied from UCX's segment          copied to a buffer that is kept
//   shared     copied from the sender's memory,   shown in the sender's memory
//              if it is long chunk by chunk
//              (copy_queue.h)
//   rendezvous fetched into the register          fetched into a buffer that is kept
//   announced  the same, in chunks                the same, in chunks
//
// An eager message that finds no receive is copied to a buffer until there is one. Fetches are
// subject to flow control (transfer_queue.h): those over the network together with those of the
// other endpoints of the process.
//
// A receive is late if no message has taken it in time, or if its peer does not send the bytes that
// it was asked for. The time that a receive waits for its turn does not count: other peers may be
// what holds it up, and they have limits of their own.
//
// Thread rule: external synchronisation. Requests are completed by CompleteRequests and Cancel
// only. Invariant: allocates only when a channel page is used for the first time, or more receives,
// unexpected messages or buffers are in use than ever before.

#ifndef PENSTOCK_TRANSPORT_UCX_RECEIVER_H_
#define PENSTOCK_TRANSPORT_UCX_RECEIVER_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/status.h"
#include <ucp/api/ucp.h>

#include "transport/intrusive_queue.h"
#include "transport/match_table.h"
#include "transport/object_pool.h"
#include "transport/request_internal.h"
#include "transport/transport.h"
#include "transport/ucx/control_sender.h"
#include "transport/ucx/copy_queue.h"
#include "transport/ucx/operation_table.h"
#include "transport/ucx/peers.h"
#include "transport/ucx/receive_buffers.h"
#include "transport/ucx/replay_window.h"
#include "transport/ucx/transfer_queue.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

class Receiver {
  struct ReceiveOperation;

 public:
  using Transfers = TransferQueue<ReceiveOperation>;

  // All arguments outlive the result, which belongs to the endpoint of `device`. `network` is the
  // queue of all endpoints of the process; StartTransfers follows a call of `wake`, which any
  // thread makes.
  Receiver(const UcxOptions& options, uint32_t device, Peers* peers, ControlSender* control,
           MessageCounters* counters, Transfers* network, std::function<void()> wake);

  // Before the first message.
  void set_worker(ucp_worker_h worker) { worker_ = worker; }

  // Receives into `data`, whose registration is `memory` (null: none). Returns whether a message
  // was there already. REQUIRES: `request` is pending; `peer` is connected.
  bool Recv(Peer& peer, Tag tag, void* data, size_t num_bytes, ucp_mem_h memory, Request* request);
  // The same without copying: see Endpoint::View.
  bool View(Peer& peer, Tag tag, size_t num_bytes, Request* request);
  // REQUIRES: `request` is one of View that is done.
  void Release(Request* request);
  // Fails `request` unless a message has taken it. REQUIRES: it is a pending one of Recv or View.
  void Cancel(Request* request);

  bool has_ended() const { return receives_.has_ended(); }
  // Returns whether there were any.
  bool CompleteRequests();
  // Makes a chunk of a long copy; false if there is none to make.
  bool CopyChunk();
  // Starts the transfers that may start since the last call of `wake`.
  void StartTransfers();

  // Ends the receives from a failed peer and drops its messages. Receives that UCX writes to end
  // when it has let go of them.
  void FailReceives(const Peer& peer);
  // A second has passed. Returns whether Expire has something to do.
  bool OnSecondPassed();
  // Marks the peers that pending receives await.
  void MarkAwaited();
  // Ends the receives that are late. Fails the peer of one that a message has taken.
  void Expire();

  // Drops all unexpected messages and transfers that have not started.
  void DropMessages();
  // Adds to `counts`, by the index of the peer, the receives that UCX writes to.
  void CountTransferring(std::vector<uint64_t>* counts);

  // Handle kMessageId, kChunkId and kCancelRequestId; `self` is a Receiver.
  static ucs_status_t OnMessage(void* self, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnChunk(void* self, const void* header, size_t header_length, void* data,
                              size_t length, const ucp_am_recv_param_t* param);
  static ucs_status_t OnCancelRequest(void* self, const void* header, size_t header_length,
                                      void* data, size_t length, const ucp_am_recv_param_t* param);

 private:
  // Where the bytes of a message are.
  enum class Location : uint8_t {
    kEager,       // in UCX's segment or, outside of OnMessage, in a buffer
    kRendezvous,  // with the sender; `data` is UCX's descriptor
    kShared,      // with the sender, who shares them
    kAnnounced,   // with the sender, who sends the chunks that are asked for
  };

  struct Message : MessageHeader {
    Message* next = nullptr;
    void* data = nullptr;
    Location location = Location::kEager;
    bool is_unexpected = false;  // kept beyond OnMessage
  };

  // Has been asked for.
  struct Chunk {
    Chunk* next = nullptr;
    ReceiveOperation* receive = nullptr;
    uint64_t offset = 0;
    uint64_t num_bytes = 0;
  };

  struct ReceiveOperation : Operation<ReceiveOperation> {
    Receiver* receiver = nullptr;
    uint64_t sequence = 0;
    uint64_t num_bytes = 0;
    uint32_t channel = 0;
    bool is_view = false;
    void* data = nullptr;
    ucp_mem_h memory = nullptr;  // where `data` is registered
    // Of the message that has taken it.
    Location location = Location::kEager;
    uint32_t flags = 0;
    OperationId send;
    void* descriptor = nullptr;         // UCX's, of a transfer that has not started
    StagingBuffer staging;              // of a view by rendezvous
    const std::byte* source = nullptr;  // of a long copy: see CopyQueue
    uint64_t num_copied = 0;
    // Of a transfer, in chunks or not: see TransferQueue.
    TransferFlow* flow = nullptr;
    uint64_t num_started = 0;
    bool in_chunks = false;
    bool is_taken = false;            // by a message whose bytes are still to come
    IntrusiveQueue<Chunk> requested;  // that have not arrived
    uint32_t num_writing = 0;         // chunks that UCX writes
    uint64_t num_received = 0;        // bytes of chunks
    ucs_status_t chunk_status = UCS_OK;

    // In a queue, with nothing under way.
    bool waits_for_turn() const { return is_taken && !is_transferring && requested.empty(); }
  };

  using Matches = MatchTable<ReceiveOperation, Message>;

  struct Source {
    explicit Source(uint32_t num_channels) : matches(num_channels) {}

    ReplayWindow received;
    Matches matches;
    uint32_t num_unexpected = 0;
    TransferFlow flow;
  };

  bool Post(Peer& peer, Tag tag, size_t num_bytes, ReceiveOperation* receive);
  // A message matches or is kept. Both return whether UCX's descriptor is in use.
  bool Arrive(Peer& peer, const Message& message);
  bool Deliver(Peer& peer, const Message& message, ReceiveOperation* receive);
  void CopyOrShow(const Message& message, ReceiveOperation* receive);
  Transfers& TransfersFrom(const Peer& peer) {
    return peer.memory != nullptr ? host_transfers_ : network_transfers_;
  }
  void StartTransfers(Transfers& transfers);
  // Whether a receive has taken the message of this operation of the peer and needs its bytes.
  bool HasTaken(const Peer& peer, OperationId send);
  void FetchWhole(ReceiveOperation* receive);
  void FinishChunk(Chunk* chunk, ucs_status_t status, size_t num_bytes);
  // Forgets the chunks that were asked for or are to be.
  void DropChunks(ReceiveOperation* receive);
  // Has UCX forget a transfer that has not started, if it is one, and will not start.
  void DropDescriptor(ReceiveOperation* receive);
  void EndReceived(ReceiveOperation* receive, ucs_status_t status, size_t num_bytes);
  void Discard(const Message& message);
  void DropUnexpected(Source& source, Message* message);
  void DropMessages(Source& source);
  void Recycle(ReceiveOperation* receive);
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* operation);
  static void OnChunkReceived(void* request, ucs_status_t status, size_t length, void* chunk);

  const UcxOptions& options_;
  const uint32_t device_;
  Peers& peers_;
  ControlSender& control_;
  MessageCounters& counters_;
  ucp_worker_h worker_ = nullptr;
  std::atomic<bool> may_start_{false};  // `wake` was called
  const TransferStarter starter_;
  Transfers& network_transfers_;
  Transfers host_transfers_;  // through shared memory
  bool is_starting_transfers_ = false;
  std::vector<Source> sources_;  // by index of the peer
  OperationTable<ReceiveOperation> receives_;
  CopyQueue<ReceiveOperation> copies_;
  ObjectPool<Message> messages_;
  ObjectPool<Chunk> chunks_;
  EagerBuffers eager_buffers_;
  StagingBuffers staging_buffers_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_RECEIVER_H_
