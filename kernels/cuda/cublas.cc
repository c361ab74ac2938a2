#include "kernels/cuda/cublas.h"

#include <string>
#include <string_view>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"

namespace penstock::kernels::cuda {
namespace {

absl::Status ToStatus(const CublasApi& api, cublasStatus_t status, std::string_view what) {
  if (status == CUBLAS_STATUS_SUCCESS) return absl::OkStatus();
  return absl::InternalError(
      StrCat(what, ": ", api.get_status_name(status), " (", api.get_status_string(status), ")"));
}

// Calls the function of the library that frees a T.
template <typename T>
struct Deleter {
  cublasStatus_t (*destroy)(T*) = nullptr;
  void operator()(T* object) const { destroy(object); }
};
template <typename T>
using Owned = std::unique_ptr<T, Deleter<T>>;
using Handle = Owned<cublasLtContext>;
using Operation = Owned<cublasLtMatmulDescOpaque_t>;
using Layout = Owned<cublasLtMatrixLayoutOpaque_t>;
using Preference = Owned<cublasLtMatmulPreferenceOpaque_t>;

// REQUIRES: one of those that BlasTypes allows.
cudaDataType_t TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return CUDA_R_16BF;
    case DType::kF16:
      return CUDA_R_16F;
    case DType::kF64:
      return CUDA_R_64F;
    default:
      return CUDA_R_32F;
  }
}

// R is no epilogue in the terms of the library, but its matrix C, where the result is D.
cublasLtEpilogue_t ToCublas(BlasEpilogue epilogue) {
  switch (epilogue) {
    case BlasEpilogue::kBias:
    case BlasEpilogue::kBiasAdd:
      return CUBLASLT_EPILOGUE_BIAS;
    case BlasEpilogue::kBiasGelu:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case BlasEpilogue::kBiasGeluAux:
      return CUBLASLT_EPILOGUE_GELU_AUX_BIAS;
    case BlasEpilogue::kGeluGrad:
      return CUBLASLT_EPILOGUE_DGELU;
    case BlasEpilogue::kNone:
    case BlasEpilogue::kAdd:
      break;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}

// The library is asked for so many, best first, where not every one will do.
constexpr int kMostAlgorithms = 8;

class CublasProduct : public BlasProduct {
 public:
  // `api` outlives it.
  CublasProduct(const CublasApi& api, cublasLtHandle_t handle, const BlasLayout& layout,
                const BlasTypes& types, BlasEpilogue epilogue)
      : api_(api),
        handle_(handle),
        is_swapped_(layout.is_swapped),
        epilogue_(epilogue),
        operand_type_(TypeOf(types.operands)),
        result_type_(TypeOf(types.result)),
        what_(StrCat(layout.batch, " products of ", Name(types.operands), " [", layout.rows, ", ",
                     layout.k, "] and [", layout.k, ", ", layout.columns, "]")) {}

  // Returns false where cuBLASLt has no algorithm.
  absl::StatusOr<bool> Prepare(const BlasLayout& layout, int alignment) {
    cublasLtMatmulDesc_t operation = nullptr;
    // Sums and products in f32 proper: no TF32. Alpha and beta have the type of the sums.
    const bool is_double = HasDoubles();
    RETURN_IF_ERROR(
        Check(api_.create_operation(&operation, is_double ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F,
                                    is_double ? CUDA_R_64F : CUDA_R_32F),
              "making a matrix product of cuBLASLt"));
    operation_ = Operation(operation, {api_.destroy_operation});
    const cublasOperation_t transpose_a = layout.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N;
    const cublasOperation_t transpose_b = layout.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N;
    RETURN_IF_ERROR(SetOperation(CUBLASLT_MATMUL_DESC_TRANSA, &transpose_a, sizeof(transpose_a)));
    RETURN_IF_ERROR(SetOperation(CUBLASLT_MATMUL_DESC_TRANSB, &transpose_b, sizeof(transpose_b)));
    RETURN_IF_ERROR(SetEpilogue(layout, alignment));
    RETURN_IF_ERROR(MakeLayout(layout.transpose_a ? layout.k : layout.rows,
                               layout.transpose_a ? layout.rows : layout.k, layout.lda,
                               layout.batch, layout.a_batch, operand_type_, &a_));
    RETURN_IF_ERROR(MakeLayout(layout.transpose_b ? layout.columns : layout.k,
                               layout.transpose_b ? layout.k : layout.columns, layout.ldb,
                               layout.batch, layout.b_batch, operand_type_, &b_));
    RETURN_IF_ERROR(MakeLayout(layout.rows, layout.columns, layout.ldc, layout.batch,
                               layout.c_batch, result_type_, &c_));
    return FindAlgorithm(static_cast<uint32_t>(alignment));
  }

  absl::Status Run(StreamHandle stream, const void* a, const void* b, void* c, bool adds,
                   void* workspace, const EpiloguePointers& epilogue) override {
    static constexpr float kFloats[] = {0, 1};
    static constexpr double kDoubles[] = {0, 1};
    const auto factor = [this](int i) {
      return HasDoubles() ? static_cast<const void*>(kDoubles + i) : kFloats + i;
    };
    const void* const alpha = factor(1);
    const void* const beta = factor(adds || HasR() ? 1 : 0);
    const void* const added = HasR() ? epilogue.r : c;
    RETURN_IF_ERROR(SetPointers(epilogue));
    if (is_swapped_) std::swap(a, b);
    return Check(
        api_.matmul(handle_, operation_.get(), alpha, a, a_.get(), b, b_.get(), beta, added,
                    c_.get(), c, c_.get(), &algorithm_, workspace, kBlasWorkspaceBytes, stream),
        StrCat("launching cuBLASLt for ", what_));
  }

 private:
  absl::Status Check(cublasStatus_t status, std::string_view what) const {
    return ToStatus(api_, status, what);
  }

  absl::Status SetOperation(cublasLtMatmulDescAttributes_t attribute, const void* value,
                            size_t num_bytes) {
    return Check(api_.set_operation(operation_.get(), attribute, value, num_bytes),
                 "setting up a matrix product of cuBLASLt");
  }

  bool HasDoubles() const { return operand_type_ == CUDA_R_64F; }
  bool HasBias() const {
    return epilogue_ != BlasEpilogue::kNone && epilogue_ != BlasEpilogue::kAdd &&
           epilogue_ != BlasEpilogue::kGeluGrad;
  }
  bool HasR() const {
    return epilogue_ == BlasEpilogue::kAdd || epilogue_ == BlasEpilogue::kBiasAdd;
  }
  bool HasZ() const {
    return epilogue_ == BlasEpilogue::kBiasGeluAux || epilogue_ == BlasEpilogue::kGeluGrad;
  }

  absl::Status SetEpilogue(const BlasLayout& layout, int alignment) {
    if (!HasBias() && !HasZ()) return absl::OkStatus();
    const cublasLtEpilogue_t epilogue = ToCublas(epilogue_);
    RETURN_IF_ERROR(SetOperation(CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof(epilogue)));
    const int32_t type = result_type_;
    if (HasBias()) {
      RETURN_IF_ERROR(SetOperation(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, &type, sizeof(type)));
    }
    if (HasZ()) {
      RETURN_IF_ERROR(
          SetOperation(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, &type, sizeof(type)));
      RETURN_IF_ERROR(
          SetOperation(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &layout.ldc, sizeof(layout.ldc)));
    }
    // The choice of an algorithm reads how the addresses are aligned, and nothing behind them.
    void* const aligned = reinterpret_cast<void*>(static_cast<uintptr_t>(alignment));
    return SetPointers({aligned, aligned});
  }

  absl::Status SetPointers(const EpiloguePointers& pointers) {
    if (HasBias()) {
      RETURN_IF_ERROR(
          SetOperation(CUBLASLT_MATMUL_DESC_BIAS_POINTER, &pointers.bias, sizeof(pointers.bias)));
    }
    if (!HasZ()) return absl::OkStatus();
    return SetOperation(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &pointers.z, sizeof(pointers.z));
  }

  absl::Status MakeLayout(int64_t rows, int64_t columns, int64_t distance, int64_t batch,
                          int64_t batch_stride, cudaDataType_t type, Layout* layout) const {
    cublasLtMatrixLayout_t made = nullptr;
    RETURN_IF_ERROR(
        Check(api_.create_layout(&made, type, static_cast<uint64_t>(rows),
                                 static_cast<uint64_t>(columns), distance),
              StrCat("laying out a matrix of ", rows, " x ", columns, " for cuBLASLt")));
    *layout = Layout(made, {api_.destroy_layout});
    if (batch == 1) return absl::OkStatus();
    // It fits: PlanProduct takes no larger batch.
    const auto count = static_cast<int32_t>(batch);
    RETURN_IF_ERROR(
        Check(api_.set_layout(made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof(count)),
              "laying out matrices for cuBLASLt"));
    return Check(api_.set_layout(made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &batch_stride,
                                 sizeof(batch_stride)),
                 "laying out matrices for cuBLASLt");
  }

  absl::StatusOr<bool> FindAlgorithm(uint32_t alignment) {
    cublasLtMatmulPreference_t made = nullptr;
    RETURN_IF_ERROR(Check(api_.create_preference(&made), "asking cuBLASLt"));
    const Preference preference(made, {api_.destroy_preference});
    const size_t workspace_bytes = kBlasWorkspaceBytes;
    RETURN_IF_ERROR(Check(api_.set_preference(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                              &workspace_bytes, sizeof(workspace_bytes)),
                          "asking cuBLASLt"));
    // Parts of a split sum are added in f32, also where the result has 16 bits.
    const auto schemes = static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE);
    RETURN_IF_ERROR(Check(api_.set_preference(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                              &schemes, sizeof(schemes)),
                          "asking cuBLASLt"));
    for (const cublasLtMatmulPreferenceAttributes_t attribute :
         {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
          CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES}) {
      RETURN_IF_ERROR(Check(api_.set_preference(made, attribute, &alignment, sizeof(alignment)),
                            "asking cuBLASLt"));
    }
    cublasLtMatmulHeuristicResult_t results[kMostAlgorithms] = {};
    int num_results = 0;
    const cublasStatus_t status =
        api_.get_heuristic(handle_, operation_.get(), a_.get(), b_.get(), c_.get(), c_.get(), made,
                           HasR() ? kMostAlgorithms : 1, results, &num_results);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return false;
    // Versions refuse an epilogue differently; without it the operator runs as several kernels.
    if (status == CUBLAS_STATUS_INVALID_VALUE && epilogue_ != BlasEpilogue::kNone) return false;
    RETURN_IF_ERROR(Check(status, StrCat("choosing cuBLASLt's algorithm for ", what_)));
    for (int i = 0; i < num_results; ++i) {
      if (HasR() && (results[i].state != CUBLAS_STATUS_SUCCESS || !MayReadOther(results[i].algo))) {
        continue;
      }
      algorithm_ = results[i].algo;
      return true;
    }
    return false;
  }

  // Whether the matrix that is added may be another one than the result.
  bool MayReadOther(const cublasLtMatmulAlgo_t& algorithm) const {
    int32_t is_supported = 0;
    size_t num_bytes = 0;
    const cublasStatus_t status =
        api_.get_capability(&algorithm, CUBLASLT_ALGO_CAP_OUT_OF_PLACE_RESULT_SUPPORT,
                            &is_supported, sizeof(is_supported), &num_bytes);
    return status == CUBLAS_STATUS_SUCCESS && is_supported != 0;
  }

  const CublasApi& api_;
  const cublasLtHandle_t handle_;
  const bool is_swapped_;
  const BlasEpilogue epilogue_;
  const cudaDataType_t operand_type_;
  const cudaDataType_t result_type_;
  const std::string what_;  // for errors
  Operation operation_;
  Layout a_, b_, c_;
  cublasLtMatmulAlgo_t algorithm_ = {};
};

class Cublas : public Blas {
 public:
  Cublas(const CublasApi& api, Handle handle) : api_(api), handle_(std::move(handle)) {}

  absl::StatusOr<std::unique_ptr<BlasProduct>> Create(const BlasLayout& layout,
                                                      const BlasTypes& types, int alignment,
                                                      BlasEpilogue epilogue) override {
    auto product = std::make_unique<CublasProduct>(api_, handle_.get(), layout, types, epilogue);
    ASSIGN_OR_RETURN(const bool has_algorithm, product->Prepare(layout, alignment));
    if (!has_algorithm) return nullptr;
    return product;
  }

 private:
  const CublasApi api_;
  const Handle handle_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Blas>> CreateCublas(const CublasApi& api) {
  cublasLtHandle_t handle = nullptr;
  RETURN_IF_ERROR(ToStatus(api, api.create(&handle), "starting cuBLASLt"));
  return std::make_unique<Cublas>(api, Handle(handle, {api.destroy}));
}

absl::StatusOr<std::unique_ptr<Blas>> CreateCublas() {
  ASSIGN_OR_RETURN(const CublasApi api, LoadCublas());
  return CreateCublas(api);
}

}  // namespace penstock::kernels::cuda
