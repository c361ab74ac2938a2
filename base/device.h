// The device interface: memory, streams, copies and events. Everything that computes or copies goes
// through a stream, so that an executor never assumes that a launched kernel has finished.
//
// A device is one of two kinds. On a synchronous one (a CPU) work is done when the call that gives
// it to a stream returns, and the host may use the device's memory. On an asynchronous one (a GPU)
// work runs later, in the order of its stream, and memory of kDevice is touched only by kernels and
// copies: its addresses mean nothing to the host.
//
// Errors of asynchronous work travel with the stream. Work that fails makes what follows in the
// stream meaningless: the device skips it, or runs it on values that mean nothing, and every event
// recorded from then on carries the error, as do streams that wait for such an event, until Reset.
// So memory that later work writes in place, states included, has to be set again.
//
// Thread rule: a Device is thread-safe to allocate from; a Stream and its events belong to one
// thread at a time, except where an implementation says more.
// Invariants: work on one stream runs in launch order; work on two streams is ordered only by
// Record and Wait. Streams are destroyed before the memory, kernels and events that their work
// uses.

#ifndef PENSTOCK_BASE_DEVICE_H_
#define PENSTOCK_BASE_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/thread_pool.h"

namespace penstock {

// What memory a device allocates.
enum class MemoryKind : uint8_t {
  kDevice,  // where the device's kernels work
  kPinned,  // host memory that the device copies to and from directly
  kHost,    // ordinary host memory
};

// One allocation; freed with the object.
class Memory {
 public:
  virtual ~Memory() = default;
  // As the device's kernels and copies see it.
  std::byte* data() const { return data_; }
  // The size that was asked for.
  size_t num_bytes() const { return num_bytes_; }

 protected:
  // `data` stays with the derived class, which frees it.
  Memory(std::byte* data, size_t num_bytes) : data_(data), num_bytes_(num_bytes) {}

 private:
  std::byte* data_;
  size_t num_bytes_;
};

// Of work without a name, such as a copy.
inline constexpr uint64_t kNoLaunch = UINT64_MAX;

// The first failure of a stream since it was made or reset.
struct StreamError {
  absl::Status status;          // what went wrong
  uint64_t launch = kNoLaunch;  // what failed: KernelArgs::launch
};

// A point in a stream's order. Reusable: Record moves it.
class Event {
 public:
  virtual ~Event() = default;
  // True once all that the recording stream had been given before Record has run or was skipped;
  // true for an event never recorded. Does not block.
  virtual bool IsDone() const = 0;
  // The stream's error when it came to the event; null if it had none. It stays until the next
  // Record. REQUIRES: IsDone().
  virtual const StreamError* error() const = 0;
  // Nanoseconds from the completion of `earlier` to that of this event, by the device's clock; -1:
  // unknown. REQUIRES: both are from CreateTimedEvent of one device, recorded and done.
  virtual int64_t NsSince(const Event& earlier) const {
    (void)earlier;
    return -1;
  }
};

// Between which memories a copy moves bytes. Pinned memory is the host's.
enum class CopyKind : uint8_t { kHostToDevice, kDeviceToHost, kDeviceToDevice };

// A queue of work for a device; the comment at the top says how work, events and errors behave.
class Stream {
 public:
  virtual ~Stream() = default;

  // Enqueues a copy of `num_bytes`; both sides stay until it has run. Device sides lie in kDevice
  // memory of this device. Host sides may be any memory, but a device may block on a copy whose
  // host side is not kPinned.
  virtual void Copy(void* to, const void* from, size_t num_bytes, CopyKind kind) = 0;

  // Marks the point behind all work given so far. `event` outlives that work and may be recorded
  // again.
  virtual void Record(Event* event) = 0;

  // Work given after this starts only when `event`, as recorded so far, is done.
  virtual void Wait(const Event* event) = 0;

  // Lets a stream that has no thread of its own do some of its work. Returns whether it did.
  virtual bool Poll() { return false; }

  // Forgets the stream's error, so that work given after this runs again. Fails if the device does
  // not recover. REQUIRES: all work given so far has run or was skipped.
  virtual absl::Status Reset() = 0;
};

// What memory, streams and events are made by. It outlives all of them.
class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "cuda", ...: for messages.
  virtual std::string kind() const = 0;

  // Whether work has run when the call that gives it to a stream returns, and the host may use
  // memory of every kind. The events of such a device are always done and carry no error.
  virtual bool is_synchronous() const = 0;

  // Zeroed, prefaulted and aligned to at least 64 bytes; kResourceExhausted names the amount.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) = 0;

  // A stream without work. REQUIRES: destroyed before what its work uses.
  virtual std::unique_ptr<Stream> CreateStream() = 0;
  // An event that no stream has recorded yet.
  virtual std::unique_ptr<Event> CreateEvent() = 0;
  // Events for NsSince, which may cost more to record; plain ones where the device measures
  // nothing.
  virtual std::unique_ptr<Event> CreateTimedEvent() { return CreateEvent(); }

  // The host threads that the device's kernels may use; null where kernels do not run on the host.
  virtual ThreadPool* thread_pool() { return nullptr; }
};

// Records `event` on `stream` and polls until it is done; the stream's error, or kDeadlineExceeded
// after `timeout_ns`. Not for hot paths: the caller's thread does nothing else.
absl::Status WaitUntilDone(Stream& stream, Event& event, int64_t timeout_ns);

// Time as the engine sees it: the machine's, or a test's or simulator's virtual one.
class Clock {
 public:
  virtual ~Clock() = default;
  // Monotonic, in nanoseconds from an arbitrary start.
  virtual int64_t NowNs() const = 0;
};

// The machine's monotonic clock. The object is stateless.
class SteadyClock : public Clock {
 public:
  int64_t NowNs() const override;
};

// A CPU device: synchronous streams, kernels on the caller and `num_threads` - 1 more threads.
std::unique_ptr<Device> CreateCpuDevice(int num_threads);

}  // namespace penstock

#endif  // PENSTOCK_BASE_DEVICE_H_
