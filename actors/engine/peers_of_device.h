// Which devices exchange messages, by a plan: those are all that a transport has to connect.
//
// Thread rule: a pure function.

#ifndef PENSTOCK_ACTORS_ENGINE_PEERS_OF_DEVICE_H_
#define PENSTOCK_ACTORS_ENGINE_PEERS_OF_DEVICE_H_

#include <cstdint>
#include <vector>

#include "planner/plan/plan.h"

namespace penstock::actors {

// The devices that `device` sends to, receives from, or exchanges the messages of a collective
// with, or the choices of their stage: ascending. Symmetric: each of them has `device` among its
// own. REQUIRES: CheckPlan is OK for the device.
std::vector<uint32_t> PeersOfDevice(const planner::Plan& plan, uint32_t device);

}  // namespace penstock::actors

#endif  // PENSTOCK_ACTORS_ENGINE_PEERS_OF_DEVICE_H_
