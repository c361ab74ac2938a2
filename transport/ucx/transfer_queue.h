// Flow control of the long messages from one peer: the receiver starts each transfer, and lets only
// a bounded number of bytes be in flight. Pairs of devices that share a link share that bound.
// Transfers of the lowest channel start first, so the order of channels is an order of priority on
// the link, and an urgent message never waits behind more than the bytes in flight. No transfer
// waits for another that waits for something else.
//
// Example: transfers of 1 MiB on channels 7, 7, 7 are added, and two of them start: there may
// always be two. One of channel 3 is added. When a transfer finishes, that one starts next.
//
// Transfer has members `next` (intrusive_queue.h), `channel` and `num_bytes`.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_
#define PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_

#include <cstdint>

#include "transport/intrusive_queue.h"

namespace penstock::transport::ucx {

// Enough to keep a link of 10 Gbit/s busy during the round trip that starts a transfer.
inline constexpr uint64_t kMaxBytesInFlight = 1 << 20;
// However long they are: the second starts while the first ends.
inline constexpr uint32_t kMinTransfersInFlight = 2;

template <typename Transfer>
class TransferQueue {
 public:
  void Add(Transfer* transfer) { waiting_.PushBack(transfer); }

  // Removes the transfer to start next, and counts it as in flight. Null if none waits or enough
  // are in flight. `num_sharing`: queues whose transfers use the same link, at least 1.
  Transfer* StartNext(uint32_t num_sharing = 1) {
    if (waiting_.empty()) return nullptr;
    if (num_in_flight_ >= kMinTransfersInFlight &&
        bytes_in_flight_ >= kMaxBytesInFlight / num_sharing) {
      return nullptr;
    }
    Transfer* first = waiting_.front();
    for (Transfer* other = first->next; other != nullptr; other = other->next) {
      if (other->channel < first->channel) first = other;
    }
    waiting_.RemoveFirst([first](const Transfer& other) { return &other == first; });
    ++num_in_flight_;
    bytes_in_flight_ += first->num_bytes;
    return first;
  }

  // A transfer of `num_bytes` is no longer in flight.
  void Finish(uint64_t num_bytes) {
    --num_in_flight_;
    bytes_in_flight_ -= num_bytes;
  }

  // Removes a transfer that will not start; null if none waits.
  Transfer* RemoveWaiting() { return waiting_.empty() ? nullptr : waiting_.PopFront(); }

 private:
  IntrusiveQueue<Transfer> waiting_;
  uint32_t num_in_flight_ = 0;
  uint64_t bytes_in_flight_ = 0;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_
