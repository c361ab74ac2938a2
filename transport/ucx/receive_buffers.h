// Buffers for the bytes of messages that cannot stay where UCX has them: short (eager) messages
// that arrive before their receive, and messages that a view shows until it is released. A buffer
// that was released is used again.
//
// Thread rule: external synchronisation.
// Invariant: allocates only when more, or longer, buffers are in use than ever before.

#ifndef PENSTOCK_TRANSPORT_UCX_RECEIVE_BUFFERS_H_
#define PENSTOCK_TRANSPORT_UCX_RECEIVE_BUFFERS_H_

#include <algorithm>
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "transport/ucx/wire.h"

namespace penstock::transport::ucx {

// Buffers of kMaxEagerBytes.
class EagerBuffers {
 public:
  std::byte* Acquire() {
    if (free_.empty()) {
      buffers_.push_back(std::make_unique_for_overwrite<std::byte[]>(kMaxEagerBytes));
      free_.reserve(buffers_.capacity());
      return buffers_.back().get();
    }
    std::byte* buffer = free_.back();
    free_.pop_back();
    return buffer;
  }

  void Release(void* buffer) { free_.push_back(static_cast<std::byte*>(buffer)); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> buffers_;
  std::vector<std::byte*> free_;
};

struct StagingBuffer {
  std::unique_ptr<std::byte[]> bytes;  // null: no buffer
  size_t num_bytes = 0;
};

// Buffers of any length.
class StagingBuffers {
 public:
  // A buffer of `num_bytes` or more.
  StagingBuffer Acquire(size_t num_bytes) {
    const auto found = std::find_if(
        free_.begin(), free_.end(),
        [num_bytes](const StagingBuffer& buffer) { return buffer.num_bytes >= num_bytes; });
    if (found == free_.end()) {
      return {std::make_unique_for_overwrite<std::byte[]>(num_bytes), num_bytes};
    }
    std::swap(*found, free_.back());
    StagingBuffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  void Release(StagingBuffer buffer) { free_.push_back(std::move(buffer)); }

 private:
  std::vector<StagingBuffer> free_;
};

}  // namespace penstock::transport::ucx

#endif  // PENSTOCK_TRANSPORT_UCX_RECEIVE_BUFFERS_H_
