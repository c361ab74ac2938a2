#include <array>
#include <map>
#include <optional>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "kernels/cuda/convolution_library.h"
#include "kernels/cudnn/cudnn_api.h"
#include "kernels/cudnn/cudnn_internal.h"

namespace penstock::kernels::cuda {
namespace {

absl::Status ToStatus(const CudnnApi& api, cudnnStatus_t status, std::string_view what) {
  if (status == CUDNN_STATUS_SUCCESS) return absl::OkStatus();
  const std::string message = StrCat("cuDNN: ", what, ": ", api.get_error_string(status));
  return status == CUDNN_STATUS_ALLOC_FAILED ? absl::ResourceExhaustedError(message)
                                             : absl::InternalError(message);
}

cudnnDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDNN_DATA_BFLOAT16;
    case DType::kF16:
      return CUDNN_DATA_HALF;
    default:
      return CUDNN_DATA_FLOAT;
  }
}

// The descriptors of a convolution.
struct Descriptors {
  explicit Descriptors(const CudnnApi* api) : api(api) {}
  ~Descriptors() {
    if (x != nullptr) api->destroy_tensor(x);
    if (y != nullptr) api->destroy_tensor(y);
    if (weights != nullptr) api->destroy_filter(weights);
    if (convolution != nullptr) api->destroy_convolution(convolution);
  }
  Descriptors(const Descriptors&) = delete;
  Descriptors& operator=(const Descriptors&) = delete;

  absl::Status Set(const ConvolutionShape& shape, DType dtype) {
    const auto size = [](int64_t value) { return static_cast<int>(value); };
    const auto check = [this](cudnnStatus_t status) {
      return ToStatus(*api, status, "describing a convolution");
    };
    const cudnnDataType_t type = TypeOf(dtype);
    const WindowAxis& rows = shape.rows;
    const WindowAxis& columns = shape.columns;
    RETURN_IF_ERROR(check(api->create_tensor(&x)));
    RETURN_IF_ERROR(
        check(api->set_tensor(x, CUDNN_TENSOR_NCHW, type, size(shape.n),
                              size(shape.groups * shape.c), size(rows.in), size(columns.in))));
    RETURN_IF_ERROR(check(api->create_tensor(&y)));
    RETURN_IF_ERROR(
        check(api->set_tensor(y, CUDNN_TENSOR_NCHW, type, size(shape.n),
                              size(shape.groups * shape.o), size(rows.out), size(columns.out))));
    RETURN_IF_ERROR(check(api->create_filter(&weights)));
    RETURN_IF_ERROR(
        check(api->set_filter(weights, type, CUDNN_TENSOR_NCHW, size(shape.groups * shape.o),
                              size(shape.c), size(rows.taps), size(columns.taps))));
    RETURN_IF_ERROR(check(api->create_convolution(&convolution)));
    RETURN_IF_ERROR(check(api->set_convolution(
        convolution, size(rows.low), size(columns.low), size(rows.stride), size(columns.stride),
        size(rows.dilation), size(columns.dilation), CUDNN_CROSS_CORRELATION, CUDNN_DATA_FLOAT)));
    RETURN_IF_ERROR(check(api->set_groups(convolution, size(shape.groups))));
    return check(api->set_math(convolution, MathOf(dtype)));
  }

  // f32 without TF32; tensor cores for 16 bits.
  static cudnnMathType_t MathOf(DType dtype) {
    return dtype == DType::kF32 ? CUDNN_FMA_MATH : CUDNN_TENSOR_OP_MATH;
  }

  const CudnnApi* const api;
  cudnnTensorDescriptor_t x = nullptr;
  cudnnTensorDescriptor_t y = nullptr;
  cudnnFilterDescriptor_t weights = nullptr;
  cudnnConvolutionDescriptor_t convolution = nullptr;
};

// Winograd's algorithms lose more digits than values of 16 bits have to spare.
bool IsExact(cudnnConvolutionFwdAlgo_t algorithm) {
  return algorithm != CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD &&
         algorithm != CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD_NONFUSED;
}
bool IsExact(cudnnConvolutionBwdDataAlgo_t algorithm) {
  return algorithm != CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD &&
         algorithm != CUDNN_CONVOLUTION_BWD_DATA_ALGO_WINOGRAD_NONFUSED;
}
bool IsExact(cudnnConvolutionBwdFilterAlgo_t algorithm) {
  return algorithm != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD &&
         algorithm != CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED;
}

constexpr int kMaxAlgorithms = 16;

// The first of those that `get` lists, fastest first, that may be used; none: null.
template <typename Perf, typename Get>
absl::StatusOr<std::optional<Perf>> Choose(const Descriptors& d, DType dtype, const Get& get) {
  const CudnnApi& api = *d.api;
  std::array<Perf, kMaxAlgorithms> found = {};
  int count = 0;
  const cudnnStatus_t listed = get(kMaxAlgorithms, &count, found.data());
  if (listed == CUDNN_STATUS_NOT_SUPPORTED) return std::nullopt;
  RETURN_IF_ERROR(ToStatus(api, listed, "choosing an algorithm"));
  for (int i = 0; i < count; ++i) {
    const Perf& perf = found[static_cast<size_t>(i)];
    if (perf.status != CUDNN_STATUS_SUCCESS || perf.memory > kConvolutionWorkspaceBytes) continue;
    if (perf.determinism != CUDNN_DETERMINISTIC) continue;
    const bool is_allowed =
        dtype == DType::kF32 ? perf.mathType == CUDNN_FMA_MATH : IsExact(perf.algo);
    if (!is_allowed) continue;
    // What is said of memory and determinism holds for the algorithm with this math type.
    RETURN_IF_ERROR(
        ToStatus(api, api.set_math(d.convolution, perf.mathType), "choosing an algorithm"));
    return perf;
  }
  return std::nullopt;
}

// `call`: the function of the pass, with its algorithm.
template <typename Call>
class CudnnConvolution : public LibraryConvolution {
 public:
  CudnnConvolution(std::unique_ptr<Descriptors> descriptors, Call call)
      : descriptors_(std::move(descriptors)), call_(std::move(call)) {}

  absl::Status Run(const void* a, const void* b, void* result, bool adds,
                   void* workspace) override {
    const float alpha = 1;
    const float beta = adds ? 1 : 0;
    return ToStatus(*descriptors_->api,
                    call_(*descriptors_, &alpha, a, b, workspace, &beta, result), "a convolution");
  }

 private:
  const std::unique_ptr<Descriptors> descriptors_;
  const Call call_;
};

template <typename F>
std::unique_ptr<LibraryConvolution> MakeConvolution(std::unique_ptr<Descriptors> descriptors,
                                                    F call) {
  return std::make_unique<CudnnConvolution<F>>(std::move(descriptors), std::move(call));
}

class Cudnn : public ConvolutionLibrary {
 public:
  explicit Cudnn(const CudnnApi& api) : api_(api) {}
  ~Cudnn() override {
    for (const auto& [stream, handle] : handles_) api_.destroy(handle);
  }

  absl::StatusOr<std::unique_ptr<LibraryConvolution>> Create(StreamHandle stream,
                                                             ConvolutionPass pass,
                                                             const ConvolutionShape& shape,
                                                             DType dtype) override {
    ASSIGN_OR_RETURN(const cudnnHandle_t handle, HandleOf(stream));
    auto descriptors = std::make_unique<Descriptors>(&api_);
    RETURN_IF_ERROR(descriptors->Set(shape, dtype));
    const Descriptors& d = *descriptors;
    switch (pass) {
      case ConvolutionPass::kForward: {
        ASSIGN_OR_RETURN(
            const auto chosen,
            Choose<cudnnConvolutionFwdAlgoPerf_t>(d, dtype, [&](int most, int* count, auto* found) {
              return api_.get_forward(handle, d.x, d.weights, d.convolution, d.y, most, count,
                                      found);
            }));
        if (!chosen.has_value()) return nullptr;
        return MakeConvolution(std::move(descriptors), [handle, algorithm = chosen->algo](
                                                           const Descriptors& of,
                                                           const float* alpha, const void* x,
                                                           const void* weights, void* workspace,
                                                           const float* beta, void* y) {
          return of.api->forward(handle, alpha, of.x, x, of.weights, weights, of.convolution,
                                 algorithm, workspace, kConvolutionWorkspaceBytes, beta, of.y, y);
        });
      }
      case ConvolutionPass::kInputGrad: {
        ASSIGN_OR_RETURN(const auto chosen, Choose<cudnnConvolutionBwdDataAlgoPerf_t>(
                                                d, dtype, [&](int most, int* count, auto* found) {
                                                  return api_.get_input_grad(handle, d.weights, d.y,
                                                                             d.convolution, d.x,
                                                                             most, count, found);
                                                }));
        if (!chosen.has_value()) return nullptr;
        return MakeConvolution(std::move(descriptors),
                               [handle, algorithm = chosen->algo](
                                   const Descriptors& of, const float* alpha, const void* weights,
                                   const void* dy, void* workspace, const float* beta, void* dx) {
                                 return of.api->input_grad(handle, alpha, of.weights, weights, of.y,
                                                           dy, of.convolution, algorithm, workspace,
                                                           kConvolutionWorkspaceBytes, beta, of.x,
                                                           dx);
                               });
      }
      case ConvolutionPass::kWeightGrad: {
        ASSIGN_OR_RETURN(const auto chosen, Choose<cudnnConvolutionBwdFilterAlgoPerf_t>(
                                                d, dtype, [&](int most, int* count, auto* found) {
                                                  return api_.get_weight_grad(
                                                      handle, d.x, d.y, d.convolution, d.weights,
                                                      most, count, found);
                                                }));
        if (!chosen.has_value()) return nullptr;
        return MakeConvolution(
            std::move(descriptors),
            [handle, algorithm = chosen->algo](const Descriptors& of, const float* alpha,
                                               const void* x, const void* dy, void* workspace,
                                               const float* beta, void* dweights) {
              return of.api->weight_grad(handle, alpha, of.x, x, of.y, dy, of.convolution,
                                         algorithm, workspace, kConvolutionWorkspaceBytes, beta,
                                         of.weights, dweights);
            });
      }
    }
    return nullptr;
  }

 private:
  // A handle for each stream: runs set nothing, so that they can be captured into graphs.
  absl::StatusOr<cudnnHandle_t> HandleOf(StreamHandle stream) {
    const auto known = handles_.find(stream);
    if (known != handles_.end()) return known->second;
    cudnnHandle_t handle = nullptr;
    RETURN_IF_ERROR(ToStatus(api_, api_.create(&handle), "starting on a device"));
    const cudnnStatus_t set = api_.set_stream(handle, stream);
    if (set != CUDNN_STATUS_SUCCESS) api_.destroy(handle);
    RETURN_IF_ERROR(ToStatus(api_, set, "setting the stream"));
    handles_[stream] = handle;
    return handle;
  }

  const CudnnApi api_;
  std::map<StreamHandle, cudnnHandle_t> handles_;
};

}  // namespace

std::unique_ptr<ConvolutionLibrary> CreateCudnn(const CudnnApi& api) {
  return std::make_unique<Cudnn>(api);
}

absl::StatusOr<std::unique_ptr<ConvolutionLibrary>> CreateCudnn() {
  ASSIGN_OR_RETURN(const CudnnApi api, LoadCudnn());
  return CreateCudnn(api);
}

absl::StatusOr<std::string> CudnnVersion() {
  ASSIGN_OR_RETURN(const CudnnApi api, LoadCudnn());
  const size_t version = api.get_version();  // 91900 is 9.19
  return StrCat(version / 10000, ".", version / 100 % 100);
}

}  // namespace penstock::kernels::cuda
