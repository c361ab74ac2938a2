// A bounded queue between one producing and one consuming thread, allocated once.
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

template <typename T>
class SpscRing {
 public:
  // Holds at least `capacity` elements.
  explicit SpscRing(size_t capacity) : slots_(std::bit_ceil(capacity)), mask_(slots_.size() - 1) {}
  SpscRing(const SpscRing&) = delete;
  SpscRing& operator=(const SpscRing&) = delete;

  size_t capacity() const { return slots_.size(); }

  // Exact on the producer and the consumer as far as their own side goes.
  size_t size() const {
    return tail_.load(std::memory_order_acquire) - head_.load(std::memory_order_acquire);
  }

  // False when the ring is full.
  bool TryPush(const T& value) {
    const size_t tail = tail_.load(std::memory_order_relaxed);
    if (tail - head_.load(std::memory_order_acquire) == slots_.size()) return false;
    slots_[tail & mask_] = value;
    tail_.store(tail + 1, std::memory_order_release);
    return true;
  }

  // The oldest element, or null; stays until Pop.
  const T* Front() const {
    const size_t head = head_.load(std::memory_order_relaxed);
    if (head == tail_.load(std::memory_order_acquire)) return nullptr;
    return &slots_[head & mask_];
  }

  // REQUIRES: Front() is not null.
  void Pop() { head_.store(head_.load(std::memory_order_relaxed) + 1, std::memory_order_release); }

 private:
  std::vector<T> slots_;
  const size_t mask_;
  alignas(kCacheLine) std::atomic<size_t> tail_{0};
  alignas(kCacheLine) std::atomic<size_t> head_{0};
};

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_SPSC_RING_H_
