// What attention and qkv_attention share with their gradients.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_OPS_ATTENTION_COMMON_H_
#define PENSTOCK_GRAPH_OPS_ATTENTION_COMMON_H_

#include "graph/ops/common.h"

namespace penstock::graph::ops {

// --- Heads
// -----------------------------------------------------------------------------------------
//
// Grouped-query attention (Ainslie et al., arXiv:2305.13245): keys and values may have fewer heads
// than queries. With h heads of queries and g of keys, head i of the queries sees head i / (h / g)
// of the keys. The heads of queries then follow two factors, g and h / g.

// g divides h, that of operand 0.
absl::Status CheckHeads(const OpContext& context, int operand, int64_t key_heads, int64_t heads);

struct HeadFactors {
  DimFactors query;
  DimFactors key;
};

// `key_factor` is that of g. h / g gets a factor of `kind` unless it is 1: a sum for the gradients
// of keys and values.
HeadFactors AddHeadFactors(ShardingRule& rule, int64_t heads, int64_t key_heads, FactorKind kind,
                           int key_factor);

// --- q[b, h, s, d], k[b, g, t, d], v[b, g, t, d] are operands 0 to 2
// -------------------------------

absl::Status CheckAttentionOperands(const OpContext& context);
absl::Status CheckLogSumExp(const OpContext& context, int operand, const TensorType& expected);

// lse[b, h, s] of q.
TensorType LogSumExpOf(const TensorType& q);

// The factors s and t.
inline constexpr int kAttentionQueries = 2;
inline constexpr int kAttentionKeys = 3;

struct AttentionFactors {
  TensorFactors query;  // q, o and their gradients
  TensorFactors key;    // k, v and their gradients
  TensorFactors lse;
};

// b and g pass through, d needs replication, s and h / g are of `query_kind` and t of `key_kind`.
AttentionFactors AddAttentionFactors(ShardingRule& rule, const OpContext& context,
                                     FactorKind query_kind, FactorKind key_kind);

// Op::PairedFactors: queries and keys, if their parts meet each other alike.
std::vector<std::pair<int, int>> AttentionPairs(const OpContext& context);

// Flops an element of q: `flops_a_key` / d for each key seen and element of the head.
double AttentionFlops(const OpContext& context, double flops_a_key);

// --- qkv[b, s, 3, h, d] is operand 0
// --------------------------------------------------------------

absl::Status CheckQkvOperand(const OpContext& context);
TensorType QkvOutput(const OpContext& context);
TensorType QkvLogSumExp(const OpContext& context);

// The factor s.
inline constexpr int kQkvSequence = 1;

struct QkvFactors {
  TensorFactors qkv;
  TensorFactors output;
  TensorFactors lse;
};

// b and h pass through, the others need replication.
QkvFactors AddQkvFactors(ShardingRule& rule, const OpContext& context);

double QkvFlops(const OpContext& context, double flops_a_key);

// --- q[b, s, h, d], kv[b, t, 2, g, d] are operands 0 and 1, in blocks
// -----------------------------

// block, shift, causal.
std::vector<AttrSpec> BlockAttributes();
absl::Status CheckBlockOperands(const OpContext& context);
TensorType BlockLogSumExp(const OpContext& context);

struct BlockFactors {
  TensorFactors query;  // q, o and their gradients
  TensorFactors key;    // kv and its gradient
  TensorFactors lse;
};

// b, g and the blocks pass through; h / g and the queries inside a block are of `query_kind`, and
// the keys inside one need replication, as d does.
BlockFactors AddBlockFactors(ShardingRule& rule, const OpContext& context, FactorKind query_kind);

// Flops an element of q, on the slowest device: but for the blocks on the diagonal, one sees all
// keys.
double BlockFlops(const OpContext& context, double flops_a_key);

// --- Ring attention ------------------------------------------------------------------------------

// Attention of q[b, s, h, d] and kv[b, t, 2, g, d], whose sequences one list of axes splits into
// `parts`: in step i each part of the queries meets the keys of the part i before it, which have
// been passed on i times. Each exchange can go on while the step before it computes. {o[b, s, h,
// d], lse[b, h, s]}; empty on failure.
std::vector<ValueId> RingAttention(GraphBuilder& builder, ValueId q, ValueId kv, bool causal,
                                   int64_t parts);

// {dq, dkv}: keys and values are passed round again, and the sum of their gradients follows them.
std::vector<ValueId> RingAttentionGrad(GraphBuilder& builder, ValueId q, ValueId kv, ValueId o,
                                       ValueId lse, ValueId d_o, bool causal, int64_t parts);

// --- From one layout to the other ---------------------------------------------------------------

// q, k and v as [b, h, s, d].
struct SeparateHeads {
  ValueId q = kNoValue;
  ValueId k = kNoValue;
  ValueId v = kNoValue;
};
SeparateHeads SplitQkv(GraphBuilder& builder, ValueId qkv);

// q[b, s, h, d] and kv[b, t, 2, h, d] of qkv.
struct RowsOfHeads {
  ValueId q = kNoValue;
  ValueId kv = kNoValue;
};
RowsOfHeads PackedHeads(GraphBuilder& builder, ValueId qkv);

// kv[b, t, 2, g, d] of k and v[b, g, t, d].
ValueId PackKeys(GraphBuilder& builder, ValueId k, ValueId v);

// Those slices of dimension 2 of qkv that are [begin, end), with that dimension.
ValueId PartOfQkv(GraphBuilder& builder, ValueId qkv, int64_t begin, int64_t end);

// x in another shape.
ValueId Reshaped(GraphBuilder& builder, ValueId x, const Shape& shape);

// [b, h, s, d] from [b, s, h, d], or back.
ValueId SwapHeadsAndRows(GraphBuilder& builder, ValueId x);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_ATTENTION_COMMON_H_
