// Collectives of GPUs through NCCL, whether this build can use it or not: nccl/ implements this
// header where CUDA is built and NCCL's header is there, no_nccl/ otherwise (cmake/Folder.cmake).
//
// NCCL's library is large, so it is not linked but loaded when it is asked for.
//
// Thread rule: any thread.

#ifndef PENSTOCK_TRANSPORT_NCCL_H_
#define PENSTOCK_TRANSPORT_NCCL_H_

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "transport/stream_collective.h"

namespace penstock::transport {

struct NcclSystem {
  absl::Status status;  // why NCCL cannot be used; OK otherwise
  int version = 0;      // as NCCL numbers them: 22809 is 2.28.9; 0: none
};

// Loads NCCL to see what there is.
NcclSystem FindNccl();

struct NcclOptions {
  // Longest time that the members of a group have to join it.
  absl::Duration timeout = absl::Seconds(60);
};

// For the devices of one session of one process, each a GPU of its own. Members of other processes
// do not join: collectives with them fail with kFailedPrecondition. Sums have NCCL's association,
// not that of base/collective.h. kFailedPrecondition says why there is no NCCL.
absl::StatusOr<CommunicatorFactory> CreateNcclCommunicators(const NcclOptions& options = {});

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_NCCL_H_
