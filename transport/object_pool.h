// A pool of objects that never move. Acquire reuses a recycled object, which keeps the values that
// it had, and makes a block of new ones when there is none.
//
// T has a member `T* next`, which the pool uses while the object is free.
//
// Thread rule: external synchronisation.
// Invariant: allocates only when more objects are in use than ever before.

#ifndef PENSTOCK_TRANSPORT_OBJECT_POOL_H_
#define PENSTOCK_TRANSPORT_OBJECT_POOL_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "transport/intrusive_queue.h"

namespace penstock::transport {

template <typename T>
class ObjectPool {
 public:
  static constexpr uint32_t kBlockSize = 64;

  T* Acquire() {
    return Acquire([](T&, uint32_t) {});
  }

  // As above; calls `initialize(object, index)` once for every new object.
  template <typename Initialize>
  T* Acquire(const Initialize& initialize) {
    if (free_.empty()) AddBlock(initialize);
    return free_.PopFront();
  }

  void Recycle(T* object) { free_.PushFront(object); }

  // Number of objects, in use or free.
  uint32_t size() const { return static_cast<uint32_t>(blocks_.size()) * kBlockSize; }

  // REQUIRES: index < size().
  T& at(uint32_t index) { return (*blocks_[index / kBlockSize])[index % kBlockSize]; }

 private:
  template <typename Initialize>
  void AddBlock(const Initialize& initialize) {
    uint32_t index = size();
    blocks_.push_back(std::make_unique<std::array<T, kBlockSize>>());
    for (T& object : *blocks_.back()) {
      initialize(object, index++);
      free_.PushBack(&object);
    }
  }

  std::vector<std::unique_ptr<std::array<T, kBlockSize>>> blocks_;
  IntrusiveQueue<T> free_;
};

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_OBJECT_POOL_H_
