// Attention by a library: what kernels/cuda/ asks of kernels/cudnn_frontend/, which alone sees the
// headers of cuDNN's frontend. Values of 16 bits, sums in f32; results have the same bits every
// time.
//
// Thread rule: an AttentionLibrary and what it makes belong to the executor of their device.

#ifndef PENSTOCK_KERNELS_CUDA_ATTENTION_LIBRARY_H_
#define PENSTOCK_KERNELS_CUDA_ATTENTION_LIBRARY_H_

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#include "base/dtype.h"
#include "kernels/attention_shape.h"
#include "kernels/cuda/launch.h"

namespace penstock::kernels::cuda {

// An attention as a library sees it: everything but the addresses. A gradient has the strides of
// its operand.
struct LibraryAttentionShape {
  kernels::AttentionShape sizes;
  DType dtype = DType::kBF16;  // of all operands and results but lse, which is f32
  HeadStrides q, k, v, o;
};

struct LibraryAttentionOperands {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  void* o = nullptr;
  float* lse = nullptr;  // null where it was not asked for
};

struct LibraryAttentionGradOperands {
  const void* q = nullptr;
  const void* k = nullptr;
  const void* v = nullptr;
  const void* o = nullptr;
  const float* lse = nullptr;
  const void* d_o = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
};

// At a fixed shape and type, on a fixed stream. Addresses are multiples of
// kAttentionOperandAlignment, that of the workspace a multiple of kAttentionWorkspaceAlignment.
class LibraryAttention {
 public:
  virtual ~LibraryAttention() = default;
  // `workspace` has kAttentionWorkspaceBytes.
  virtual absl::Status Run(const LibraryAttentionOperands& operands, void* workspace) = 0;
};
class LibraryAttentionGrad {
 public:
  virtual ~LibraryAttentionGrad() = default;
  // `workspace` has AttentionGradWorkspaceBytes() of the shape.
  virtual absl::Status Run(const LibraryAttentionGradOperands& operands, void* workspace) = 0;
};

inline constexpr size_t kAttentionOperandAlignment = 16;
inline constexpr size_t kAttentionWorkspaceAlignment = 256;
inline constexpr size_t kAttentionWorkspaceBytes = size_t{4} << 20;
inline constexpr size_t kMaxAttentionGradWorkspaceBytes = size_t{512} << 20;

class AttentionLibrary {
 public:
  virtual ~AttentionLibrary() = default;
  // Null where the library has nothing for the shape that keeps to the workspace and gives the same
  // bits every time; an error instead, which says why, if it was created as required.
  // REQUIRES: IsForLibrary(shape); `stream` outlives the result.
  virtual absl::StatusOr<std::unique_ptr<LibraryAttention>> Create(
      StreamHandle stream, const LibraryAttentionShape& shape, bool has_lse) = 0;
  // REQUIRES: IsGradForLibrary(shape); `stream` outlives the result.
  virtual absl::StatusOr<std::unique_ptr<LibraryAttentionGrad>> CreateGrad(
      StreamHandle stream, const LibraryAttentionShape& shape) = 0;
};

// Whether a library can be asked: 16 bits, heads of a multiple of 8 up to 128, at least two queries
// and keys, strides of a multiple of 8, and less than 2^31 elements from the first to the last of
// a tensor. With a causal mask, query i sees the keys up to i of as many.
bool IsForLibrary(const LibraryAttentionShape& shape);

// Whether it can be asked for the gradient: what the forward pass wants, sequences of queries of a
// multiple of 4, and a slice that fits into the workspace.
bool IsGradForLibrary(const LibraryAttentionShape& shape);

// Without atomic operations, the library's gradient stores a matrix of queries x keys for each
// head. A slice is how many heads it is asked for at once, so that the matrices keep to
// kMaxAttentionGradWorkspaceBytes: `batch` elements of the batch, each with `key_heads` and the
// heads of queries that see them. `batch` > 1 comes with all heads. Both divide the whole.
struct AttentionGradSlice {
  int64_t batch = 0;  // 0: not even a single head fits
  int64_t key_heads = 0;
};
AttentionGradSlice SliceOfGrad(const kernels::AttentionShape& sizes);

// A bound of what the library takes for a slice.
// REQUIRES: IsGradForLibrary() of the shape.
size_t AttentionGradWorkspaceBytes(const kernels::AttentionShape& sizes);

// What computes attention where a library could: the value of the environment variable
// PENSTOCK_ATTENTION, which is read as a device is opened.
enum class AttentionChoice : uint8_t {
  kAny,      // not set, or empty: the library where it can
  kOwn,      // "own": the kernels of this folder
  kLibrary,  // "cudnn": the library; an error where it refuses what IsForLibrary() takes
};
inline constexpr char kAttentionVariable[] = "PENSTOCK_ATTENTION";
// `value` may be null.
absl::StatusOr<AttentionChoice> ParseAttentionChoice(const char* value);

// The library of the device that is current on this thread. Folders cudnn_frontend/ and
// no_cudnn_frontend/ implement it. kFailedPrecondition says why there is none: this build is
// without cuDNN or its frontend, or cuDNN cannot be loaded.
absl::StatusOr<std::unique_ptr<AttentionLibrary>> CreateCudnnAttention(bool is_required);

// Whether there is one, for any device. Loads the library.
absl::Status FindCudnnAttention();

}  // namespace penstock::kernels::cuda

#endif  // PENSTOCK_KERNELS_CUDA_ATTENTION_LIBRARY_H_
