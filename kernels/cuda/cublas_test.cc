// Products through cuBLASLt on a library that this file fakes: what becomes of its answers.

#include "kernels/cuda/cublas.h"

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace penstock::kernels::cuda {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct FakeCublas {
  cublasStatus_t heuristic = CUBLAS_STATUS_SUCCESS;
  int num_results = 1;
  int num_wanted = 0;          // algorithms that were asked for last
  int first_out_of_place = 0;  // of the algorithms, the first that may read C where D is not
  cublasStatus_t launch = CUBLAS_STATUS_SUCCESS;
  uint32_t alignment = 0;           // that was asked for last
  std::vector<cudaDataType> types;  // of the matrices, in the order in which they are laid out
  // Of the operation that was made last.
  cublasComputeType_t compute_type = CUBLAS_COMPUTE_16F;
  cudaDataType scale_type = CUDA_R_8I;
  int num_objects = 0;  // that are not destroyed
  // Of the operation, as they are set last, and as they were when an algorithm was chosen.
  std::map<cublasLtMatmulDescAttributes_t, std::string> attributes;
  std::map<cublasLtMatmulDescAttributes_t, std::string> chosen_by;
  // Of the last launch.
  const void* c = nullptr;
  void* d = nullptr;
  double alpha = -1;
  double beta = -1;
  uint64_t algorithm = 0;
  bool c_lies_as_d = false;
};
FakeCublas* fake = nullptr;

template <typename T>
cublasStatus_t Destroy(T* object) {
  delete object;
  --fake->num_objects;
  return CUBLAS_STATUS_SUCCESS;
}

// What the library reads as alpha or beta.
double Factor(const void* factor) {
  return fake->scale_type == CUDA_R_64F ? *static_cast<const double*>(factor)
                                        : *static_cast<const float*>(factor);
}

// Captures nothing, so that lambdas become functions.
CublasApi FakeApi() {
  CublasApi api;
  api.create = [](cublasLtHandle_t* handle) {
    *handle = nullptr;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.get_status_name = [](cublasStatus_t status) {
    return status == CUBLAS_STATUS_INVALID_VALUE ? "INVALID_VALUE" : "EXECUTION_FAILED";
  };
  api.get_status_string = [](cublasStatus_t) { return "as the library says it"; };
  api.create_operation = [](cublasLtMatmulDesc_t* operation, cublasComputeType_t compute_type,
                            cudaDataType_t scale_type) {
    fake->compute_type = compute_type;
    fake->scale_type = scale_type;
    *operation = new cublasLtMatmulDescOpaque_t();
    ++fake->num_objects;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.destroy_operation = Destroy<cublasLtMatmulDescOpaque_t>;
  api.set_operation = [](cublasLtMatmulDesc_t, cublasLtMatmulDescAttributes_t attribute,
                         const void* value, size_t num_bytes) {
    std::string& bytes = fake->attributes[attribute];
    bytes.assign(static_cast<const char*>(value), num_bytes);
    return CUBLAS_STATUS_SUCCESS;
  };
  api.create_layout = [](cublasLtMatrixLayout_t* layout, cudaDataType type, uint64_t, uint64_t,
                         int64_t) {
    fake->types.push_back(type);
    *layout = new cublasLtMatrixLayoutOpaque_t();
    ++fake->num_objects;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.destroy_layout = Destroy<cublasLtMatrixLayoutOpaque_t>;
  api.create_preference = [](cublasLtMatmulPreference_t* preference) {
    *preference = new cublasLtMatmulPreferenceOpaque_t();
    ++fake->num_objects;
    return CUBLAS_STATUS_SUCCESS;
  };
  api.destroy_preference = Destroy<cublasLtMatmulPreferenceOpaque_t>;
  api.set_preference = [](cublasLtMatmulPreference_t,
                          cublasLtMatmulPreferenceAttributes_t attribute, const void* value,
                          size_t) {
    if (attribute == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) {
      fake->alignment = *static_cast<const uint32_t*>(value);
    }
    return CUBLAS_STATUS_SUCCESS;
  };
  api.get_heuristic = [](cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                         cublasLtMatrixLayout_t, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                         cublasLtMatmulPreference_t, int num_wanted,
                         cublasLtMatmulHeuristicResult_t* results, int* num_results) {
    fake->chosen_by = fake->attributes;
    fake->num_wanted = num_wanted;
    *num_results = fake->heuristic == CUBLAS_STATUS_SUCCESS ? fake->num_results : 0;
    for (int i = 0; i < *num_results; ++i) results[i].algo.data[0] = static_cast<uint64_t>(i);
    return fake->heuristic;
  };
  api.get_capability = [](const cublasLtMatmulAlgo_t* algorithm,
                          cublasLtMatmulAlgoCapAttributes_t attribute, void* value, size_t,
                          size_t* num_bytes) {
    EXPECT_EQ(attribute, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT);
    const auto index = static_cast<int>(algorithm->data[0]);
    const int32_t is_supported = index >= fake->first_out_of_place ? 1 : 0;
    *num_bytes = sizeof(is_supported);
    std::memcpy(value, &is_supported, sizeof(is_supported));
    return CUBLAS_STATUS_SUCCESS;
  };
  api.matmul = [](cublasLtHandle_t, cublasLtMatmulDesc_t, const void* alpha, const void*,
                  cublasLtMatrixLayout_t, const void*, cublasLtMatrixLayout_t, const void* beta,
                  const void* c, cublasLtMatrixLayout_t c_layout, void* d,
                  cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t* algorithm, void*,
                  size_t, cudaStream_t) {
    fake->c = c;
    fake->d = d;
    fake->alpha = Factor(alpha);
    fake->beta = Factor(beta);
    fake->algorithm = algorithm->data[0];
    fake->c_lies_as_d = c_layout == d_layout;
    return fake->launch;
  };
  return api;
}

class CublasTest : public ::testing::Test {
 protected:
  CublasTest() { fake = &fake_; }
  ~CublasTest() override { EXPECT_EQ(fake_.num_objects, 0); }

  absl::StatusOr<std::unique_ptr<BlasProduct>> Create(int alignment = 4,
                                                      const BlasTypes& types = {},
                                                      BlasEpilogue epilogue = BlasEpilogue::kNone) {
    const auto layout = BlasLayoutOf({.m = 3,
                                      .n = 5,
                                      .k = 7,
                                      .a_row = 7,
                                      .a_column = 1,
                                      .b_row = 5,
                                      .b_column = 1,
                                      .c_row = 5,
                                      .c_column = 1});
    return blas_->Create(*layout, types, alignment, epilogue);
  }

  // The bytes of an attribute as a T; an error of the test if it has another size, or is not set.
  template <typename T>
  static T Attribute(const std::map<cublasLtMatmulDescAttributes_t, std::string>& attributes,
                     cublasLtMatmulDescAttributes_t attribute) {
    T value{};
    const auto found = attributes.find(attribute);
    if (found == attributes.end() || found->second.size() != sizeof(T)) {
      ADD_FAILURE() << "attribute " << attribute << " is not set, or not to so many bytes";
      return value;
    }
    std::memcpy(&value, found->second.data(), sizeof(T));
    return value;
  }

  FakeCublas fake_;
  const std::unique_ptr<Blas> blas_ = *CreateCublas(FakeApi());
};

TEST_F(CublasTest, AsksForTheAlignmentThatItIsGiven) {
  const auto product = Create(16);
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_NE(*product, nullptr);
  EXPECT_EQ(fake_.alignment, 16u);
}

TEST_F(CublasTest, OperandsAndResultsHaveTheirTypes) {
  EXPECT_TRUE(Create(16, {DType::kBF16, DType::kF32}).ok());
  EXPECT_THAT(fake_.types, ElementsAre(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F));
  fake_.types.clear();
  EXPECT_TRUE(Create(16, {DType::kF16, DType::kF16}).ok());
  EXPECT_THAT(fake_.types, ElementsAre(CUDA_R_16F, CUDA_R_16F, CUDA_R_16F));
  fake_.types.clear();
  EXPECT_TRUE(Create(16).ok());
  EXPECT_THAT(fake_.types, ElementsAre(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F));
  fake_.types.clear();
  EXPECT_TRUE(Create(16, {DType::kF64, DType::kF64}).ok());
  EXPECT_THAT(fake_.types, ElementsAre(CUDA_R_64F, CUDA_R_64F, CUDA_R_64F));
}

// Alpha and beta have the scale type.
TEST_F(CublasTest, SumsOfDoublesAreDoublesAndAllOthersF32) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64}) {
    SCOPED_TRACE(Name(dtype));
    const bool is_f64 = dtype == DType::kF64;
    const auto product = Create(16, {dtype, dtype});
    ASSERT_TRUE(product.ok()) << product.status();
    EXPECT_EQ(fake_.compute_type, is_f64 ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F);
    EXPECT_EQ(fake_.scale_type, is_f64 ? CUDA_R_64F : CUDA_R_32F);
    for (const bool adds : {false, true}) {
      ASSERT_EQ((*product)->Run(nullptr, nullptr, nullptr, nullptr, adds, nullptr, {}),
                absl::OkStatus());
      EXPECT_EQ(fake_.alpha, 1);
      EXPECT_EQ(fake_.beta, adds ? 1 : 0);
    }
  }
}

TEST_F(CublasTest, AProductAloneHasNoEpilogue) {
  ASSERT_TRUE(Create().ok());
  EXPECT_FALSE(fake_.attributes.contains(CUBLASLT_MATMUL_DESC_EPILOGUE));
  EXPECT_FALSE(fake_.attributes.contains(CUBLASLT_MATMUL_DESC_BIAS_POINTER));
  EXPECT_FALSE(fake_.attributes.contains(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER));
}

TEST_F(CublasTest, EpiloguesAreDescribedBeforeTheAlgorithmIsChosen) {
  struct Case {
    BlasEpilogue epilogue;
    cublasLtEpilogue_t expected;
    bool has_bias;
    bool has_z;
  };
  const Case cases[] = {
      {BlasEpilogue::kBias, CUBLASLT_EPILOGUE_BIAS, true, false},
      {BlasEpilogue::kBiasAdd, CUBLASLT_EPILOGUE_BIAS, true, false},
      {BlasEpilogue::kBiasGelu, CUBLASLT_EPILOGUE_GELU_BIAS, true, false},
      {BlasEpilogue::kBiasGeluAux, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, true},
      {BlasEpilogue::kGeluGrad, CUBLASLT_EPILOGUE_DGELU, false, true},
  };
  int bias = 0;
  int z = 0;
  for (const Case& test : cases) {
    SCOPED_TRACE(test.expected);
    fake_.attributes.clear();
    const auto product = Create(16, {DType::kBF16, DType::kF32}, test.epilogue);
    ASSERT_TRUE(product.ok()) << product.status();
    EXPECT_EQ(Attribute<cublasLtEpilogue_t>(fake_.chosen_by, CUBLASLT_MATMUL_DESC_EPILOGUE),
              test.expected);
    EXPECT_EQ(fake_.chosen_by.contains(CUBLASLT_MATMUL_DESC_BIAS_POINTER), test.has_bias);
    EXPECT_EQ(fake_.chosen_by.contains(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER), test.has_z);
    // The library reads how the addresses are aligned.
    if (test.has_bias) {
      EXPECT_EQ(Attribute<uintptr_t>(fake_.chosen_by, CUBLASLT_MATMUL_DESC_BIAS_POINTER), 16u);
      EXPECT_EQ(Attribute<int32_t>(fake_.chosen_by, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE),
                CUDA_R_32F);
    }
    if (test.has_z) {
      EXPECT_EQ(Attribute<uintptr_t>(fake_.chosen_by, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER),
                16u);
      EXPECT_EQ(Attribute<int32_t>(fake_.chosen_by, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE),
                CUDA_R_32F);
      EXPECT_EQ(Attribute<int64_t>(fake_.chosen_by, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD), 5);
    }
    ASSERT_EQ((*product)->Run(nullptr, nullptr, nullptr, nullptr, false, nullptr, {&bias, &z}),
              absl::OkStatus());
    if (test.has_bias) {
      EXPECT_EQ(Attribute<void*>(fake_.attributes, CUBLASLT_MATMUL_DESC_BIAS_POINTER), &bias);
    }
    if (test.has_z) {
      EXPECT_EQ(Attribute<void*>(fake_.attributes, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER), &z);
    }
  }
}

// It is the matrix C, with a factor of 1, where the result is D.
TEST_F(CublasTest, AMatrixIsReadWhereTheResultIsNot) {
  int bias = 0;
  int r = 0;
  int result = 0;
  for (const BlasEpilogue epilogue : {BlasEpilogue::kAdd, BlasEpilogue::kBiasAdd}) {
    fake_.attributes.clear();
    const auto product = Create(16, {DType::kBF16, DType::kBF16}, epilogue);
    ASSERT_TRUE(product.ok()) << product.status();
    ASSERT_EQ((*product)->Run(nullptr, nullptr, nullptr, &result, false, nullptr,
                              {.bias = &bias, .r = &r}),
              absl::OkStatus());
    EXPECT_EQ(fake_.c, &r);
    EXPECT_EQ(fake_.d, &result);
    EXPECT_EQ(fake_.beta, 1);
    EXPECT_TRUE(fake_.c_lies_as_d);
    const bool has_bias = epilogue == BlasEpilogue::kBiasAdd;
    EXPECT_EQ(fake_.attributes.contains(CUBLASLT_MATMUL_DESC_EPILOGUE), has_bias);
    EXPECT_EQ(fake_.attributes.contains(CUBLASLT_MATMUL_DESC_BIAS_POINTER), has_bias);
  }
}

TEST_F(CublasTest, OtherProductsReadTheirResultOnlyToAddToIt) {
  int result = 0;
  const auto product = Create();
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_EQ(fake_.num_wanted, 1);
  for (const bool adds : {false, true}) {
    ASSERT_EQ((*product)->Run(nullptr, nullptr, nullptr, &result, adds, nullptr, {}),
              absl::OkStatus());
    EXPECT_EQ(fake_.c, &result);
    EXPECT_EQ(fake_.beta, adds ? 1 : 0);
  }
}

// Otherwise the launch would fail.
TEST_F(CublasTest, TheAlgorithmOfASumCanReadAnotherMatrix) {
  fake_.num_results = 3;
  fake_.first_out_of_place = 2;
  int r = 0;
  auto product = Create(16, {}, BlasEpilogue::kAdd);
  ASSERT_TRUE(product.ok()) << product.status();
  ASSERT_NE(*product, nullptr);
  EXPECT_GE(fake_.num_wanted, 3);
  ASSERT_EQ((*product)->Run(nullptr, nullptr, nullptr, nullptr, false, nullptr, {.r = &r}),
            absl::OkStatus());
  EXPECT_EQ(fake_.algorithm, 2u);
  fake_.first_out_of_place = 3;
  product = Create(16, {}, BlasEpilogue::kAdd);
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_EQ(*product, nullptr);
}

TEST_F(CublasTest, AProductWithoutAnAlgorithmIsNone) {
  fake_.heuristic = CUBLAS_STATUS_NOT_SUPPORTED;
  auto product = Create();
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_EQ(*product, nullptr);
  fake_.heuristic = CUBLAS_STATUS_SUCCESS;
  fake_.num_results = 0;
  product = Create();
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_EQ(*product, nullptr);
}

// Otherwise products would silently run on a kernel that is far slower.
TEST_F(CublasTest, AnErrorOfTheLibraryIsNotALackOfAlgorithms) {
  fake_.heuristic = CUBLAS_STATUS_INVALID_VALUE;
  const auto product = Create();
  EXPECT_EQ(product.status().code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(product.status().message()),
              HasSubstr("choosing cuBLASLt's algorithm for 1 products of f32 [5, 7] and [7, 3]: "
                        "INVALID_VALUE (as the library says it)"));
}

TEST_F(CublasTest, AFailedLaunchNamesTheProduct) {
  fake_.launch = CUBLAS_STATUS_EXECUTION_FAILED;
  const auto product = Create();
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_THAT(
      std::string(
          (*product)->Run(nullptr, nullptr, nullptr, nullptr, false, nullptr, {}).message()),
      HasSubstr("launching cuBLASLt for 1 products of f32 [5, 7] and [7, 3]: "
                "EXECUTION_FAILED (as the library says it)"));
}

}  // namespace
}  // namespace penstock::kernels::cuda
