// Stands in for oneDNN in builds without it (PENSTOCK_ONEDNN=OFF): products are our own, and
// convolutions and poolings go to the loops of cpu/convolution.cc and cpu/pooling.cc.

#include "kernels/cpu/onednn.h"

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/onednn_convolution.h"
#include "kernels/cpu/onednn_matmul.h"
#include "kernels/cpu/onednn_pooling.h"

namespace penstock::kernels {

void RunOneDnnOnOneThread() {}

void PrepareOneDnnGemm() {}

void OneDnnGemm(bool transpose_a, bool transpose_b, int64_t m, int64_t n, int64_t k, const float* a,
                int64_t lda, const float* b, int64_t ldb, float* c, int64_t ldc, bool accumulate) {
  // oneDNN has memory of its own, so callers reserve none. What a product needs is bounded by the
  // blocks of PackedGemm.
  constexpr size_t kAlignment = 64;
  thread_local std::vector<std::byte> memory;
  const size_t num_bytes = GemmWorkspaceBytes<float>(m, n, k);
  if (memory.size() < num_bytes + kAlignment) memory.resize(num_bytes + kAlignment);
  void* workspace = memory.data();
  size_t room = memory.size();
  std::align(kAlignment, num_bytes, workspace, room);
  PackedGemm<float>(m, n, k, {a, transpose_a ? int64_t{1} : lda, transpose_a ? lda : int64_t{1}},
                    {b, transpose_b ? int64_t{1} : ldb, transpose_b ? ldb : int64_t{1}},
                    {c, ldc, 1}, accumulate, workspace);
}

Bf16Unit OneDnnBf16Unit() { return Bf16Unit::kNone; }

void PrepareOneDnnMatmul() {}

template <typename C>
bool OneDnnMatmul(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                  StridedMatrix<const BFloat16>, StridedMatrix<C>, bool) {
  return false;
}
template bool OneDnnMatmul(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                           StridedMatrix<const BFloat16>, StridedMatrix<float>, bool);
template bool OneDnnMatmul(int64_t, int64_t, int64_t, StridedMatrix<const BFloat16>,
                           StridedMatrix<const BFloat16>, StridedMatrix<BFloat16>, bool);

bool HasOneDnnConvolution(const ConvolutionShape&, ConvolutionPass, DType) { return false; }

struct OneDnnConvolution::Impl {};
OneDnnConvolution::OneDnnConvolution(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OneDnnConvolution::~OneDnnConvolution() = default;
absl::StatusOr<std::unique_ptr<OneDnnConvolution>> OneDnnConvolution::Create(
    const ConvolutionShape&, ConvolutionPass, DType) {
  return absl::UnimplementedError("this build has no oneDNN");
}
size_t OneDnnConvolution::workspace_bytes() const { return 0; }
absl::Status OneDnnConvolution::Run(const void*, const void*, void*, void*) {
  return absl::UnimplementedError("this build has no oneDNN");
}

bool HasOneDnnPooling() { return false; }

struct OneDnnPooling::Impl {};
OneDnnPooling::OneDnnPooling(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
OneDnnPooling::~OneDnnPooling() = default;
absl::StatusOr<std::unique_ptr<OneDnnPooling>> OneDnnPooling::Create(const PoolingShape&,
                                                                     PoolingPass) {
  return absl::UnimplementedError("this build has no oneDNN");
}
size_t OneDnnPooling::workspace_bytes() const { return 0; }
absl::Status OneDnnPooling::Run(const float*, const float*, float*, void*) {
  return absl::UnimplementedError("this build has no oneDNN");
}

}  // namespace penstock::kernels
