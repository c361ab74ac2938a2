// Moving bytes between logical devices: tagged messages into memory that the receiver has posted.
//
// A Transport joins `num_devices` logical devices; each device has one Endpoint. A message is
// matched by (source, tag). Nothing is buffered beyond what the sender holds: a Send completes when
// its bytes have reached the posted Recv (or View has been released), so the sender's register is
// its credit and a receiver that posts nothing is never flooded.
//
// Thread rule: an Endpoint belongs to one thread at a time, its owner; endpoints of
// one transport may be driven by different threads concurrently. A request belongs to its endpoint
// until it is done; only calls of that endpoint change it, and the call that posts it may end it at
// once. When an endpoint is not driven any more its requests may go, done or not, and the transport
// after them.
// Invariants: messages of one (source, tag) match in order; every request ends: done, failed or
// cancelled. The bytes of a request that has ended, in whatever way, are neither read nor written
// for it any more. A transport never blocks in any call.
//
// Example: device 0 sends 8 bytes to device 1.
//   endpoint 1: Recv(0, {generation, channel, 7}, buffer, 8, &recv)     recv kPending
//   endpoint 0: Send(1, {generation, channel, 7}, data, 8, 0, &send)    send kPending
//   endpoint 1: Progress() is true                                      recv kDone, buffer filled
//   endpoint 0: Progress() is true                                      send kDone, data free

#ifndef PENSTOCK_TRANSPORT_TRANSPORT_H_
#define PENSTOCK_TRANSPORT_TRANSPORT_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"

namespace penstock::transport {

// What a message is for. Messages of another generation than the endpoint's are dropped and
// counted. `channel` is dense: plans number their transfers and collectives from 0.
struct Tag {
  uint32_t generation = 0;  // of the endpoints that exchange the message
  uint32_t channel = 0;     // which transfer or collective of the plan
  uint64_t sequence = 0;    // (step and micro-batch) and, in collectives, the message within it
  friend bool operator==(const Tag&, const Tag&) = default;
};

// Flags of a token that travels with a message.
enum MessageFlags : uint32_t {
  kNoFlags = 0,
  kErrorFlag = 1,  // the sender's step has failed: the bytes mean nothing
};

// One send or receive in flight. Owned by the caller, who may reuse it once it is done; embedded in
// preallocated structures, so that messages allocate nothing.
struct Request {
  // Idle: not posted since it was made. Pending: posted, and not ended. Done and failed: ended.
  enum class State : uint8_t { kIdle, kPending, kDone, kFailed };

  State state = State::kIdle;  // written by the transport from the post until the end
  uint32_t flags = 0;          // of a receive that is done: the sender's flags
  const void* view = nullptr;  // of a View that is done: the sender's bytes
  absl::Status status;         // why it failed

  // Whether it has ended.
  bool is_done() const { return state == State::kDone || state == State::kFailed; }

  // For the transport alone.
  void* internal = nullptr;
  uint64_t internal_word = 0;  // likewise
};

// What one device sends and receives through.
class Endpoint {
 public:
  virtual ~Endpoint() = default;

  // The generation that the tags of its messages carry.
  virtual uint32_t generation() const = 0;

  // Sends `num_bytes` at `data`, which stay unchanged until the request is done. A tag of another
  // generation or of no channel fails the request and counts as dropped.
  // REQUIRES: request->state is not kPending; `peer` is a device of the transport.
  virtual void Send(uint32_t peer, Tag tag, const void* data, size_t num_bytes, uint32_t flags,
                    Request* request) = 0;

  // Receives exactly `num_bytes` into `data`; a message of another size fails both requests.
  virtual void Recv(uint32_t peer, Tag tag, void* data, size_t num_bytes, Request* request) = 0;

  // True if View may be called: every peer's memory can be read where it lies.
  virtual bool can_view() const = 0;
  // The same of one peer.
  virtual bool CanView(uint32_t /*peer*/) const { return can_view(); }

  // Receives without copying: when done, request->view points at the sender's bytes, which stay
  // until Release. REQUIRES: CanView(peer).
  virtual void View(uint32_t peer, Tag tag, size_t num_bytes, Request* request) = 0;
  // REQUIRES: `request` is a View that is kDone, and was not released.
  virtual void Release(Request* request) = 0;

  // Ends a pending request as kFailed with kCancelled, unless it completes first. A Send that its
  // receiver has matched stays pending until the receiver is done with the bytes, and then
  // completes; of one that is cancelled the bytes are free at once. Nothing happens to a request
  // that is not pending.
  virtual void Cancel(Request* request) = 0;

  // Moves requests along; returns whether any changed state. Never blocks. Peers may need these
  // calls to complete their sends, so an owner keeps calling after its own requests are done.
  virtual bool Progress() = 0;

  // The owner is about to sleep, unless one more Progress finds something: whatever arrives from
  // here on causes a wake-up.
  virtual void PrepareSleep() {}
  // Like PrepareSleep, for an owner that polls file descriptors itself, which saves a thread
  // switch. Returns one that is readable once a message from another process has arrived, until the
  // next Progress; -1 if only wake-ups tell of arrivals.
  virtual int PrepareSleepOnArrivals() {
    PrepareSleep();
    return -1;
  }

  // Called when this endpoint has something new to progress, so that a sleeping owner wakes: at
  // least once after anything that Progress has not seen. It is called by other threads' sends,
  // receives and releases, and by Transport::Wait. Sequentially consistent operations or a fence
  // order what is new before the call, and the call before what Progress reads. Set before the
  // first message; must be thread-safe and cheap.
  virtual void SetWakeup(std::function<void()> wakeup) = 0;
};

// What the transport has seen, for reports.
struct TransportStats {
  uint64_t messages = 0;  // received or viewed
  uint64_t bytes = 0;     // in those messages
  uint64_t dropped = 0;   // wrong generation or unknown channel
  // Requests whose memory another library is reading or writing for the transport just now.
  uint64_t transferring = 0;
};

// Joins logical devices, some or all of them in this process; see the top of this file.
class Transport {
 public:
  virtual ~Transport() = default;
  // What moves the bytes, such as "inproc" or "ucx": for messages.
  virtual std::string name() const = 0;
  // Of all processes. Devices are numbered from 0.
  virtual uint32_t num_devices() const = 0;
  // The endpoint of a device hosted by this process; made once. Owned by the transport.
  virtual absl::StatusOr<Endpoint*> OpenEndpoint(uint32_t device) = 0;
  // Memory in which messages lie, such as a device's arena; it stays until the transport is gone,
  // and longer if its owner was given to Hold. Known memory is moved faster, and receives in it may
  // be filled at any time, by any thread. Its pages may be replaced by others with the same bytes:
  // nobody uses it during the call.
  virtual absl::Status RegisterMemory(void* /*data*/, size_t /*num_bytes*/) {
    return absl::OkStatus();
  }
  // Shares the ownership of memory that requests use, `num_bytes` in all, until nothing reads or
  // writes the memory for a request any more: that may be after the transport has gone. Called
  // before the first message that names the memory, once for each owner; by any thread.
  virtual void Hold(std::shared_ptr<const void> owner, uint64_t num_bytes);
  // Sleeps until `fd` is readable, or something has arrived from another process for an endpoint
  // whose owner has prepared to sleep (its wake-up is called), or `timeout_ms` have passed. Bounds
  // on requests are counted here, so some thread of the process waits at least every second. One
  // thread at a time, beside the owners of the endpoints.
  virtual void Wait(int fd, int timeout_ms);
  // Counts since the transport was made, of all endpoints in this process.
  virtual TransportStats stats() const = 0;

 private:
  absl::Mutex owners_mutex_;
  std::vector<std::shared_ptr<const void>> owners_ ABSL_GUARDED_BY(owners_mutex_);
};

// What the processes of a transport agree on.
struct TransportOptions {
  uint32_t num_devices = 1;   // of all processes
  uint32_t generation = 0;    // only tags of this one are taken
  uint32_t num_channels = 0;  // channels 0 .. num_channels-1 exist
};

// All devices in this process; receives copy once, register to register, and views do not copy.
std::unique_ptr<Transport> CreateInprocTransport(const TransportOptions& options);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_TRANSPORT_H_
