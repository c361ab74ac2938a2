#include "transport/nccl.h"

namespace penstock::transport {
namespace {

absl::Status NotBuilt() {
  return absl::FailedPreconditionError(
      "this build is without NCCL: configure it with PENSTOCK_CUDA=ON where nccl.h is installed");
}

}  // namespace

NcclSystem FindNccl() { return {NotBuilt(), 0}; }

absl::StatusOr<CommunicatorFactory> CreateNcclCommunicators(const NcclOptions&) {
  return NotBuilt();
}

absl::StatusOr<std::shared_ptr<CommunicatorSource>> CreateNcclSource(
    std::function<std::string(uint32_t index)>, const NcclOptions&) {
  return NotBuilt();
}

}  // namespace penstock::transport
