// For tests: a ConvolutionLibrary with functions of their own.

#ifndef PENSTOCK_KERNELS_CUDNN_CUDNN_INTERNAL_H_
#define PENSTOCK_KERNELS_CUDNN_CUDNN_INTERNAL_H_

#include <memory>

#include "kernels/cuda/convolution_library.h"
#include "kernels/cudnn/cudnn_api.h"

namespace penstock::kernels::cuda {

std::unique_ptr<ConvolutionLibrary> CreateCudnn(const CudnnApi& api);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDNN_CUDNN_INTERNAL_H_
