// A bounded queue between one producing and one consuming thread, allocated once. Each side keeps a
// copy of the other's index and looks at the index itself, which may be in the other's cache, only
// where the copy says that the ring is full or empty.
//
// Thread rule: TryPush on the producer alone, Front and Pop on the consumer alone, size from both.
// Invariants: elements leave in the order they came; nothing allocates or blocks after
// construction.

#ifndef PENSTOCK_ACTORS_ENGINE_SPSC_RING_H_
#define PENSTOCK_ACTORS_ENGINE_SPSC_RING_H_

#include <atomic>
#include <bit>
#include <cstddef>
#include <vector>

#include "base/cache_line.h"

namespace penstock::actors {

// A ring of elements, which are copied in and out. The capacity does not change.
template <typename T>
class SpscRing {
 public:
  // Holds at least `capacity` elements.
  explicit SpscRing(size_t capacity) : slots_(std::bit_ceil(capacity)), mask_(slots_.size() - 1) {}
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  // At least what the constructor was given: a power of 2.
  size_t capacity() const { return slots_.size(); }

  // Exact on the producer and the consumer as far as their own side goes.
  size_t size() const {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
  }

  // False when the ring is full.
  bool TryPush(const T& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_seen_ == slots_.size()) {
      head_seen_ = head_.load(std::memory_order_acquire);
      if (tail - head_seen_ == slots_.size()) return false;
    }
    slots_[tail & mask_] = value;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // The oldest element, or null; stays until Pop.
  const T* Front() {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_seen_) {
      tail_seen_ = tail_.load(std::memory_order_acquire);
      if (head == tail_seen_) return nullptr;
    }
    return &slots_[head & mask_];
  }

  // REQUIRES: Front() is not null.
  void Pop() { head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

 private:
  std::vector<T> slots_;
  const size_t mask_;
  alignas(kCacheLine) std::atomic<size_t> tail_{0};  // written by the producer
  size_t head_seen_ = 0;                             // the producer's
  alignas(kCacheLine) std::atomic<size_t> head_{0};  // written by the consumer
  size_t tail_seen_ = 0;                             // the consumer's
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_SPSC_RING_H_
