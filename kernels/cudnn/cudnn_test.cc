// Convolutions on a fake of cuDNN: what is asked of it, and which algorithms are taken. That the
// library itself computes what is meant shows on a GPU (cuda_kernels_test).

#include <cstdint>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

#include "base/strings.h"
#include "kernels/cuda/convolution_library.h"
#include "kernels/cuda/cuda_library.h"
#include "kernels/cudnn/cudnn_api.h"
#include "kernels/cudnn/cudnn_internal.h"

namespace penstock::kernels::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct Fake {
  int num_objects = 0;  // that are not destroyed
  int num_handles = 0;  // likewise
  std::vector<cudaStream_t> streams;
  std::vector<std::vector<int>> tensors;
  std::vector<int> filter;
  std::vector<int> convolution;
  std::vector<cudnnDataType_t> types;
  int groups = 0;
  cudnnMathType_t math = CUDNN_DEFAULT_MATH;
  std::vector<cudnnConvolutionFwdAlgoPerf_t> forward;
  std::vector<cudnnConvolutionBwdDataAlgoPerf_t> input_grad;
  std::vector<cudnnConvolutionBwdFilterAlgoPerf_t> weight_grad;
  cudnnStatus_t listed = CUDNN_STATUS_SUCCESS;
  cudnnStatus_t run = CUDNN_STATUS_SUCCESS;
  std::vector<int> algorithms;  // of runs
  std::vector<float> betas;     // likewise
  std::vector<const void*> operands;
};
Fake* fake = nullptr;

// Any address that is not null.
template <typename T>
cudnnStatus_t MakeObject(T* object) {
  *object = reinterpret_cast<T>(&++fake->num_objects);
  return CUDNN_STATUS_SUCCESS;
}
template <typename T>
cudnnStatus_t DropObject(T) {
  --fake->num_objects;
  return CUDNN_STATUS_SUCCESS;
}

template <typename Perf>
cudnnStatus_t List(const std::vector<Perf>& from, int most, int* count, Perf* to) {
  *count = std::min(most, static_cast<int>(from.size()));
  std::copy(from.begin(), from.begin() + *count, to);
  return fake->listed;
}

CudnnApi FakeApi() {
  CudnnApi api;
  api.get_error_string = [](cudnnStatus_t) { return "out of luck"; };
  api.create = [](cudnnHandle_t* handle) {
    ++fake->num_handles;
    *handle = reinterpret_cast<cudnnHandle_t>(fake);
    return CUDNN_STATUS_SUCCESS;
  };
  api.destroy = [](cudnnHandle_t) {
    --fake->num_handles;
    return CUDNN_STATUS_SUCCESS;
  };
  api.set_stream = [](cudnnHandle_t, cudaStream_t stream) {
    fake->streams.push_back(stream);
    return CUDNN_STATUS_SUCCESS;
  };
  api.create_tensor = &MakeObject<cudnnTensorDescriptor_t>;
  api.destroy_tensor = &DropObject<cudnnTensorDescriptor_t>;
  api.set_tensor = [](cudnnTensorDescriptor_t, cudnnTensorFormat_t, cudnnDataType_t type, int n,
                      int c, int h, int w) {
    fake->types.push_back(type);
    fake->tensors.push_back({n, c, h, w});
    return CUDNN_STATUS_SUCCESS;
  };
  api.create_filter = &MakeObject<cudnnFilterDescriptor_t>;
  api.destroy_filter = &DropObject<cudnnFilterDescriptor_t>;
  api.set_filter = [](cudnnFilterDescriptor_t, cudnnDataType_t type, cudnnTensorFormat_t, int k,
                      int c, int h, int w) {
    fake->types.push_back(type);
    fake->filter = {k, c, h, w};
    return CUDNN_STATUS_SUCCESS;
  };
  api.create_convolution = &MakeObject<cudnnConvolutionDescriptor_t>;
  api.destroy_convolution = &DropObject<cudnnConvolutionDescriptor_t>;
  api.set_convolution = [](cudnnConvolutionDescriptor_t, int pad_h, int pad_w, int stride_h,
                           int stride_w, int dilation_h, int dilation_w,
                           cudnnConvolutionMode_t mode, cudnnDataType_t type) {
    EXPECT_EQ(mode, CUDNN_CROSS_CORRELATION);
    EXPECT_EQ(type, CUDNN_DATA_FLOAT);
    fake->convolution = {pad_h, pad_w, stride_h, stride_w, dilation_h, dilation_w};
    return CUDNN_STATUS_SUCCESS;
  };
  api.set_groups = [](cudnnConvolutionDescriptor_t, int groups) {
    fake->groups = groups;
    return CUDNN_STATUS_SUCCESS;
  };
  api.set_math = [](cudnnConvolutionDescriptor_t, cudnnMathType_t math) {
    fake->math = math;
    return CUDNN_STATUS_SUCCESS;
  };
  api.get_forward = [](cudnnHandle_t, const cudnnTensorDescriptor_t, const cudnnFilterDescriptor_t,
                       const cudnnConvolutionDescriptor_t, const cudnnTensorDescriptor_t, int most,
                       int* count, cudnnConvolutionFwdAlgoPerf_t* found) {
    return List(fake->forward, most, count, found);
  };
  api.get_weight_grad = [](cudnnHandle_t, const cudnnTensorDescriptor_t,
                           const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t,
                           const cudnnFilterDescriptor_t, int most, int* count,
                           cudnnConvolutionBwdFilterAlgoPerf_t* found) {
    return List(fake->weight_grad, most, count, found);
  };
  api.get_input_grad = [](cudnnHandle_t, const cudnnFilterDescriptor_t,
                          const cudnnTensorDescriptor_t, const cudnnConvolutionDescriptor_t,
                          const cudnnTensorDescriptor_t, int most, int* count,
                          cudnnConvolutionBwdDataAlgoPerf_t* found) {
    return List(fake->input_grad, most, count, found);
  };
  api.input_grad = [](cudnnHandle_t, const void*, const cudnnFilterDescriptor_t, const void* w,
                      const cudnnTensorDescriptor_t, const void* dy,
                      const cudnnConvolutionDescriptor_t, cudnnConvolutionBwdDataAlgo_t algorithm,
                      void* workspace, size_t, const void* beta, const cudnnTensorDescriptor_t,
                      void* dx) {
    fake->algorithms.push_back(algorithm);
    fake->betas.push_back(*static_cast<const float*>(beta));
    fake->operands = {w, dy, dx, workspace};
    return fake->run;
  };
  api.forward = [](cudnnHandle_t, const void* alpha, const cudnnTensorDescriptor_t, const void* x,
                   const cudnnFilterDescriptor_t, const void* w, const cudnnConvolutionDescriptor_t,
                   cudnnConvolutionFwdAlgo_t algorithm, void* workspace, size_t size,
                   const void* beta, const cudnnTensorDescriptor_t, void* y) {
    EXPECT_EQ(*static_cast<const float*>(alpha), 1);
    EXPECT_EQ(size, kConvolutionWorkspaceBytes);
    fake->algorithms.push_back(algorithm);
    fake->betas.push_back(*static_cast<const float*>(beta));
    fake->operands = {x, w, y, workspace};
    return fake->run;
  };
  api.weight_grad = [](cudnnHandle_t, const void*, const cudnnTensorDescriptor_t, const void* x,
                       const cudnnTensorDescriptor_t, const void* dy,
                       const cudnnConvolutionDescriptor_t,
                       cudnnConvolutionBwdFilterAlgo_t algorithm, void* workspace, size_t,
                       const void* beta, const cudnnFilterDescriptor_t, void* dw) {
    fake->algorithms.push_back(algorithm);
    fake->betas.push_back(*static_cast<const float*>(beta));
    fake->operands = {x, dy, dw, workspace};
    return fake->run;
  };
  return api;
}

template <typename Perf, typename Algorithm>
Perf Candidate(Algorithm algorithm, cudnnMathType_t math, size_t memory = 0,
               cudnnDeterminism_t determinism = CUDNN_DETERMINISTIC,
               cudnnStatus_t status = CUDNN_STATUS_SUCCESS) {
  Perf perf = {};
  perf.algo = algorithm;
  perf.status = status;
  perf.memory = memory;
  perf.determinism = determinism;
  perf.mathType = math;
  return perf;
}
constexpr auto Forward = &Candidate<cudnnConvolutionFwdAlgoPerf_t, cudnnConvolutionFwdAlgo_t>;
constexpr auto InputGrad =
    &Candidate<cudnnConvolutionBwdDataAlgoPerf_t, cudnnConvolutionBwdDataAlgo_t>;
constexpr auto WeightGrad =
    &Candidate<cudnnConvolutionBwdFilterAlgoPerf_t, cudnnConvolutionBwdFilterAlgo_t>;

// Of two groups, with another window in each axis.
ConvolutionShape Shape() {
  ConvolutionShape shape;
  shape.n = 5;
  shape.groups = 2;
  shape.c = 3;
  shape.o = 4;
  shape.rows = {.in = 10, .out = 10, .taps = 3, .stride = 1, .low = 1, .dilation = 1};
  shape.columns = {.in = 12, .out = 4, .taps = 2, .stride = 3, .low = 0, .dilation = 2};
  return shape;
}

class CudnnTest : public ::testing::Test {
 protected:
  CudnnTest() { fake = &fake_; }
  absl::StatusOr<std::unique_ptr<LibraryConvolution>> Create(ConvolutionPass pass, DType dtype) {
    return library_->Create(stream_, pass, Shape(), dtype);
  }

  Fake fake_;
  const StreamHandle stream_ = reinterpret_cast<StreamHandle>(&fake_);
  std::unique_ptr<ConvolutionLibrary> library_ = CreateCudnn(FakeApi());
};

TEST_F(CudnnTest, DescribesTheConvolution) {
  fake_.forward = {Forward(CUDNN_CONVOLUTION_FWD_ALGO_GEMM, CUDNN_FMA_MATH, 0, CUDNN_DETERMINISTIC,
                           CUDNN_STATUS_SUCCESS)};
  const auto made = Create(ConvolutionPass::kForward, DType::kF32);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_NE(*made, nullptr);
  EXPECT_THAT(fake_.tensors, ElementsAre(ElementsAre(5, 6, 10, 12), ElementsAre(5, 8, 10, 4)));
  EXPECT_THAT(fake_.filter, ElementsAre(8, 3, 3, 2));
  EXPECT_THAT(fake_.convolution, ElementsAre(1, 0, 1, 3, 1, 2));
  EXPECT_EQ(fake_.groups, 2);
  EXPECT_EQ(fake_.math, CUDNN_FMA_MATH);
  EXPECT_THAT(fake_.types, ::testing::Each(CUDNN_DATA_FLOAT));
  float x = 0;
  float w = 0;
  float y = 0;
  float workspace = 0;
  EXPECT_EQ((*made)->Run(&x, &w, &y, /*adds=*/false, &workspace), absl::OkStatus());
  EXPECT_THAT(fake_.operands, ElementsAre(&x, &w, &y, &workspace));
  EXPECT_THAT(fake_.betas, ElementsAre(0));
  EXPECT_THAT(fake_.streams, ElementsAre(stream_));  // at creation, not at runs
}

TEST_F(CudnnTest, TakesTheFirstAlgorithmThatKeepsItsPromises) {
  fake_.forward = {
      Forward(CUDNN_CONVOLUTION_FWD_ALGO_FFT, CUDNN_FMA_MATH, 0, CUDNN_DETERMINISTIC,
              CUDNN_STATUS_NOT_SUPPORTED),
      Forward(CUDNN_CONVOLUTION_FWD_ALGO_DIRECT, CUDNN_FMA_MATH, kConvolutionWorkspaceBytes + 1,
              CUDNN_DETERMINISTIC, CUDNN_STATUS_SUCCESS),
      Forward(CUDNN_CONVOLUTION_FWD_ALGO_FFT_TILING, CUDNN_FMA_MATH, 0, CUDNN_NON_DETERMINISTIC,
              CUDNN_STATUS_SUCCESS),
      // TF32.
      Forward(CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM, CUDNN_TENSOR_OP_MATH, 0,
              CUDNN_DETERMINISTIC, CUDNN_STATUS_SUCCESS),
      Forward(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD, CUDNN_FMA_MATH, kConvolutionWorkspaceBytes,
              CUDNN_DETERMINISTIC, CUDNN_STATUS_SUCCESS),
  };
  const auto run = [this](DType dtype) {
    const auto made = Create(ConvolutionPass::kForward, dtype);
    ASSERT_TRUE(made.ok()) << made.status();
    ASSERT_NE(*made, nullptr);
    EXPECT_EQ((*made)->Run(nullptr, nullptr, nullptr, false, nullptr), absl::OkStatus());
  };
  run(DType::kF32);
  run(DType::kBF16);
  EXPECT_EQ(fake_.math, CUDNN_TENSOR_OP_MATH);
  EXPECT_EQ(fake_.types.back(), CUDNN_DATA_BFLOAT16);
  run(DType::kF16);
  EXPECT_EQ(fake_.types.back(), CUDNN_DATA_HALF);
  EXPECT_THAT(fake_.algorithms, ElementsAre(CUDNN_CONVOLUTION_FWD_ALGO_WINOGRAD,
                                            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM,
                                            CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_GEMM));
}

TEST_F(CudnnTest, AddsToTheGradientOfWeights) {
  fake_.weight_grad = {WeightGrad(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_0, CUDNN_FMA_MATH, 0,
                                  CUDNN_NON_DETERMINISTIC, CUDNN_STATUS_SUCCESS),
                       WeightGrad(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1, CUDNN_FMA_MATH, 0,
                                  CUDNN_DETERMINISTIC, CUDNN_STATUS_SUCCESS)};
  const auto made = Create(ConvolutionPass::kWeightGrad, DType::kF32);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_NE(*made, nullptr);
  float x = 0;
  float dy = 0;
  float dw = 0;
  EXPECT_EQ((*made)->Run(&x, &dy, &dw, /*adds=*/true, nullptr), absl::OkStatus());
  EXPECT_THAT(fake_.operands, ElementsAre(&x, &dy, &dw, nullptr));
  EXPECT_THAT(fake_.betas, ElementsAre(1));
  EXPECT_THAT(fake_.algorithms, ElementsAre(CUDNN_CONVOLUTION_BWD_FILTER_ALGO_1));
}

TEST_F(CudnnTest, TheGradientOfTheInputIsMadeFromWeights) {
  fake_.input_grad = {InputGrad(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1, CUDNN_FMA_MATH, 0,
                                CUDNN_DETERMINISTIC, CUDNN_STATUS_SUCCESS)};
  const auto made = Create(ConvolutionPass::kInputGrad, DType::kF32);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_NE(*made, nullptr);
  float w = 0;
  float dy = 0;
  float dx = 0;
  EXPECT_EQ((*made)->Run(&w, &dy, &dx, /*adds=*/false, nullptr), absl::OkStatus());
  EXPECT_THAT(fake_.operands, ElementsAre(&w, &dy, &dx, nullptr));
  EXPECT_THAT(fake_.betas, ElementsAre(0));
  EXPECT_THAT(fake_.algorithms, ElementsAre(CUDNN_CONVOLUTION_BWD_DATA_ALGO_1));
}

TEST_F(CudnnTest, AnAlgorithmRunsWithItsMathType) {
  fake_.forward = {Forward(CUDNN_CONVOLUTION_FWD_ALGO_GEMM, CUDNN_DEFAULT_MATH, 0,
                           CUDNN_DETERMINISTIC, CUDNN_STATUS_SUCCESS)};
  const auto made = Create(ConvolutionPass::kForward, DType::kBF16);
  ASSERT_TRUE(made.ok()) << made.status();
  ASSERT_NE(*made, nullptr);
  EXPECT_EQ(fake_.math, CUDNN_DEFAULT_MATH);
}

TEST_F(CudnnTest, WithoutAnAlgorithmThereIsNoConvolution) {
  const auto none = Create(ConvolutionPass::kForward, DType::kF32);
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_EQ(*none, nullptr);
  fake_.listed = CUDNN_STATUS_NOT_SUPPORTED;
  const auto refused = Create(ConvolutionPass::kForward, DType::kF32);
  ASSERT_TRUE(refused.ok()) << refused.status();
  EXPECT_EQ(*refused, nullptr);
  fake_.listed = CUDNN_STATUS_EXECUTION_FAILED;
  EXPECT_EQ(Create(ConvolutionPass::kForward, DType::kF32).status(),
            absl::InternalError("cuDNN: choosing an algorithm: out of luck"));
}

TEST_F(CudnnTest, AFailedRunIsAnError) {
  fake_.forward = {Forward(CUDNN_CONVOLUTION_FWD_ALGO_GEMM, CUDNN_FMA_MATH, 0, CUDNN_DETERMINISTIC,
                           CUDNN_STATUS_SUCCESS)};
  auto made = Create(ConvolutionPass::kForward, DType::kF32);
  ASSERT_TRUE(made.ok() && *made != nullptr);
  fake_.run = CUDNN_STATUS_EXECUTION_FAILED;
  EXPECT_EQ((*made)->Run(nullptr, nullptr, nullptr, false, nullptr),
            absl::InternalError("cuDNN: a convolution: out of luck"));
  made->reset();
  library_ = nullptr;
  EXPECT_EQ(fake_.num_objects, 0);
  EXPECT_EQ(fake_.num_handles, 0);
}

TEST(ConvolutionLibraryTest, TakesWindowsThatArePaddedAlikeAtBothEnds) {
  EXPECT_TRUE(IsForLibrary(Shape()));
  ConvolutionShape shape = Shape();
  shape.rows.out = 9;  // no padding at the end
  EXPECT_FALSE(IsForLibrary(shape));
  shape = Shape();
  shape.rows.low = -1;
  EXPECT_FALSE(IsForLibrary(shape));
  shape = Shape();
  shape.n = 0;
  EXPECT_FALSE(IsForLibrary(shape));
  shape = Shape();
  shape.rows.in = int64_t{1} << 31;
  EXPECT_FALSE(IsForLibrary(shape));
}

TEST(CudnnApiTest, ALibraryThatIsNotThereIsNamed) {
  const absl::Status status = LoadCudnn("libno_such_cudnn.so", "/no/such/folder").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("cuDNN cannot be loaded (libno_such_cudnn"));
}

// The headers and the library come together, but a program may run without it.
TEST(CudnnApiTest, TheLibraryHasAllFunctions) {
  const absl::StatusOr<CudnnApi> api = LoadCudnn();
  if (!api.ok()) GTEST_SKIP() << api.status();
  EXPECT_EQ(api->get_version() / 10000, CUDNN_MAJOR);
}

}  // namespace
}  // namespace penstock::kernels::cuda
