// How the operators of attention ask the library of the device, and fall back on the kernels of
// this folder.
//
// Thread rule: pure functions; kernels as kernels/kernel.h.

#ifndef PENSTOCK_KERNELS_CUDA_LIBRARY_ATTENTION_H_
#define PENSTOCK_KERNELS_CUDA_LIBRARY_ATTENTION_H_

#include <cstddef>
#include <cstdint>
#include <optional>

#include "kernels/cuda/attention_library.h"
#include "kernels/cuda/cuda_kernel.h"

namespace penstock::kernels::cuda {

// attention or qkv_attention, or the gradient of either, as a library sees a run of it.
LibraryAttentionShape LibraryShapeOf(const KernelSpec& spec, int64_t microbatch);

// The shape, if a library can be asked for it; also without a device. All of the spec is then of
// 16 bits, but lse.
std::optional<LibraryAttentionShape> FindLibraryShape(const KernelSpec& spec);

// What is reserved for the library: plans are made before it is known whether it can be loaded.
// 0 where it cannot be asked.
size_t LibraryAttentionWorkspace(const KernelSpec& spec);

// By the library where it takes the spec; otherwise `own`, which the result also runs where
// addresses are not aligned, or a micro-batch has its queries elsewhere.
KernelOr CreateLibraryAttention(const KernelSpec& spec, Device& device, Stream& stream,
                                KernelOr own);

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_LIBRARY_ATTENTION_H_
