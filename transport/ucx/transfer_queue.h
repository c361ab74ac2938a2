// Flow control of the long messages that the endpoints of a process receive over one link: they
// start each transfer, and let a bounded number of bytes be in flight, for all of them together.
//
// Transfers of the lowest channel start first, from whichever peer they come, so the order of
// channels is an order of priority on the link. An urgent message never waits behind more than the
// bytes in flight: a very long transfer is started chunk by chunk. Nor does a transfer of a high
// channel wait for ever: the oldest is overtaken by a bounded number of chunks
// (bounded_priority_queue.h).
//
// Beyond the bound, a transfer may start whose flow, which is a pair of devices, has nothing in
// flight, unless a more urgent transfer waits. Otherwise the processes that exchange blocks of one
// collective might all fetch from the same peer first, and the links of the others would be idle.
// So of very long messages, at most a chunk of each flow is in flight, and one more.
//
// No transfer waits for another that waits for anything but the link: a transfer is added when its
// bytes are ready. A peer that stops holds up less urgent transfers until it is declared dead.
//
// Example: transfers of 1 MiB on channels 7, 7, 7 of one flow are added, and two of them start. One
// of channel 3 is added, from another peer: it starts as well. A second one of channel 3 starts
// when two of the three have finished, and the third of channel 7 after it.
//
// Transfer has members `next` (intrusive_queue.h), `channel`, `num_bytes`, `flow`, `num_started` (0
// at first) and `in_chunks` (false: started as a whole).
//
// Thread rule: any thread. Between Add and the chunk that removes it, `next` and `num_started` of a
// transfer belong to the queue.

#ifndef PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_
#define PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <functional>

#include "absl/base/thread_annotations.h"

#include "transport/ucx/bounded_priority_queue.h"
#include "transport/ucx/spin_lock.h"
#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

// Enough to keep a link of 10 Gbit/s busy during the round trip that starts a transfer.
inline constexpr uint64_t kMaxBytesInFlight = 1 << 20;
// Whatever their size, so that the link stays busy while the first one ends.
inline constexpr uint32_t kMinChunksInFlight = 2;

// An endpoint, which starts its transfers itself.
struct TransferStarter {
  // Called by any thread: StartNext may have a chunk for this one.
  std::function<void()> wake;
};

// The transfers from one peer to one endpoint.
struct TransferFlow {
  const TransferStarter* starter = nullptr;
  uint32_t num_in_flight = 0;  // chunks; the queue's
};

template <typename Transfer>
class TransferQueue {
 public:
  // StartNext follows.
  void Add(Transfer* transfer) {
    const SpinLockHolder lock(lock_);
    waiting_.Add(transfer);
    CountWaiting(1);
  }

  // Of a transfer: all of it, or one of its chunks.
  struct Chunk {
    Transfer* transfer = nullptr;  // null: nothing to start
    uint64_t offset = 0;
    uint64_t num_bytes = 0;
  };

  // What `starter` starts next, which counts as in flight; nothing if no transfer may start, or the
  // first that may is another endpoint's, which is woken. A transfer is removed with its last
  // chunk. Called again until nothing is returned.
  Chunk StartNext(const TransferStarter* starter) {
    if (num_waiting_.load(std::memory_order_relaxed) == 0) return {};
    const TransferStarter* other = nullptr;
    {
      const SpinLockHolder lock(lock_);
      Transfer* const next = Next();
      if (next == nullptr) return {};
      other = next->flow->starter;
      if (other == starter) return Start(next);
    }
    other->wake();
    return {};
  }

  // A chunk of `num_bytes` is no longer in flight. StartNext follows.
  void Finish(TransferFlow* flow, uint64_t num_bytes) {
    const SpinLockHolder lock(lock_);
    --flow->num_in_flight;
    --num_in_flight_;
    bytes_in_flight_ -= num_bytes;
  }

  // `transfer` is not to go on, if it still waits to. StartNext follows.
  void Remove(const Transfer* transfer) {
    const SpinLockHolder lock(lock_);
    RemoveFirst([transfer](const Transfer& other) { return &other == transfer; });
  }
  // Removes a transfer of `flow`, which is not to go on; null if none waits.
  Transfer* RemoveWaiting(const TransferFlow* flow) {
    const SpinLockHolder lock(lock_);
    return RemoveFirst([flow](const Transfer& transfer) { return transfer.flow == flow; });
  }

 private:
  // The transfer that may go on now; null if there is none.
  Transfer* Next() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    if (waiting_.empty()) return nullptr;
    Transfer* const first = waiting_.First();
    if (num_in_flight_ < kMinChunksInFlight || bytes_in_flight_ < kMaxBytesInFlight ||
        first->flow->num_in_flight == 0) {
      return first;
    }
    return waiting_.FindFirst([first](const Transfer& transfer) {
      return transfer.channel == first->channel && transfer.flow->num_in_flight == 0;
    });
  }

  Chunk Start(Transfer* transfer) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    waiting_.CountTurn(transfer);
    Chunk chunk = {transfer, transfer->num_started, transfer->num_bytes - transfer->num_started};
    if (transfer->in_chunks) chunk.num_bytes = std::min(chunk.num_bytes, kNetworkChunkBytes);
    transfer->num_started += chunk.num_bytes;
    if (transfer->num_started == transfer->num_bytes) {
      RemoveFirst([transfer](const Transfer& other) { return &other == transfer; });
    }
    ++transfer->flow->num_in_flight;
    ++num_in_flight_;
    bytes_in_flight_ += chunk.num_bytes;
    return chunk;
  }

  template <typename Predicate>
  Transfer* RemoveFirst(Predicate is_it) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    Transfer* const removed = waiting_.Remove(is_it);
    if (removed != nullptr) CountWaiting(-1);
    return removed;
  }

  void CountWaiting(int change) ABSL_EXCLUSIVE_LOCKS_REQUIRED(lock_) {
    num_waiting_.store(num_waiting_.load(std::memory_order_relaxed) + change,
                       std::memory_order_relaxed);
  }

  SpinLock lock_;
  BoundedPriorityQueue<Transfer> waiting_ ABSL_GUARDED_BY(lock_);
  uint32_t num_in_flight_ ABSL_GUARDED_BY(lock_) = 0;
  uint64_t bytes_in_flight_ ABSL_GUARDED_BY(lock_) = 0;
  // Written with the lock, read without: an endpoint whose transfers wait sees that some do.
  std::atomic<uint32_t> num_waiting_{0};
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_TRANSFER_QUEUE_H_
