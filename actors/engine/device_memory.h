// The memory that a session takes for a device of a plan, by what it is for.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_ENGINE_DEVICE_MEMORY_H_
#define PENSTOCK_ACTORS_ENGINE_DEVICE_MEMORY_H_

#include <cstdint>
#include <functional>
#include <string>

#include "planner/plan/plan.h"

namespace penstock::actors {

// Bytes that a session takes for one device, of the memory of the device and of its host.
struct DeviceMemory {
  uint64_t arena_bytes = 0;  // what the plan keeps in the device's own memory
  uint64_t host_bytes = 0;   // what the plan keeps in the memory of the device's host
  // Of collectives: messages from devices whose memory cannot be read where it lies, and partial
  // results.
  uint64_t collective_bytes = 0;
  // Of an asynchronous device: pinned memory of the host (host_staging.h).
  uint64_t staging_bytes = 0;

  // Of device and host together.
  uint64_t total() const { return arena_bytes + host_bytes + collective_bytes + staging_bytes; }
};

// Whether device `reader` can read the memory of `owner` where it lies: Endpoint::CanView.
using CanView = std::function<bool(uint32_t reader, uint32_t owner)>;

// Null `can_view`: any device can read all memory.
// REQUIRES: CheckPlan(plan) is OK, or CheckPlanSlice of a slice with the device.
DeviceMemory MemoryOf(const planner::Plan& plan, uint32_t device, const CanView& can_view,
                      bool is_synchronous);

// "1.5 MiB (arena 1.0 MiB, collective buffers 512.0 KiB)": names what there is besides the arena.
std::string ToString(const DeviceMemory& memory);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_DEVICE_MEMORY_H_
