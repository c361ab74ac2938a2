// Stands in for cudnn/ in builds without cuDNN's headers.

#include "kernels/cuda/convolution_library.h"

namespace penstock::kernels::cuda {

namespace {

absl::Status NotBuilt() {
  return absl::FailedPreconditionError("this build has no cuDNN: cudnn.h was not found");
}

}  // namespace

absl::StatusOr<std::unique_ptr<ConvolutionLibrary>> CreateCudnn() { return NotBuilt(); }

absl::StatusOr<std::string> CudnnVersion() { return NotBuilt(); }

}  // namespace penstock::kernels::cuda
