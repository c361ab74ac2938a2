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

struct AttentionFactors {
  TensorFactors query;  // q, o and their gradients
  TensorFactors key;    // k, v and their gradients
  TensorFactors lse;
};

// b and h pass through, t and d need replication, s is of `query_kind`.
AttentionFactors AddAttentionFactors(ShardingRule& rule, const OpContext& context,
                                     FactorKind query_kind);

// Flops an element of q: `flops_a_key` / d for each key seen and element of the head.
double AttentionFlops(const OpContext& context, double flops_a_key);

// --- qkv[b, s, 3, h, d] is operand 0
// --------------------------------------------------------------

absl::Status CheckQkvOperand(const OpContext& context);
TensorType QkvOutput(const OpContext& context);
TensorType QkvLogSumExp(const OpContext& context);

struct QkvFactors {
  TensorFactors qkv;
  TensorFactors output;
  TensorFactors lse;
};

// b and h pass through, the others need replication.
QkvFactors AddQkvFactors(ShardingRule& rule, const OpContext& context);

double QkvFlops(const OpContext& context, double flops_a_key);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_ATTENTION_COMMON_H_
