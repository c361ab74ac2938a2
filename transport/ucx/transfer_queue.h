// Flow control of the long messages from one peer: the receiver starts each transfer, and lets only
// a bounded number of bytes be in flight. Pairs of devices that share a link share that bound.
// Transfers of the lowest channel start first, so the order of channels is an order of priority on
// the link, and an urgent message never waits behind more than the bytes in flight: a very long
// transfer is started chunk by chunk. Nor does one of a high channel wait for ever: what has waited
// longest is overtaken by a bounded number of chunks (bounded_priority_queue.h). No transfer waits
// for another that waits for something else.
//
// Example: transfers of 1 MiB on channels 7, 7, 7 are added, and two of them start: there may
// always be two chunks. One of channel 3 is added. When a transfer finishes, that one starts next.
//
// Transfer has members `next` (intrusive_queue.h), `channel`, `num_bytes`, `num_started` (0 at
// first) and `in_chunks` (false: started as a whole).
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_
#define PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_

#include <algorithm>
#include <cstdint>

#include "transport/ucx/bounded_priority_queue.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

// Enough to keep a link of 10 Gbit/s busy during the round trip that starts a transfer.
inline constexpr uint64_t kMaxBytesInFlight = 1 << 20;
// However long they are: the second starts while the first ends.
inline constexpr uint32_t kMinChunksInFlight = 2;

template <typename Transfer>
class TransferQueue {
 public:
  void Add(Transfer* transfer) { waiting_.Add(transfer); }

  // Of a transfer: all of it, or one of its chunks.
  struct Chunk {
    Transfer* transfer = nullptr;  // null: nothing to start
    uint64_t offset = 0;
    uint64_t num_bytes = 0;
  };

  // What to start next, which counts as in flight; nothing if none waits or enough are in flight.
  // The transfer is removed with its last chunk. `num_sharing`: queues whose transfers use the same
  // link, at least 1.
  Chunk StartNext(uint32_t num_sharing = 1) {
    if (waiting_.empty()) return {};
    if (num_in_flight_ >= kMinChunksInFlight &&
        bytes_in_flight_ >= kMaxBytesInFlight / num_sharing) {
      return {};
    }
    Transfer* const first = waiting_.TakeTurn();
    Chunk chunk = {first, first->num_started, first->num_bytes - first->num_started};
    if (first->in_chunks) chunk.num_bytes = std::min(chunk.num_bytes, kNetworkChunkBytes);
    first->num_started += chunk.num_bytes;
    if (first->num_started == first->num_bytes) Remove(first);
    ++num_in_flight_;
    bytes_in_flight_ += chunk.num_bytes;
    return chunk;
  }

  // A chunk of `num_bytes` is no longer in flight.
  void Finish(uint64_t num_bytes) {
    --num_in_flight_;
    bytes_in_flight_ -= num_bytes;
  }

  // `transfer` is not to go on, if it still waits to.
  void Remove(const Transfer* transfer) {
    waiting_.Remove([transfer](const Transfer& other) { return &other == transfer; });
  }
  // Removes a transfer that is not to go on; null if none waits.
  Transfer* RemoveWaiting() { return waiting_.empty() ? nullptr : waiting_.RemoveOldest(); }

 private:
  BoundedPriorityQueue<Transfer> waiting_;
  uint32_t num_in_flight_ = 0;
  uint64_t bytes_in_flight_ = 0;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_
