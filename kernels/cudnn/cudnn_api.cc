#include "kernels/cudnn/cudnn_api.h"

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cuda/cuda_library.h"

namespace penstock::kernels::cuda {

std::string CudnnLibraryName() { return StrCat("libcudnn.so.", CUDNN_MAJOR); }

absl::StatusOr<CudnnApi> LoadCudnn(const std::string& name, const std::string& folder) {
  ASSIGN_OR_RETURN(void* const library, OpenCudaLibrary("cuDNN", name, folder));
  CudnnApi api;
  std::string missing;
  const auto find = [&](const char* function_name, auto* function) {
    FindFunction(library, function_name, function, &missing);
  };
  find("cudnnGetVersion", &api.get_version);
  find("cudnnGetErrorString", &api.get_error_string);
  find("cudnnCreate", &api.create);
  find("cudnnDestroy", &api.destroy);
  find("cudnnSetStream", &api.set_stream);
  find("cudnnCreateTensorDescriptor", &api.create_tensor);
  find("cudnnDestroyTensorDescriptor", &api.destroy_tensor);
  find("cudnnSetTensor4dDescriptor", &api.set_tensor);
  find("cudnnCreateFilterDescriptor", &api.create_filter);
  find("cudnnDestroyFilterDescriptor", &api.destroy_filter);
  find("cudnnSetFilter4dDescriptor", &api.set_filter);
  find("cudnnCreateConvolutionDescriptor", &api.create_convolution);
  find("cudnnDestroyConvolutionDescriptor", &api.destroy_convolution);
  find("cudnnSetConvolution2dDescriptor", &api.set_convolution);
  find("cudnnSetConvolutionGroupCount", &api.set_groups);
  find("cudnnSetConvolutionMathType", &api.set_math);
  find("cudnnGetConvolutionForwardAlgorithm_v7", &api.get_forward);
  find("cudnnGetConvolutionBackwardDataAlgorithm_v7", &api.get_input_grad);
  find("cudnnGetConvolutionBackwardFilterAlgorithm_v7", &api.get_weight_grad);
  find("cudnnConvolutionForward", &api.forward);
  find("cudnnConvolutionBackwardData", &api.input_grad);
  find("cudnnConvolutionBackwardFilter", &api.weight_grad);
  if (!missing.empty()) {
    return absl::FailedPreconditionError(StrCat(name, " has no function ", missing,
                                                ": it is not the library of cuDNN ", CUDNN_MAJOR,
                                                ", with which this program was built"));
  }
  return api;
}

absl::StatusOr<CudnnApi> LoadCudnn() { return LoadCudnn(CudnnLibraryName(), RuntimeFolder()); }

}  // namespace penstock::kernels::cuda
