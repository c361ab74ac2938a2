// Sizes and strides of the operands of the attention operators, from their tiles: [b, h, s, d]
// heads and the packed [b, s, 3, h, d] of qkv_attention with its result [b, s, h, d].
//
// Thread rule: pure functions.

#ifndef PENSTOCK_KERNELS_ATTENTION_TILES_H_
#define PENSTOCK_KERNELS_ATTENTION_TILES_H_

#include <algorithm>
#include <cstdint>

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

// A range that makes the blocks one after another: kernels go over it in Run, which allocates
// nothing.
class AttentionBlocks {
 public:
  // `spec` outlives the range.
  AttentionBlocks(const KernelSpec& spec, int64_t microbatch)
      : q_(spec.inputs[0]),
        kv_(spec.inputs[1]),
        keys_(spec.attributes.GetInt("block", 1)),
        parts_(GlobalExtent(kv_, 1) / keys_),
        queries_(GlobalExtent(q_, 1) / parts_),
        shift_(spec.attributes.GetInt("shift", 0) % parts_),
        is_causal_(spec.attributes.GetBool("causal", false)),
        first_query_(TileBegin(q_, 1, microbatch)),
        first_key_(TileBegin(kv_, 1, microbatch)) {
    if (q_.shape[1] == 0) return;
    begin_ = first_query_ / queries_;
    end_ = (last_query() + queries_ - 1) / queries_;
  }

  class Iterator {
   public:
    Iterator(const AttentionBlocks& blocks, int64_t part) : blocks_(blocks), part_(part) {}
    AttentionBlock operator*() const { return blocks_.Of(part_); }
    Iterator& operator++() {
      ++part_;
      return *this;
    }
    bool operator!=(const Iterator& other) const { return part_ != other.part_; }

   private:
    const AttentionBlocks& blocks_;
    int64_t part_;
  };
  Iterator begin() const { return {*this, begin_}; }
  Iterator end() const { return {*this, end_}; }

 private:
  int64_t last_query() const { return first_query_ + q_.shape[1]; }

  AttentionBlock Of(int64_t part) const {
    const int64_t begin = std::max(part * queries_, first_query_);
    const int64_t source = (part - shift_ + parts_) % parts_;  // in the sequence
    AttentionBlock block;
    block.shape = {.batch = q_.shape[0],
                   .heads = q_.shape[2],
                   .key_heads = kv_.shape[3],
                   .queries = std::min((part + 1) * queries_, last_query()) - begin,
                   .keys = keys_,
                   .width = q_.shape[3],
                   .is_causal = is_causal_,
                   .causal_offset = begin - source * keys_,
                   .lse_rows = q_.shape[1]};
    block.query = begin - first_query_;
    block.key = part * keys_ - first_key_;
    return block;
  }

  const TileDesc& q_;
  const TileDesc& kv_;
  const int64_t keys_;     // of a part
  const int64_t parts_;    // of the sequence
  const int64_t queries_;  // of a part
  const int64_t shift_;
  const bool is_causal_;
  const int64_t first_query_;
  const int64_t first_key_;
  int64_t begin_ = 0;  // parts that this tile's queries are of
  int64_t end_ = 0;
};

inline AttentionBlocks BlocksOf(const KernelSpec& spec, int64_t microbatch) {
  return {spec, microbatch};
}

}  // namespace penstock::kernels

#endif  // PENSTOCK_KERNELS_ATTENTION_TILES_H_
