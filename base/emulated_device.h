// A device on the host that behaves like a GPU: what is given to its streams runs later, beside the
// thread that gave it, and its memory cannot be touched by the host. For tests and benchmarks of
// everything that has to work with a GPU, on machines without one.
//
// Addresses of its kDevice memory lie in pages that nobody may read or write: the bytes are
// elsewhere, and only the device's own copies and runs know where. So a host access ends the
// process at once, on any thread and at any time, as it should.
//
// Work runs one piece at a time, of streams in an order drawn from a seed that keeps what the
// interface orders. Without a thread of its own the device works in Stream::Poll, a random amount
// at a time: then one thread replays any interleaving from its seed.
//
// Kernels get onto it by kernels/emulated/emulated_kernels.h.
//
// Thread rule: that of base/device.h; different threads may use different streams.
// Invariants: giving work to a stream allocates nothing once its ring has been filled once. A
// stream that is destroyed drops what has not begun.

#ifndef PENSTOCK_BASE_EMULATED_DEVICE_H_
#define PENSTOCK_BASE_EMULATED_DEVICE_H_

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"

#include "base/device.h"
#include "base/stream_graph.h"

namespace penstock {

struct EmulatedDeviceOptions {
  bool has_thread = true;  // else work runs in Stream::Poll
  uint64_t seed = 0;
};

// One run of a kernel, as it was captured at its launch.
struct EmulatedRun {
  absl::Status (*function)(void* context, const EmulatedRun& run) = nullptr;
  // Instead of `function`, for work that waits for other devices, such as a part of a collective:
  // called until it returns true, also where the stream has an error; then it may give one. What it
  // changes of `run` is there the next time.
  bool (*retry)(void* context, EmulatedRun& run, bool has_error, absl::Status* status) = nullptr;
  void* context = nullptr;      // outlives the run
  std::vector<void*> pointers;  // into kDevice or kPinned memory, or null; the function gets them
                                // as the host can use them
  std::array<uint64_t, 4> values = {};
  int step_value = -1;  // which of them is KernelArgs::step; -1: none
  uint64_t launch = kNoLaunch;
};

// Runs with `retry` cannot be captured into graphs.
class EmulatedStream : public Stream, public CapturingStream {
 public:
  // The next run, to be filled in: every member but `retry`, which is null, and `step_value`, which
  // is -1, keeps what an earlier run has left there.
  virtual EmulatedRun& BeginLaunch() = 0;
  // Enqueues what BeginLaunch returned.
  virtual void EndLaunch() = 0;
};

class EmulatedDevice : public Device {
 public:
  // Its streams are EmulatedStreams.
  static std::unique_ptr<EmulatedDevice> Create(const EmulatedDeviceOptions& options);

  // Something has happened elsewhere that a run (EmulatedRun::retry) waits for. Any thread.
  virtual void Wake() = 0;

  // A CPU device for the kernels that run on this one, of one thread.
  virtual Device& host_device() = 0;
  virtual Stream& host_stream() = 0;
};

}  // namespace penstock

#endif  // PENSTOCK_BASE_EMULATED_DEVICE_H_
