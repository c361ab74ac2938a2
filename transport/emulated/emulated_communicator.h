// Collectives and messages on the streams of emulated devices (base/emulated_device.h) of one
// process: a member copies its input to a place that all of them share, and forms its result when
// all inputs are there. Its stream waits until then, and no other stream of its device does.
//
// What NCCL demands is demanded here: collectives of the same devices run one after the other, in
// the order in which they are launched, and a launch out of the order of another member is an error
// (kFailedPrecondition), which names both collectives. After that, they run in any order, so that
// nothing hangs. A sender waits for its receiver even where NCCL might not, as it has buffers.
//
// Thread rule: the factory may be called on any thread; otherwise as stream_collective.h.

#ifndef PENSTOCK_TRANSPORT_EMULATED_EMULATED_COMMUNICATOR_H_
#define PENSTOCK_TRANSPORT_EMULATED_EMULATED_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "transport/stream_collective.h"

namespace penstock::transport {

// For the devices of one session at a time, which must be emulated ones.
CommunicatorFactory CreateEmulatedCommunicators();

// For devices of several nodes that run in one process and share the source: members of a group
// find each other by its id. `hardware_of` is CommunicatorSource::HardwareOf.
std::shared_ptr<CommunicatorSource> CreateEmulatedSource(
    std::function<std::string(uint32_t index)> hardware_of);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_EMULATED_EMULATED_COMMUNICATOR_H_
