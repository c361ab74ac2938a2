// Communicator through NCCL: one communicator of NCCL for each group of devices, made once and
// shared by all collectives of the group. NCCL runs these in the order of their launches and
// matches them by it.
//
// Groups are joined without blocking. Creating the communicator of a device starts to join all of
// its groups, in the order that all devices have in common; the first launch of a group waits until
// all members have joined it, for at most NcclOptions::timeout. After an error of NCCL, or one that
// it reports later (ncclCommGetAsyncError, asked at each launch and by StreamCollective::Check),
// the group is aborted, and further launches fail with that error, which names the device and the
// group; it is kUnavailable if NCCL cannot reach another member. A group is aborted when it is
// destroyed, too, so that a member that waits for one that is gone lets go of its device.
//
// Members of one process agree on the unique id of a group here. Where members are in several
// processes, one of these makes the id (CommunicatorSource::CreateGroupId), and its caller passes
// it on to the others: NCCL's own connections ask for nothing but the id.
//
// Messages are sends and receives on a communicator of their two devices for their direction, which
// may take few thread blocks (GroupUse).
//
// Poisoned runs. A run that tells failures also takes, in the same group of NCCL's calls, the
// largest of two flags of all members: whether the device has a fault, and whether a run was
// poisoned since the last reset. The result is copied to the stream's PeerFault. So no kernel and
// no call of the host is needed, and a device that has failed still takes part. The two devices of
// a message send each other their flags instead.
//
// Thread rule: as stream_collective.h; a factory may be called on any thread.

#ifndef PENSTOCK_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_
#define PENSTOCK_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

#include "transport/nccl.h"
#include "transport/nccl/nccl_api.h"

namespace penstock::transport {

// CreateNcclCommunicators with the functions of `api`.
CommunicatorFactory CreateNcclCommunicators(NcclApi api, const NcclOptions& options);
// Likewise CreateNcclSource.
absl::StatusOr<std::shared_ptr<CommunicatorSource>> CreateNcclSource(
    NcclApi api, std::function<std::string(uint32_t index)> gpu_of, const NcclOptions& options);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_
