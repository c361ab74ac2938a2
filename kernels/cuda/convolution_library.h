// Convolutions by a library: what kernels/cuda/ asks of kernels/cudnn/, which alone sees cuDNN's
// headers. Sums are in f32, without TF32, and have the same bits every time.
//
// Thread rule: a ConvolutionLibrary and what it makes belong to the executor of their device.

#ifndef PENSTOCK_KERNELS_CUDA_CONVOLUTION_LIBRARY_H_
#define PENSTOCK_KERNELS_CUDA_CONVOLUTION_LIBRARY_H_

#include <climits>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "kernels/cuda/images.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

enum class ConvolutionPass : uint8_t {
  kForward,     // x, weights -> y
  kInputGrad,   // weights, dy -> dx
  kWeightGrad,  // x, dy -> dweights
};

// One convolution at a fixed shape and type, on a fixed stream.
class LibraryConvolution {
 public:
  virtual ~LibraryConvolution() = default;
  // Of the operands that the pass has, with `adds` plus what the result has held. `workspace` has
  // kConvolutionWorkspaceBytes, at a multiple of kConvolutionAlignment.
  virtual absl::Status Run(const void* a, const void* b, void* result, bool adds,
                           void* workspace) = 0;
};

inline constexpr size_t kConvolutionWorkspaceBytes = size_t{32} << 20;
inline constexpr size_t kConvolutionAlignment = 256;

class ConvolutionLibrary {
 public:
  virtual ~ConvolutionLibrary() = default;
  // All operands and the result are of `dtype`: f32, bf16 or f16. Null where the library has no
  // algorithm that keeps to the workspace and gives the same bits every time.
  // REQUIRES: IsForLibrary(shape); `stream` outlives the result.
  virtual absl::StatusOr<std::unique_ptr<LibraryConvolution>> Create(StreamHandle stream,
                                                                     ConvolutionPass pass,
                                                                     const ConvolutionShape& shape,
                                                                     DType dtype) = 0;
};

// Whether a library that pads both ends by `low` has these results.
constexpr bool HasEqualPadding(const WindowAxis& axis) {
  const int64_t span = axis.in + 2 * axis.low - ((axis.taps - 1) * axis.dilation + 1);
  return axis.low >= 0 && axis.taps >= 1 && span >= 0 && axis.out == 1 + span / axis.stride;
}

// Whether a library can be asked: it takes nothing empty, sizes of 32 bits, and tensors of at most
// INT_MAX elements.
constexpr bool IsForLibrary(const ConvolutionShape& shape) {
  const auto fits = [](int64_t size) { return size >= 1 && size <= INT_MAX; };
  // Of sizes that fit.
  const auto product_fits = [](std::initializer_list<int64_t> sizes) {
    int64_t left = INT_MAX;
    for (const int64_t size : sizes) left /= size;
    return left >= 1;
  };
  const auto axis_fits = [&fits](const WindowAxis& axis) {
    return fits(axis.in) && fits(axis.out) && fits(axis.taps) && fits(axis.stride) &&
           fits(axis.dilation) && axis.low <= INT_MAX && HasEqualPadding(axis);
  };
  return fits(shape.n) && fits(shape.groups) && fits(shape.c) && fits(shape.o) &&
         shape.c <= INT_MAX / shape.groups && shape.o <= INT_MAX / shape.groups &&
         axis_fits(shape.rows) && axis_fits(shape.columns) &&
         product_fits({shape.n, shape.groups, shape.c, shape.rows.in, shape.columns.in}) &&
         product_fits({shape.n, shape.groups, shape.o, shape.rows.out, shape.columns.out}) &&
         product_fits({shape.groups, shape.o, shape.c, shape.rows.taps, shape.columns.taps});
}

// The library of the device that is current on this thread. Folders cudnn/ and no_cudnn/ implement
// it. kFailedPrecondition says why there is none: this build has no cuDNN, or it cannot be loaded.
absl::StatusOr<std::unique_ptr<ConvolutionLibrary>> CreateCudnn();

// "9.19", or why there is none. Loads the library.
absl::StatusOr<std::string> CudnnVersion();

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_CONVOLUTION_LIBRARY_H_
