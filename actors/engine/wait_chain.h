// Who waits for whom, from a look at all devices: an arrow leads from a device that has nothing to
// run to each device that keeps it waiting. Where the arrows end is the root: what to look at.
//
// An arrow stands for a communication that one device has started and another one has not: their
// counts of starts and completions tell (DeviceSnapshot::communications). A device that does not
// answer may keep everybody waiting that communicates with it.
//
// Example: the plan sends h from device 0 to device 1, and g from device 1 to device 2.
//   device 0 runs actor 'mm'                                     running          root
//   device 1 has started recv 'h', device 0 has not sent it      waits for 0
//   device 2 has started recv 'g', device 1 has not sent it      waits for 1
//
// Of a job that runs, the devices were not looked at in the same moment, and the arrows are those
// of any moment in between.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_ACTORS_ENGINE_WAIT_CHAIN_H_
#define PENSTOCK_ACTORS_ENGINE_WAIT_CHAIN_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/types/span.h"

#include "actors/engine/device_snapshot.h"
#include "planner/plan/plan.h"

namespace penstock::actors {

// What an actor waits for.
struct ActorWait {
  std::string actor;              // that waits
  uint32_t device = 0;            // that it is on, by its index in the plan
  std::string what;               // "device 1, recv of 'h'", "tokens from 'y' 0 of 1"
  std::vector<uint32_t> devices;  // that keep it waiting; empty: none does
  friend bool operator==(const ActorWait&, const ActorWait&) = default;
};

// All waits of one look, and where they lead.
struct WaitChains {
  std::vector<ActorWait> waits;                  // by device
  std::vector<std::vector<uint32_t>> waits_for;  // of each device: the devices, sorted
  // Devices that others wait for and that wait for no other one, by number of those that they keep
  // waiting, directly or not.
  std::vector<uint32_t> roots;
  // Devices that wait for each other in a circle, and for no device outside of it.
  std::vector<std::vector<uint32_t>> cycles;
};

// `devices` are those of the plan, by index; what they say is checked, and what does not fit the
// plan is left out.
WaitChains FindWaitChains(const planner::Plan& plan, absl::Span<const DeviceSnapshot> devices);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_WAIT_CHAIN_H_
