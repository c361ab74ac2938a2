// Collectives and messages of GPUs through NCCL, whether this build can use it or not: nccl/
// implements this header where CUDA is built and NCCL's header is there, no_nccl/ otherwise
// (cmake/Folder.cmake).
//
// NCCL's library is large, so it is not linked but loaded when it is asked for.
//
// Thread rule: any thread.

#ifndef PENSTOCK_TRANSPORT_NCCL_H_
#define PENSTOCK_TRANSPORT_NCCL_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"

#include "base/strings.h"
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

// For the devices of one session of one process, each a GPU of its own. Sums have NCCL's
// association, not that of base/collective.h. kFailedPrecondition says why there is no NCCL.
absl::StatusOr<CommunicatorFactory> CreateNcclCommunicators(const NcclOptions& options = {});

// The same where members are in several processes. `gpu_of` names the GPU of a device of the plan,
// the same way in all processes: see CommunicatorSource::HardwareOf.
absl::StatusOr<std::shared_ptr<CommunicatorSource>> CreateNcclSource(
    std::function<std::string(uint32_t index)> gpu_of, const NcclOptions& options = {});

// "NCCL 2.28.9"
inline std::string NcclName(int version) {
  return StrCat("NCCL ", version / 10000, ".", version / 100 % 100, ".", version % 100);
}

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_NCCL_H_
