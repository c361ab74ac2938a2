// What attention and qkv_attention share with their gradients.
//
// Thread rule: pure functions.

#ifndef PENSTOCK_GRAPH_OPS_ATTENTION_COMMON_H_
#define PENSTOCK_GRAPH_OPS_ATTENTION_COMMON_H_

#include "graph/ops/common.h"

namespace penstock::graph::ops {

// --- q[b, h, s, d], k[b, h, t, d], v[b, h, t, d] are operands 0 to 2
// -------------------------------

absl::Status CheckAttentionOperands(const OpContext& context);
absl::Status CheckLogSumExp(const OpContext& context, int operand, const TensorType& expected);

// lse[b, h, s] of q.
TensorType LogSumExpOf(const TensorType& q);

// The factor t.
inline constexpr int kAttentionKeys = 3;

struct AttentionFactors {
  TensorFactors query;  // q, o and their gradients
  TensorFactors key;    // k, v and their gradients
  TensorFactors lse;
};

// b and h pass through, d needs replication, s is of `query_kind` and t of `key_kind`.
AttentionFactors AddAttentionFactors(ShardingRule& rule, const OpContext& context,
                                     FactorKind query_kind, FactorKind key_kind);

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

// --- From one layout to the other ---------------------------------------------------------------

// q, k and v as [b, h, s, d].
struct SeparateHeads {
  ValueId q = kNoValue;
  ValueId k = kNoValue;
  ValueId v = kNoValue;
};
SeparateHeads SplitQkv(GraphBuilder& builder, ValueId qkv);

// [b, h, s, d] from [b, s, h, d], or back.
ValueId SwapHeadsAndRows(GraphBuilder& builder, ValueId x);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_ATTENTION_COMMON_H_
