// The device interface: memory, streams and events. Everything that computes or copies goes
// through a stream, so that an executor never assumes that a launched kernel has finished.
//
// Thread rule: a Device is thread-safe to allocate from; a Stream and its events belong to the one
// executor that created them, except where an implementation says more.
// Invariants: work on one stream runs in launch order; work on two streams is ordered only by
// Record and Wait.

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

enum class MemoryKind : uint8_t {
  kDevice,  // where the device's kernels work
  kPinned,  // host memory that the device and the transport reach directly
  kHost,
};

// One allocation; freed with the object.
class Memory {
 public:
  virtual ~Memory() = default;
  std::byte* data() const { return data_; }
  size_t num_bytes() const { return num_bytes_; }

 protected:
  Memory(std::byte* data, size_t num_bytes) : data_(data), num_bytes_(num_bytes) {}

 private:
  std::byte* data_;
  size_t num_bytes_;
};

// A point in a stream's order. Reusable: Record moves it.
class Event {
 public:
  virtual ~Event() = default;
  // True once all that the recording stream had been given before Record has run; true for an
  // event never recorded. Does not block.
  virtual bool IsDone() const = 0;
};

// A piece of work without ownership: the callee and its context outlive the stream's work.
struct Work {
  void (*run)(void* context) = nullptr;
  void* context = nullptr;
};

class Stream {
 public:
  virtual ~Stream() = default;

  // Enqueues `work`. On a device whose API is asynchronous itself (CUDA) `run` is called here and
  // enqueues on the native stream; otherwise it is called when its turn comes.
  virtual void Launch(Work work) = 0;

  virtual void Record(Event* event) = 0;

  // Work launched after this starts only when `event`, as recorded so far, is done.
  virtual void Wait(const Event* event) = 0;

  // True when Launch returns only after the work has run: the executor then skips events.
  virtual bool is_synchronous() const = 0;

  // Lets a stream that has no thread of its own do some of its work. Returns whether it did.
  virtual bool Poll() { return false; }
};

class Device {
 public:
  virtual ~Device() = default;

  // "cpu", "cuda", "null", ...: selects the kernels.
  virtual std::string kind() const = 0;

  // Zeroed, prefaulted and aligned to at least 64 bytes; kResourceExhausted names the amount.
  virtual absl::StatusOr<std::unique_ptr<Memory>> Allocate(size_t num_bytes, MemoryKind kind) = 0;

  virtual std::unique_ptr<Stream> CreateStream() = 0;
  virtual std::unique_ptr<Event> CreateEvent() = 0;

  // The host threads that the device's kernels may use; null where kernels do not run on the host.
  virtual ThreadPool* thread_pool() { return nullptr; }
};

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
