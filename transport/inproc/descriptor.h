// Descriptors of sends, which the endpoints of one process hand to each other in rings.
//
// A Descriptor stands for one posted operation. It belongs to the endpoint that made it, which
// keeps it in a pool, and is lent by passing its address through a DescriptorRing; whoever was
// handed it last may write its plain fields and its link. A send's descriptor makes a round trip:
//
//   sender                                  receiver
//   Send: publishes it ----- ring -----> arrives; waits in the list of its channel
//                                        a Recv or View with its tag takes it; bytes are read
//   request done <---------- ring ------ returned with an acknowledgement
//
// Thread rule: DescriptorRing has one producing and one consuming thread. The rest belongs to the
// endpoint that holds it.

#ifndef PENSTOCK_TRANSPORT_INPROC_DESCRIPTOR_H_
#define PENSTOCK_TRANSPORT_INPROC_DESCRIPTOR_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "base/cache_line.h"
#include "transport/intrusive_queue.h"
#include "transport/transport.h"

namespace penstock::transport {

struct alignas(kCacheLine) Descriptor {
  enum class Kind : uint8_t { kSend, kRecv, kView };
  // How the receiver acknowledges a send.
  enum class Ack : uint8_t { kDelivered, kCancelled, kSizeMismatch };

  // Who decides the fate of a send: the receiver by taking it, the sender by cancelling it; the
  // first to leave kOffered wins. kQueued: not published yet, the sender's alone.
  enum class Phase : uint8_t { kQueued, kOffered, kTaken, kCancelled };

  Request* request = nullptr;  // null: the request has been ended already
  Descriptor* next = nullptr;
  void* data = nullptr;  // a send's bytes are only read
  size_t num_bytes = 0;
  uint64_t sequence = 0;
  uint32_t channel = 0;
  uint32_t peer = 0;
  uint32_t flags = 0;
  Kind kind = Kind::kSend;
  std::atomic<Phase> phase{Phase::kQueued};
  bool is_returned = false;
  Ack ack = Ack::kDelivered;
  size_t expected_bytes = 0;  // by the receiver, where ack is kSizeMismatch

  // Leaves kOffered for `to`; false if the other side was first.
  bool Decide(Phase to) {
    Phase expected = Phase::kOffered;
    return phase.compare_exchange_strong(expected, to, std::memory_order_acq_rel);
  }
};
static_assert(sizeof(Descriptor) == kCacheLine, "a descriptor is one cache line");

using DescriptorQueue = IntrusiveQueue<Descriptor>;

// A bounded lock-free queue between two threads (Lamport 1983, with each side caching the other's
// index). A producer that finds it full is owed a notice: the consumer's TookSome returns true once
// there is room. No notice is lost, because each side writes its own word before it reads the
// other's, in the one order of sequentially consistent operations.
class DescriptorRing {
 public:
  static constexpr uint32_t kCapacity = 64;

  // Producer.
  bool TryPush(Descriptor* descriptor) {
    if (tail_local_ - head_seen_ == kCapacity) {
      head_seen_ = head_.load(std::memory_order_acquire);
      if (tail_local_ - head_seen_ == kCapacity) {
        is_producer_waiting_.store(true, std::memory_order_seq_cst);
        head_seen_ = head_.load(std::memory_order_seq_cst);
        if (tail_local_ - head_seen_ == kCapacity) return false;
      }
    }
    slots_[tail_local_ % kCapacity] = descriptor;
    tail_.store(++tail_local_, std::memory_order_release);
    return true;
  }

  // Consumer: what can be popped now.
  uint32_t size() const { return tail_.load(std::memory_order_acquire) - head_local_; }

  // Consumer: the one that `ahead` more calls of Pop come before. REQUIRES: ahead < size().
  Descriptor* Peek(uint32_t ahead) const { return slots_[(head_local_ + ahead) % kCapacity]; }

  // Consumer. REQUIRES: size() > 0.
  Descriptor* Pop() { return slots_[head_local_++ % kCapacity]; }

  // Consumer: gives the popped slots back; true if the producer is to be told of the room.
  bool TookSome() {
    head_.store(head_local_, std::memory_order_seq_cst);
    return is_producer_waiting_.load(std::memory_order_seq_cst) &&
           is_producer_waiting_.exchange(false, std::memory_order_seq_cst);
  }

 private:
  alignas(kCacheLine) std::atomic<uint32_t> tail_{0};
  uint32_t tail_local_ = 0;  // the producer's
  uint32_t head_seen_ = 0;
  alignas(kCacheLine) std::atomic<uint32_t> head_{0};
  uint32_t head_local_ = 0;  // the consumer's
  alignas(kCacheLine) std::atomic<bool> is_producer_waiting_{false};
  alignas(kCacheLine) std::array<Descriptor*, kCapacity> slots_{};
};

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_INPROC_DESCRIPTOR_H_
