// A device whose streams are asynchronous: each runs its work on a thread of its own, as a GPU does
// beside the thread that launches. What measures and tests the engine on such devices without one.
//
// Thread rule: that of base/device.h.
// Invariants: Launch and Record allocate nothing after the first Launch, which starts the thread. A
// stream that is destroyed drops the work that it has not begun.

#ifndef PENSTOCK_BENCH_THREADED_DEVICE_H_
#define PENSTOCK_BENCH_THREADED_DEVICE_H_

#include <memory>

#include "base/device.h"

namespace penstock::bench {

// Its memory is that of a CPU device.
std::unique_ptr<Device> CreateThreadedDevice();

}  // namespace penstock::bench

#endif  // PENSTOCK_BENCH_THREADED_DEVICE_H_
