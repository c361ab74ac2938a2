// Stands in for cudnn_frontend/ in builds without the headers of cuDNN or of its frontend.

#include "kernels/cuda/attention_library.h"

namespace penstock::kernels::cuda {

absl::Status FindCudnnAttention() {
  return absl::FailedPreconditionError("this build has no cudnn.h or no cudnn_frontend.h");
}

absl::StatusOr<std::unique_ptr<AttentionLibrary>> CreateCudnnAttention(bool) {
  return FindCudnnAttention();
}

}  // namespace penstock::kernels::cuda
