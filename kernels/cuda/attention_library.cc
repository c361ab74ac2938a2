#include "kernels/cuda/attention_library.h"

#include <climits>
#include <string_view>

#include "base/strings.h"

namespace penstock::kernels::cuda {
namespace {

constexpr int64_t kMaxWidth = 128;
constexpr int64_t kMultiple = 8;  // of 2 bytes: kAttentionOperandAlignment

constexpr int64_t RoundUp(int64_t value, int64_t multiple) {
  return CeilDiv(value, multiple) * multiple;
}

bool IsSize(int64_t size) { return size >= 1 && size <= INT_MAX; }

// Whether the strides are multiples of kMultiple and the tensor spans at most INT_MAX elements.
bool Fits(const HeadStrides& strides, int64_t batch, int64_t heads, int64_t rows, int64_t width) {
  int64_t left = INT_MAX - width;  // behind the elements so far
  const auto take = [&left](int64_t size, int64_t stride) {
    if (stride < 1 || stride % kMultiple != 0 || (size - 1) > left / stride) return false;
    left -= (size - 1) * stride;
    return true;
  };
  return take(rows, strides.row) && take(heads, strides.head) && take(batch, strides.batch);
}

// Of one element of the batch with `heads` heads of queries. The frontend's graph has sums of do x
// o, 4 bytes a query. cuDNN 9.19 stores the matrix of queries x keys in 16 bits, padded to tiles,
// and where heads of keys are shared the gradients of keys and values of each head of queries, in
// 16 bits; these are counted as f32.
double GradBytes(const kernels::AttentionShape& sizes, int64_t heads) {
  const auto queries = static_cast<double>(RoundUp(sizes.queries, 128));
  const auto keys = static_cast<double>(RoundUp(sizes.keys, 128));
  const auto width = static_cast<double>(RoundUp(sizes.width, 64));
  const double sums = 4 * queries;
  const double matrix = 2 * queries * keys;
  const double key_grads = sizes.heads != sizes.key_heads ? 2 * 4 * keys * width : 0;
  return static_cast<double>(heads) * (sums + matrix + key_grads);
}

constexpr double kSlackBytes = 4 << 20;
constexpr double kSliceLimit = static_cast<double>(kMaxAttentionGradWorkspaceBytes) - kSlackBytes;

// The largest divisor of `size` at which `bytes` each keep to the limit; 0: none.
int64_t LargestPart(int64_t size, double bytes) {
  for (int64_t parts = 1; parts <= size; ++parts) {
    if (size % parts == 0 && static_cast<double>(size / parts) * bytes <= kSliceLimit) {
      return size / parts;
    }
  }
  return 0;
}

}  // namespace

bool IsForLibrary(const LibraryAttentionShape& shape) {
  const kernels::AttentionShape& s = shape.sizes;
  if (shape.dtype != DType::kBF16 && shape.dtype != DType::kF16) return false;
  if (!IsSize(s.batch) || !IsSize(s.heads) || !IsSize(s.key_heads) || !IsSize(s.queries) ||
      !IsSize(s.keys) || s.queries < 2 || s.keys < 2) {
    return false;
  }
  if (s.heads % s.key_heads != 0) return false;
  if (s.width < kMultiple || s.width > kMaxWidth || s.width % kMultiple != 0) return false;
  if (s.is_causal && (s.causal_offset != 0 || s.queries != s.keys)) return false;
  if (s.lse_rows != s.queries) return false;
  return Fits(shape.q, s.batch, s.heads, s.queries, s.width) &&
         Fits(shape.k, s.batch, s.key_heads, s.keys, s.width) &&
         Fits(shape.v, s.batch, s.key_heads, s.keys, s.width) &&
         Fits(shape.o, s.batch, s.heads, s.queries, s.width);
}

bool IsGradForLibrary(const LibraryAttentionShape& shape) {
  // Of 4 queries the statistics are a multiple of kAttentionOperandAlignment, and so is what lies
  // behind them in the workspace.
  return IsForLibrary(shape) && shape.sizes.queries % 4 == 0 && SliceOfGrad(shape.sizes).batch > 0;
}

AttentionGradSlice SliceOfGrad(const kernels::AttentionShape& sizes) {
  const int64_t batch = LargestPart(sizes.batch, GradBytes(sizes, sizes.heads));
  if (batch > 0) return {.batch = batch, .key_heads = sizes.key_heads};
  const int64_t key_heads =
      LargestPart(sizes.key_heads, GradBytes(sizes, sizes.heads / sizes.key_heads));
  if (key_heads > 0) return {.batch = 1, .key_heads = key_heads};
  return {};
}

size_t AttentionGradWorkspaceBytes(const kernels::AttentionShape& sizes) {
  const AttentionGradSlice slice = SliceOfGrad(sizes);
  const int64_t heads = slice.key_heads * (sizes.heads / sizes.key_heads);
  return static_cast<size_t>(static_cast<double>(slice.batch) * GradBytes(sizes, heads) +
                             kSlackBytes);
}

absl::StatusOr<AttentionChoice> ParseAttentionChoice(const char* value) {
  const std::string_view text = value != nullptr ? value : "";
  if (text.empty()) return AttentionChoice::kAny;
  if (text == "own") return AttentionChoice::kOwn;
  if (text == "cudnn") return AttentionChoice::kLibrary;
  return absl::InvalidArgumentError(
      StrCat(kAttentionVariable, " is \"", text, "\": set it to own or cudnn, or not at all"));
}

}  // namespace penstock::kernels::cuda
