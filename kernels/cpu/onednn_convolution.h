// A pass of a convolution in oneDNN. What differs between its versions 2 and 3 belongs into
// onednn_convolution.cc; no oneDNN type leaves that file.
//
// oneDNN computes on layouts of its own, with channels in blocks of a vector. Images are copied
// into and out of them a few at a time, so that the copies stay in the cache; the gradient of the
// weights, which sums over images, takes all at once.
//
// Operands are f32 or bf16, and sums are f32. The result has the type of the operands, but
// gradients of weights are f32.
//
// Thread rule: an object is used by one thread at a time, on which alone it runs.

#ifndef PENSTOCK_KERNELS_CPU_ONEDNN_CONVOLUTION_H_
#define PENSTOCK_KERNELS_CPU_ONEDNN_CONVOLUTION_H_

#include <cstddef>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "kernels/cpu/convolution.h"

namespace penstock::kernels {

// Whether oneDNN is to compute the pass of operands in `dtype`: in bf16, where the processor and
// oneDNN have fast code for it. Otherwise nothing else here may be called.
// REQUIRES: all extents are positive, unless dtype is f32.
bool HasOneDnnConvolution(const ConvolutionShape& shape, ConvolutionPass pass, DType dtype);

class OneDnnConvolution {
 public:
  // Compiles the code. REQUIRES: all extents are positive.
  static absl::StatusOr<std::unique_ptr<OneDnnConvolution>> Create(const ConvolutionShape& shape,
                                                                   ConvolutionPass pass,
                                                                   DType dtype);
  ~OneDnnConvolution();

  // A multiple of 64.
  size_t workspace_bytes() const;

  // `a` and `b` are the operands of the pass. REQUIRES: the workspace is aligned to 64 bytes.
  absl::Status Run(const void* a, const void* b, void* result, void* workspace);

 private:
  struct Impl;
  explicit OneDnnConvolution(std::unique_ptr<Impl> impl);

  const std::unique_ptr<Impl> impl_;
};

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ONEDNN_CONVOLUTION_H_
