// What the attention kernels share: the shapes and strides of their operands, [b, h, s, d] heads
// and the packed [b, s, 3, h, d] of qkv_attention with its result [b, s, h, d].
//
// Thread rule: pure functions, but for PrepareAttention, which any thread may call.

#ifndef PENSTOCK_KERNELS_CPU_ATTENTION_LAYOUT_H_
#define PENSTOCK_KERNELS_CPU_ATTENTION_LAYOUT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/cpu/attention_core.h"
#include "kernels/cpu/cpu_kernel.h"
#include "kernels/cpu/dot_gemm.h"
#include "kernels/cpu/gemm.h"

namespace penstock::kernels {

// Query i (global) sees keys j <= i + (t - s) with the global extents s and t.
inline int64_t CausalOffset(const TileDesc& queries, int query_dim, const TileDesc& keys,
                            int key_dim, int64_t microbatch) {
  return TileBegin(queries, query_dim, microbatch) - TileBegin(keys, key_dim, microbatch) +
         GlobalExtent(keys, key_dim) - GlobalExtent(queries, query_dim);
}

// attention, attention_grad: operands 0 and 1 are q[b, h, s, d] and k[b, g, t, d].
inline AttentionShape SeparateShape(const KernelSpec& spec, int64_t microbatch) {
  const TileDesc& q = spec.inputs[0];
  const TileDesc& k = spec.inputs[1];
  return {.batch = q.shape[0],
          .heads = q.shape[1],
          .key_heads = k.shape[1],
          .queries = q.shape[2],
          .keys = k.shape[2],
          .width = q.shape[3],
          .is_causal = spec.attributes.GetBool("causal", false),
          .causal_offset = CausalOffset(q, 2, k, 2, microbatch)};
}

inline HeadStrides SeparateStrides(int64_t heads, int64_t rows, int64_t width) {
  return {.batch = heads * rows * width, .head = rows * width, .row = width};
}

// qkv_attention, qkv_attention_grad: operand 0 is qkv[b, s, 3, h, d].
inline AttentionShape PackedShape(const KernelSpec& spec, int64_t microbatch) {
  const TileDesc& qkv = spec.inputs[0];
  return {.batch = qkv.shape[0],
          .heads = qkv.shape[3],
          .key_heads = qkv.shape[3],
          .queries = qkv.shape[1],
          .keys = qkv.shape[1],
          .width = qkv.shape[4],
          .is_causal = spec.attributes.GetBool("causal", false),
          .causal_offset = CausalOffset(qkv, 1, qkv, 1, microbatch)};
}

// Strides of one of `parts` slices of [b, s, parts, h, d].
inline HeadStrides PackedStrides(const AttentionShape& shape, int64_t parts) {
  const int64_t row = parts * shape.heads * shape.width;
  return {.batch = shape.queries * row, .head = shape.width, .row = row};
}

// q, k or v (part 0, 1, 2) of a packed tensor.
template <typename T>
HeadTensor<T> PackedPart(const AttentionShape& shape, T* qkv, int part) {
  return {qkv + part * shape.heads * shape.width, PackedStrides(shape, 3)};
}

// Strides of one of `parts` slices of [b, rows, parts, h, d].
inline HeadStrides RowStrides(int64_t rows, int64_t parts, int64_t heads, int64_t width) {
  const int64_t row = parts * heads * width;
  return {.batch = rows * row, .head = width, .row = row};
}

// The blocks of one tile of block_attention or its gradient: operands 0 and 1 are q[b, s, h, d] and
// kv[b, t, 2, g, d].
struct AttentionBlock {
  AttentionShape shape;
  int64_t query = 0;  // the first one, in the tile
  int64_t key = 0;    // likewise
};
// The largest that a tile of this shape has, wherever it lies: with it go the bytes of scratch.
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

inline std::vector<AttentionBlock> BlocksOf(const KernelSpec& spec, int64_t microbatch) {
  const TileDesc& q = spec.inputs[0];
  const TileDesc& kv = spec.inputs[1];
  const int64_t keys = spec.attributes.GetInt("block", 1);
  const int64_t parts = GlobalExtent(kv, 1) / keys;
  const int64_t queries = GlobalExtent(q, 1) / parts;
  const int64_t first_query = TileBegin(q, 1, microbatch);
  const int64_t last_query = first_query + q.shape[1];
  std::vector<AttentionBlock> blocks;
  if (q.shape[1] == 0) return blocks;
  for (int64_t part = first_query / queries; part * queries < last_query; ++part) {
    const int64_t begin = std::max(part * queries, first_query);
    const int64_t shift = spec.attributes.GetInt("shift", 0) % parts;
    const int64_t source = (part - shift + parts) % parts;  // in the sequence
    AttentionBlock& block = blocks.emplace_back();
    block.shape = {.batch = q.shape[0],
                   .heads = q.shape[2],
                   .key_heads = kv.shape[3],
                   .queries = std::min((part + 1) * queries, last_query) - begin,
                   .keys = keys,
                   .width = q.shape[3],
                   .is_causal = spec.attributes.GetBool("causal", false),
                   .causal_offset = begin - source * keys,
                   .lse_rows = q.shape[1]};
    block.query = begin - first_query;
    block.key = part * keys - TileBegin(kv, 1, microbatch);
  }
  return blocks;
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
