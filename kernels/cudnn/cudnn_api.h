// The functions of cuDNN that this folder uses, as a table: of the library, or of a test. Like
// cuBLASLt (kernels/cuda/cublas_api.h), it is loaded when it is first needed: with the first
// convolution on a GPU.
//
// These are the functions of cuDNN's older interface. The newer one, graphs, takes a graph of
// descriptors for a single convolution, and gives nothing for it here.
//
// Thread rule: a value. What is behind it is thread-safe as cuDNN says.

#ifndef PENSTOCK_KERNELS_CUDNN_CUDNN_API_H_
#define PENSTOCK_KERNELS_CUDNN_CUDNN_API_H_

#include <string>

#include "absl/status/statusor.h"
#include <cudnn.h>

namespace penstock::kernels::cuda {

struct CudnnApi {
  decltype(&cudnnGetVersion) get_version = nullptr;
  decltype(&cudnnGetErrorString) get_error_string = nullptr;
  decltype(&cudnnCreate) create = nullptr;
  decltype(&cudnnDestroy) destroy = nullptr;
  decltype(&cudnnSetStream) set_stream = nullptr;
  decltype(&cudnnCreateTensorDescriptor) create_tensor = nullptr;
  decltype(&cudnnDestroyTensorDescriptor) destroy_tensor = nullptr;
  decltype(&cudnnSetTensor4dDescriptor) set_tensor = nullptr;
  decltype(&cudnnCreateFilterDescriptor) create_filter = nullptr;
  decltype(&cudnnDestroyFilterDescriptor) destroy_filter = nullptr;
  decltype(&cudnnSetFilter4dDescriptor) set_filter = nullptr;
  decltype(&cudnnCreateConvolutionDescriptor) create_convolution = nullptr;
  decltype(&cudnnDestroyConvolutionDescriptor) destroy_convolution = nullptr;
  decltype(&cudnnSetConvolution2dDescriptor) set_convolution = nullptr;
  decltype(&cudnnSetConvolutionGroupCount) set_groups = nullptr;
  decltype(&cudnnSetConvolutionMathType) set_math = nullptr;
  decltype(&cudnnGetConvolutionForwardAlgorithm_v7) get_forward = nullptr;
  decltype(&cudnnGetConvolutionBackwardDataAlgorithm_v7) get_input_grad = nullptr;
  decltype(&cudnnGetConvolutionBackwardFilterAlgorithm_v7) get_weight_grad = nullptr;
  decltype(&cudnnConvolutionForward) forward = nullptr;
  decltype(&cudnnConvolutionBackwardData) input_grad = nullptr;
  decltype(&cudnnConvolutionBackwardFilter) weight_grad = nullptr;
};

// The file name of the library's major version that this build has the headers of.
std::string CudnnLibraryName();

// Loads the library, which then stays. kFailedPrecondition says why it cannot be loaded, or what it
// lacks.
absl::StatusOr<CudnnApi> LoadCudnn();

// The same of a library of this name; `folder` is where it is looked for after that. For tests.
absl::StatusOr<CudnnApi> LoadCudnn(const std::string& name, const std::string& folder);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDNN_CUDNN_API_H_
