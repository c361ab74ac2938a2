// Sizes and strides of the operands of the attention operators, from their tiles: [b, h, s, d]
// heads and the packed [b, s, 3, h, d] of qkv_attention with its result [b, s, h, d].
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_ATTENTION_TILES_H_
#define PENSTOCK_KERNELS_ATTENTION_TILES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/attention_shape.h"
#include "kernels/kernel.h"
#include "kernels/tile.h"

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
          .causal_offset = CausalOffset(q, 2, k, 2, microbatch),
          .lse_rows = q.shape[2]};
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
          .causal_offset = CausalOffset(qkv, 1, qkv, 1, microbatch),
          .lse_rows = qkv.shape[1]};
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

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_ATTENTION_TILES_H_
