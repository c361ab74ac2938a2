// The functions of NCCL that this folder uses, as a table: of the library, loaded when it is asked
// for, or of a test.
//
// Thread rule: a value. What is behind it is thread-safe as NCCL says.

#ifndef PENSTOCK_TRANSPORT_NCCL_NCCL_API_H_
#define PENSTOCK_TRANSPORT_NCCL_NCCL_API_H_

#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include <nccl.h>

namespace penstock::transport {

struct NcclApi {
  decltype(&ncclGetVersion) get_version = nullptr;
  decltype(&ncclGetErrorString) get_error_string = nullptr;
  decltype(&ncclGetLastError) get_last_error = nullptr;
  decltype(&ncclGetUniqueId) get_unique_id = nullptr;
  decltype(&ncclCommInitRankConfig) init_rank = nullptr;
  decltype(&ncclCommGetAsyncError) get_async_error = nullptr;
  decltype(&ncclCommAbort) abort = nullptr;
  decltype(&ncclGroupStart) group_start = nullptr;
  decltype(&ncclGroupEnd) group_end = nullptr;
  decltype(&ncclAllReduce) all_reduce = nullptr;
  decltype(&ncclReduceScatter) reduce_scatter = nullptr;
  decltype(&ncclAllGather) all_gather = nullptr;
  decltype(&ncclReduce) reduce = nullptr;
  decltype(&ncclBroadcast) broadcast = nullptr;
  decltype(&ncclSend) send = nullptr;
  decltype(&ncclRecv) receive = nullptr;
  std::shared_ptr<void> library;  // loaded for as long as a copy of the table lives
};

// kFailedPrecondition says why the library cannot be loaded, or what it lacks.
absl::StatusOr<NcclApi> LoadNccl();

}  // namespace penstock::transport

#endif  // PENSTOCK_TRANSPORT_NCCL_NCCL_API_H_
