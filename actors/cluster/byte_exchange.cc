#include "actors/cluster/byte_exchange.h"

#include <algorithm>
#include <memory>
#include <new>
#include <utility>

#include "absl/status/statusor.h"

#include "actors/engine/error_origin.h"
#include "base/counted.h"
#include "base/format.h"
#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

// A sleep ends after this even if nobody calls, so that a lost wake-up costs time and not progress.
constexpr int kSleepMs = 100;

}  // namespace

ByteExchange::ByteExchange(transport::Transport& transport, transport::Endpoint& endpoint,
                           Stopper& stopper)
    : transport_(transport), endpoint_(endpoint), stopper_(stopper) {
  endpoint_.SetWakeup([&waker = stopper_.waker_] { waker.Notify(); });
}

absl::Status ByteExchange::Run(const std::map<uint32_t, ByteSource>& sends,
                               const std::map<uint32_t, ByteTarget>& receives,
                               const Options& options) {
  for (const auto& [peer, source] : sends) {
    if (source.num_bytes() == 0) continue;
    Stream& stream = streams_.emplace_back();
    stream.peer = peer;
    stream.source = &source;
    stream.num_bytes = source.num_bytes();
  }
  for (const auto& [peer, target] : receives) {
    if (target.num_bytes() == 0) continue;
    Stream& stream = streams_.emplace_back();
    stream.peer = peer;
    stream.target = &target;
    stream.num_bytes = target.num_bytes();
  }
  uint64_t buffer_bytes = 0;
  for (const Stream& stream : streams_) {
    buffer_bytes += stream.slots.size() * std::min<uint64_t>(options.chunk_bytes, stream.num_bytes);
  }
  const std::shared_ptr<std::byte[]> buffers(new (std::nothrow) std::byte[buffer_bytes]);
  if (buffers == nullptr) {
    return absl::ResourceExhaustedError(
        StrCat("no memory for ", FormatBytes(buffer_bytes), " of buffers"));
  }
  transport_.Hold(buffers, buffer_bytes);
  std::byte* next = buffers.get();
  for (Stream& stream : streams_) {
    for (Slot& slot : stream.slots) {
      slot.buffer = next;
      next += std::min<uint64_t>(options.chunk_bytes, stream.num_bytes);
    }
  }

  const int64_t begin_ns = clock_.NowNs();
  while (true) {
    bool has_moved = false;
    bool is_done = true;
    for (Stream& stream : streams_) {
      const absl::StatusOr<bool> moved = Advance(stream, options.chunk_bytes);
      if (!moved.ok()) return With(stream.peer, moved.status());
      has_moved |= *moved;
      is_done &= stream.num_posted == stream.num_bytes && !stream.slots[0].is_busy &&
                 !stream.slots[1].is_busy;
    }
    if (is_done) return absl::OkStatus();
    if (stopper_.is_stopped()) return absl::CancelledError("the exchange of states was stopped");
    if (absl::Nanoseconds(clock_.NowNs() - begin_ns) > options.timeout) {
      return Late();
    }
    if (!has_moved) Progress();
  }
}

// Names one peer that is awaited, and how many others.
absl::Status ByteExchange::Late() const {
  std::map<uint32_t, uint64_t> left;  // bytes, by peer
  const Stream* last = nullptr;
  for (const Stream& stream : streams_) {
    uint64_t num_bytes = stream.num_bytes - stream.num_posted;
    for (const Slot& slot : stream.slots) num_bytes += slot.is_busy ? slot.size : 0;
    if (num_bytes == 0) continue;
    left[stream.peer] += num_bytes;
    // What a peer has not sent says more than what it has not taken.
    if (last == nullptr || (last->target == nullptr && stream.target != nullptr)) last = &stream;
  }
  if (last == nullptr) return absl::DeadlineExceededError("the exchange of states takes too long");
  return With(
      last->peer,
      absl::DeadlineExceededError(StrCat(
          "the exchange of states takes too long: ", FormatBytes(left[last->peer]),
          " of it are left",
          left.size() == 1 ? ""
                           : StrCat(", and some with ", Counted(left.size() - 1, "other node")))));
}

absl::Status ByteExchange::With(uint32_t peer, absl::Status status) {
  SetOrigin({.peer = static_cast<int32_t>(peer)}, &status);
  return status;
}

absl::StatusOr<bool> ByteExchange::Advance(Stream& stream, size_t chunk_bytes) {
  bool has_moved = false;
  for (Slot& slot : stream.slots) {
    if (slot.is_busy) {
      if (!slot.request.is_done()) continue;
      RETURN_IF_ERROR(slot.request.status);
      if (stream.target != nullptr) stream.target->Copy(slot.offset, slot.size, slot.buffer);
      slot.is_busy = false;
      has_moved = true;
    }
    if (stream.num_posted == stream.num_bytes) continue;
    slot.offset = stream.num_posted;
    slot.size =
        static_cast<size_t>(std::min<uint64_t>(chunk_bytes, stream.num_bytes - stream.num_posted));
    stream.num_posted += slot.size;
    slot.is_busy = true;
    has_moved = true;
    const transport::Tag tag{endpoint_.generation(), 0, slot.offset / chunk_bytes};
    if (stream.source != nullptr) {
      stream.source->Copy(slot.offset, slot.size, slot.buffer);
      endpoint_.Send(stream.peer, tag, slot.buffer, slot.size, transport::kNoFlags, &slot.request);
    } else {
      endpoint_.Recv(stream.peer, tag, slot.buffer, slot.size, &slot.request);
    }
  }
  return has_moved;
}

void ByteExchange::Progress() {
  if (endpoint_.Progress()) return;
  Waker& waker = stopper_.waker_;
  waker.PrepareSleep();
  endpoint_.PrepareSleep();
  if (endpoint_.Progress() || stopper_.is_stopped()) {
    waker.CancelSleep();
    return;
  }
  transport_.Wait(waker.fd(), waker.fd() < 0 ? 1 : kSleepMs);
  waker.EndSleep();
}

void ByteExchange::Linger(absl::Duration timeout) {
  const int64_t begin_ns = clock_.NowNs();
  while (!stopper_.is_stopped() && absl::Nanoseconds(clock_.NowNs() - begin_ns) <= timeout) {
    Progress();
  }
}

}  // namespace penstock::actors
