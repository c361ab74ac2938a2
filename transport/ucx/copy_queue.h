// Long copies from the memory of peers of this host, a chunk at a time, so that an urgent message
// waits for no more than a chunk. Copies of the lowest channel go first, and overtake the oldest a
// bounded number of times, as transfers over a network do (transfer_queue.h).
//
// Example: a copy of 3 MiB on channel 7 is added, and its first chunk is made. A copy of 2 MiB on
// channel 3 is added: both its chunks come next, then those that are left of the first.
//
// Copy has members `next` (intrusive_queue.h), `channel`, `num_bytes`, `data` (where the bytes go),
// `source` and `num_copied`.
//
// Thread rule: external synchronisation.

#ifndef PENSTOCK_TRANSPORT_UCX_COPY_QUEUE_H_
#define PENSTOCK_TRANSPORT_UCX_COPY_QUEUE_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "base/copy_bytes.h"
#include "base/stream_copy.h"
#include "transport/ucx/bounded_priority_queue.h"

namespace penstock::transport::ucx {

// About 0.1 ms.
inline constexpr uint64_t kCopyChunkBytes = 1 << 20;

template <typename Copy>
class CopyQueue {
 public:
  bool empty() const { return waiting_.empty(); }

  // The memory stays until the copy has been returned by CopyChunk or removed.
  void Add(Copy* copy, const void* source) {
    copy->source = static_cast<const std::byte*>(source);
    copy->num_copied = 0;
    waiting_.Add(copy);
  }

  // Makes a chunk of the most urgent copy; the copy if that was its last one, else null.
  // REQUIRES: not empty().
  Copy* CopyChunk() {
    Copy* const first = waiting_.TakeTurn();
    const auto size = static_cast<size_t>(
        std::min<uint64_t>(kCopyChunkBytes, first->num_bytes - first->num_copied));
    std::byte* const to = static_cast<std::byte*>(first->data) + first->num_copied;
    const std::byte* const from = first->source + first->num_copied;
    if (first->num_bytes >= kStreamBytes) {
      StreamCopy(to, from, size);
    } else {
      CopyBytes(to, from, size);
    }
    first->num_copied += size;
    if (first->num_copied < first->num_bytes) return nullptr;
    return Remove([first](const Copy& other) { return &other == first; });
  }

  // Removes the first copy for which `is_it` holds; null if there is none.
  template <typename Predicate>
  Copy* Remove(Predicate is_it) {
    return waiting_.Remove(is_it);
  }

 private:
  BoundedPriorityQueue<Copy> waiting_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_COPY_QUEUE_H_
