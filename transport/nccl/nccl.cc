#include "transport/nccl.h"

#include <utility>

#include "base/status_macros.h"
#include "transport/nccl/nccl_api.h"
#include "transport/nccl/nccl_communicator.h"

namespace penstock::transport {

NcclSystem FindNccl() {
  NcclSystem system;
  const absl::StatusOr<NcclApi> api = LoadNccl();
  system.status = api.status();
  if (!api.ok()) return system;
  if (api->get_version(&system.version) != ncclSuccess) {
    system.status = absl::InternalError("NCCL does not tell its version");
  }
  return system;
}

absl::StatusOr<CommunicatorFactory> CreateNcclCommunicators(const NcclOptions& options) {
  ASSIGN_OR_RETURN(NcclApi api, LoadNccl());
  return CreateNcclCommunicators(std::move(api), options);
}

absl::StatusOr<std::shared_ptr<CommunicatorSource>> CreateNcclSource(
    std::function<std::string(uint32_t index)> gpu_of, const NcclOptions& options) {
  ASSIGN_OR_RETURN(NcclApi api, LoadNccl());
  return CreateNcclSource(std::move(api), std::move(gpu_of), options);
}

}  // namespace penstock::transport
