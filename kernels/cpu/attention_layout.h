// What the attention kernels of CPUs share beside the shapes of their operands (attention_tiles.h).
//
// Thread rule: pure functions, but for PrepareAttention, which any thread may call.

#ifndef PENSTOCK_KERNELS_CPU_ATTENTION_LAYOUT_H_
#define PENSTOCK_KERNELS_CPU_ATTENTION_LAYOUT_H_

#include <algorithm>
#include <cstdint>

#include "kernels/attention_tiles.h"
#include "kernels/cpu/attention_core.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/dot_gemm.h"
#include "kernels/cpu/gemm.h"

namespace penstock::kernels {

// q, k or v (part 0, 1, 2) of a packed tensor.
template <typename T>
HeadTensor<T> PackedPart(const AttentionShape& shape, T* qkv, int part) {
  return {qkv + part * shape.heads * shape.width,
          RowStrides(shape.queries, 3, shape.heads, shape.width)};
}

// The largest block that a tile of block_attention has, wherever it lies: with it go the bytes of
// scratch.
inline AttentionShape LargestBlock(const KernelSpec& spec) {
  const Shape& q = spec.inputs[0].shape;
  const int64_t keys = spec.attributes.GetInt("block", 1);
  const int64_t queries =
      GlobalExtent(spec.inputs[0], 1) / (GlobalExtent(spec.inputs[1], 1) / keys);
  return {.batch = q[0],
          .heads = q[2],
          .key_heads = spec.inputs[1].shape[3],
          .queries = std::min(q[1], queries),
          .keys = keys,
          .width = q[3]};
}

// A kernel of attention. Without a dot product of bf16, f32 by conversion is faster.
template <template <typename> class K>
KernelOr CreateAttention(const KernelSpec& spec, Device& device, Stream& stream) {
  if (HasDotProduct()) return CreateKernel<K, FloatsAndBFloat16>(spec, device, stream);
  return CreateKernel<K, Floats>(spec, device, stream);
}

// `workspace`(shape) in the spec's dtype; 0 where the operator has no kernel.
template <typename F>
size_t AttentionBytes(const KernelSpec& spec, F workspace) {
  size_t num_bytes = 0;
  DispatchDType(FloatsAndBFloat16(), spec.op, MainDType(spec), [&](auto type) {
    num_bytes = workspace(type);
    return absl::OkStatus();
  }).IgnoreError();
  return num_bytes;
}

// Of attention and attention_parts, which goes through its parts one after the other.
inline size_t SeparateForwardBytes(const KernelSpec& spec, int num_threads) {
  return AttentionBytes(spec, [&]<typename T>(std::type_identity<T>) {
    return AttentionWorkspaceBytes<T>(SeparateShape(spec, 0), num_threads);
  });
}

// KernelDef::prepare.
inline void PrepareAttention(const KernelSpec& spec) { PrepareGemm(MainDType(spec)); }

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_CPU_ATTENTION_LAYOUT_H_
