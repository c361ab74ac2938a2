#include "graph/ops/attention_common.h"

#include "base/status_macros.h"

namespace penstock::graph::ops {
namespace {

// Keys that a query sees, on average. With causal, query i of s sees t - s + 1 + i of t keys. A
// tile does not say which queries or keys it holds: where one of the two is split it is taken for
// the slowest, the last queries or the first keys.
double KeysSeen(const Attributes& attributes, int64_t queries, int64_t keys) {
  const auto s = static_cast<double>(queries);
  const auto t = static_cast<double>(keys);
  if (!attributes.GetBool("causal", false)) return t;
  return keys >= queries ? t - 0.5 * (s - 1) : t - 0.5 * t * (t - 1) / s;
}

}  // namespace

absl::Status CheckAttentionOperands(const OpContext& context) {
  for (int i : {0, 1, 2}) {
    RETURN_IF_ERROR(CheckFloat(context, i));
    RETURN_IF_ERROR(CheckRank(context, i, 4));
    RETURN_IF_ERROR(CheckSameDType(context, i, 0));
  }
  const Shape& q = context.operands[0].shape;
  const Shape& k = context.operands[1].shape;
  RETURN_IF_ERROR(CheckOperandShape(context, 1, {q[0], q[1], k[2], q[3]},
                                    "that of operand 0 but for the sequence"));
  RETURN_IF_ERROR(CheckSameType(context, 2, 1));
  if (context.attributes.GetBool("causal", false) && k[2] < q[2]) {
    return Invalid("with causal, there are at least as many keys as queries: ",
                   Describe(context, 0), ", ", Describe(context, 1));
  }
  return absl::OkStatus();
}

absl::Status CheckLogSumExp(const OpContext& context, int operand, const TensorType& expected) {
  return CheckOperandType(context, operand, expected, "the log-sum-exp of operand 0");
}

TensorType LogSumExpOf(const TensorType& q) {
  return {StatisticsDType(q.dtype), WithoutLast(q.shape)};
}

AttentionFactors AddAttentionFactors(ShardingRule& rule, const OpContext& context,
                                     FactorKind query_kind, FactorKind key_kind) {
  const Shape& q = context.operands[0].shape;
  const DimFactors b = {rule.AddFactor(q[0])};
  const DimFactors h = {rule.AddFactor(q[1])};
  const DimFactors s = {rule.AddFactor(q[2], query_kind)};
  const DimFactors t = {rule.AddFactor(context.operands[1].shape[2], key_kind)};  // kAttentionKeys
  const DimFactors d = {rule.AddFactor(q[3], FactorKind::kNeedReplication)};
  return {.query = {b, h, s, d}, .key = {b, h, t, d}, .lse = {b, h, s}};
}

double AttentionFlops(const OpContext& context, double flops_a_key) {
  return flops_a_key *
         KeysSeen(context.attributes, context.operands[0].shape[2], context.operands[1].shape[2]);
}

absl::Status CheckQkvOperand(const OpContext& context) {
  RETURN_IF_ERROR(CheckFloat(context, 0));
  RETURN_IF_ERROR(CheckRank(context, 0, 5));
  if (context.operands[0].shape[2] == 3) return absl::OkStatus();
  return Invalid("dimension 2 of ", Describe(context, 0), " holds q, k and v: it should be 3");
}

TensorType QkvOutput(const OpContext& context) {
  const Shape& qkv = context.operands[0].shape;
  return {context.operands[0].dtype, {qkv[0], qkv[1], qkv[3], qkv[4]}};
}

TensorType QkvLogSumExp(const OpContext& context) {
  const Shape& qkv = context.operands[0].shape;
  return {StatisticsDType(context.operands[0].dtype), {qkv[0], qkv[3], qkv[1]}};
}

QkvFactors AddQkvFactors(ShardingRule& rule, const OpContext& context) {
  const Shape& qkv = context.operands[0].shape;
  const DimFactors b = {rule.AddFactor(qkv[0])};
  const DimFactors s = {rule.AddFactor(qkv[1], FactorKind::kNeedReplication)};  // kQkvSequence
  const DimFactors three = {rule.AddFactor(qkv[2], FactorKind::kNeedReplication)};
  const DimFactors h = {rule.AddFactor(qkv[3])};
  const DimFactors d = {rule.AddFactor(qkv[4], FactorKind::kNeedReplication)};
  return {.qkv = {b, s, three, h, d}, .output = {b, s, h, d}, .lse = {b, h, s}};
}

double QkvFlops(const OpContext& context, double flops_a_key) {
  const int64_t s = context.operands[0].shape[1];
  return flops_a_key * KeysSeen(context.attributes, s, s);
}

SeparateHeads SplitQkv(GraphBuilder& builder, ValueId qkv) {
  if (!builder.status().ok()) return {};
  const Shape shape = builder.type(qkv).shape;
  const auto part = [&](int64_t index) {
    const Shape start = {0, 0, index, 0, 0};
    const Shape limit = {shape[0], shape[1], index + 1, shape[3], shape[4]};
    const ValueId rows = builder.Add(
        "slice", {qkv}, {{"start", AttrValue::Ints(start)}, {"limit", AttrValue::Ints(limit)}});
    const Shape flat = {shape[0], shape[1], shape[3], shape[4]};
    return SwapHeadsAndRows(builder,
                            builder.Add("reshape", {rows}, {{"shape", AttrValue::Ints(flat)}}));
  };
  return {.q = part(0), .k = part(1), .v = part(2)};
}

ValueId SwapHeadsAndRows(GraphBuilder& builder, ValueId x) {
  return builder.Add("transpose", {x}, {{"permutation", AttrValue::Ints({0, 2, 1, 3})}});
}

}  // namespace penstock::graph::ops
