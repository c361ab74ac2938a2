// Communicator through NCCL: one communicator of NCCL for each group of devices, made once and
// shared by all collectives of the group. NCCL runs these in the order of their launches and
// matches them by it.
//
// A group is joined without blocking. Creating a collective starts it; the first launch waits until
// all members have joined, for at most NcclOptions::timeout. After an error of NCCL, or one that it
// reports later (ncclCommGetAsyncError, asked at each launch), the communicator is aborted, and
// further launches fail with that error. It is aborted when it is destroyed, too, so that a member
// that waits for one that is gone lets go of its device.
//
// Poisoned runs. A run that tells failures also takes, in the same group of NCCL's calls, the
// largest of two flags of all members: whether the device has a fault, and whether a run was
// poisoned since the last reset. The result is copied to the stream's PeerFault. So no kernel and
// no call of the host is needed, and a device that has failed still takes part.
//
// Thread rule: as stream_collective.h; a factory may be called on any thread.

#ifndef PENSTOCK_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_
#define PENSTOCK_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_

#include "transport/nccl.h"
#include "transport/nccl/nccl_api.h"

namespace penstock::transport {

// CreateNcclCommunicators with the functions of `api`.
CommunicatorFactory CreateNcclCommunicators(NcclApi api, const NcclOptions& options);

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_NCCL_NCCL_COMMUNICATOR_H_
