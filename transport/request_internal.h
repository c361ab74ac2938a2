// The handling of requests that all transports share: checking tags, ending, counting messages.

#ifndef PENSTOCK_TRANSPORT_REQUEST_INTERNAL_H_
#define PENSTOCK_TRANSPORT_REQUEST_INTERNAL_H_

#include <atomic>
#include <cstdint>
#include <utility>

#include "absl/status/status.h"

#include "transport/transport.h"

namespace penstock::transport {

// Why no message can have this tag.
absl::Status InvalidTag(const TransportOptions& options, Tag tag);

// Device `source` has sent `num_bytes` where device `destination` expects another size.
absl::Status SizeMismatch(uint32_t source, uint32_t destination, uint64_t channel,
                          uint64_t num_bytes, uint64_t expected_bytes);

inline void Complete(Request* request) {
  request->internal = nullptr;
  request->state = Request::State::kDone;
}

inline void Fail(Request* request, absl::Status status) {
  request->state = Request::State::kFailed;
  request->status = std::move(status);
  request->internal = nullptr;
}

// Resets `request` and makes it pending; fails it and returns false if no message can have `tag`.
inline bool Begin(const TransportOptions& options, Tag tag, Request* request) {
  request->flags = 0;
  request->view = nullptr;
  request->internal = nullptr;
  if (tag.generation != options.generation || tag.channel >= options.num_channels) {
    Fail(request, InvalidTag(options, tag));
    return false;
  }
  request->state = Request::State::kPending;
  if (!request->status.ok()) request->status = absl::OkStatus();
  return true;
}

// Thread rule: one thread counts at a time; any thread reads.
class MessageCounters {
 public:
  void CountMessage(uint64_t num_bytes) {
    Add(&messages_, 1);
    Add(&bytes_, num_bytes);
  }
  void CountDropped() { Add(&dropped_, 1); }

  void AddTo(TransportStats* stats) const {
    stats->messages += messages_.load(std::memory_order_relaxed);
    stats->bytes += bytes_.load(std::memory_order_relaxed);
    stats->dropped += dropped_.load(std::memory_order_relaxed);
  }

 private:
  // Cheaper than fetch_add, and enough for one writer.
  static void Add(std::atomic<uint64_t>* counter, uint64_t amount) {
    counter->store(counter->load(std::memory_order_relaxed) + amount, std::memory_order_relaxed);
  }

  std::atomic<uint64_t> messages_{0};
  std::atomic<uint64_t> bytes_{0};
  std::atomic<uint64_t> dropped_{0};
};

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_REQUEST_INTERNAL_H_
