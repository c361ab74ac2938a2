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

absl::Status CheckHeads(const OpContext& context, int operand, int64_t key_heads, int64_t heads) {
  if (key_heads > 0 && heads % key_heads == 0) return absl::OkStatus();
  return Invalid("the ", key_heads, " heads of ", Describe(context, operand), " do not divide the ",
                 heads, " of ", Describe(context, 0));
}

HeadFactors AddHeadFactors(ShardingRule& rule, int64_t heads, int64_t key_heads, FactorKind kind,
                           int key_factor) {
  HeadFactors factors = {.query = {key_factor}, .key = {key_factor}};
  if (heads != key_heads) factors.query.push_back(rule.AddFactor(heads / key_heads, kind));
  return factors;
}

absl::Status CheckAttentionOperands(const OpContext& context) {
  for (int i : {0, 1, 2}) {
    RETURN_IF_ERROR(CheckFloat(context, i));
    RETURN_IF_ERROR(CheckRank(context, i, 4));
    RETURN_IF_ERROR(CheckSameDType(context, i, 0));
  }
  const Shape& q = context.operands[0].shape;
  const Shape& k = context.operands[1].shape;
  RETURN_IF_ERROR(CheckOperandShape(context, 1, {q[0], k[1], k[2], q[3]},
                                    "that of operand 0 but for the heads and the sequence"));
  RETURN_IF_ERROR(CheckHeads(context, 1, k[1], q[1]));
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
  const Shape& k = context.operands[1].shape;
  const DimFactors b = {rule.AddFactor(q[0])};
  const int key_heads = rule.AddFactor(k[1]);
  const DimFactors s = {rule.AddFactor(q[2], query_kind)};
  const DimFactors t = {rule.AddFactor(k[2], key_kind)};  // kAttentionKeys
  const DimFactors d = {rule.AddFactor(q[3], FactorKind::kNeedReplication)};
  const HeadFactors h = AddHeadFactors(rule, q[1], k[1], query_kind, key_heads);
  return {.query = {b, h.query, s, d}, .key = {b, h.key, t, d}, .lse = {b, h.query, s}};
}

std::vector<std::pair<int, int>> AttentionPairs(const OpContext& context) {
  const bool is_square = context.operands[0].shape[2] == context.operands[1].shape[2];
  if (context.attributes.GetBool("causal", false) && !is_square) return {};
  return {{kAttentionQueries, kAttentionKeys}};
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

std::vector<AttrSpec> BlockAttributes() {
  return {
      {"block", Kind::kInt, /*is_required=*/true}, {"shift", Kind::kInt}, {"causal", Kind::kBool}};
}

absl::Status CheckBlockOperands(const OpContext& context) {
  RETURN_IF_ERROR(CheckFloat(context, 0));
  RETURN_IF_ERROR(CheckRank(context, 0, 4));
  RETURN_IF_ERROR(CheckSameDType(context, 1, 0));
  RETURN_IF_ERROR(CheckRank(context, 1, 5));
  const Shape& q = context.operands[0].shape;
  const int64_t keys = context.operands[1].shape[1];
  const int64_t key_heads = context.operands[1].shape[3];
  RETURN_IF_ERROR(CheckOperandShape(context, 1, {q[0], keys, 2, key_heads, q[3]},
                                    "keys and values for the queries of operand 0"));
  RETURN_IF_ERROR(CheckHeads(context, 1, key_heads, q[2]));
  const int64_t block = context.attributes.GetInt("block", 0);
  if (block < 1 || keys < block || keys % block != 0) {
    return Invalid("block = ", block, " does not divide the ", keys, " keys of ",
                   Describe(context, 1));
  }
  if (q[1] % (keys / block) != 0) {
    return Invalid("the ", keys / block, " blocks of the keys do not divide the ", q[1],
                   " queries of ", Describe(context, 0));
  }
  if (context.attributes.GetBool("causal", false) && keys != q[1]) {
    return Invalid("with causal, there are as many keys as queries: ", Describe(context, 0), ", ",
                   Describe(context, 1));
  }
  return absl::OkStatus();
}

TensorType BlockLogSumExp(const OpContext& context) {
  const Shape& q = context.operands[0].shape;
  return {StatisticsDType(context.operands[0].dtype), {q[0], q[2], q[1]}};
}

BlockFactors AddBlockFactors(ShardingRule& rule, const OpContext& context, FactorKind query_kind) {
  const Shape& q = context.operands[0].shape;
  const int64_t keys = context.operands[1].shape[1];
  const int64_t block = context.attributes.GetInt("block", 1);
  const DimFactors b = {rule.AddFactor(q[0])};
  const int blocks = rule.AddFactor(keys / block);
  const DimFactors s = {blocks, rule.AddFactor(q[1] / (keys / block), query_kind)};
  const DimFactors t = {blocks, rule.AddFactor(block, FactorKind::kNeedReplication)};
  const DimFactors two = {rule.AddFactor(2, FactorKind::kNeedReplication)};
  const int64_t key_heads = context.operands[1].shape[3];
  const int heads = rule.AddFactor(key_heads);
  const DimFactors d = {rule.AddFactor(q[3], FactorKind::kNeedReplication)};
  const HeadFactors h = AddHeadFactors(rule, q[2], key_heads, query_kind, heads);
  return {.query = {b, s, h.query, d}, .key = {b, t, two, h.key, d}, .lse = {b, h.query, s}};
}

double BlockFlops(const OpContext& context, double flops_a_key) {
  const auto block = static_cast<double>(context.attributes.GetInt("block", 1));
  const bool is_diagonal =
      context.attributes.GetBool("causal", false) && context.attributes.GetInt("shift", 0) == 0;
  return flops_a_key * (is_diagonal ? (block + 1) / 2 : block);
}

namespace {

Attributes BlockStep(GraphBuilder& builder, ValueId kv, bool causal, int64_t parts, int64_t step) {
  Attributes attributes = {{"block", builder.type(kv).shape[1] / parts}};
  if (step > 0) attributes.Set("shift", step);
  if (causal) attributes.Set("causal", true);
  return attributes;
}

// Every device's part goes to the next one.
ValueId PassOn(GraphBuilder& builder, ValueId kv, int64_t parts) {
  return builder.Add("roll", {kv}, {{"axis", 1}, {"shift", builder.type(kv).shape[1] / parts}});
}

}  // namespace

std::vector<ValueId> RingAttention(GraphBuilder& builder, ValueId q, ValueId kv, bool causal,
                                   int64_t parts) {
  if (!builder.status().ok()) return {};
  const DType dtype = builder.type(q).dtype;
  std::vector<ValueId> results;
  for (int64_t step = 0; step < parts; ++step) {
    std::vector<ValueId> operands = {q, kv};
    operands.insert(operands.end(), results.begin(), results.end());
    const Attributes attributes = BlockStep(builder, kv, causal, parts, step);
    if (step + 1 < parts) kv = PassOn(builder, kv, parts);
    results = builder.AddMulti("block_attention", operands, attributes);
    if (results.empty()) return {};
  }
  results[0] = CastTo(builder, results[0], dtype);
  return results;
}

std::vector<ValueId> RingAttentionGrad(GraphBuilder& builder, ValueId q, ValueId kv, ValueId o,
                                       ValueId lse, ValueId d_o, bool causal, int64_t parts) {
  if (!builder.status().ok()) return {};
  const DType dtype = builder.type(q).dtype;
  ValueId dq = kNoValue;
  ValueId own = kNoValue;     // the gradients of a device's own keys and values, from its queries
  ValueId passed = kNoValue;  // those of the keys and values that it has now, from others' too
  for (int64_t step = 0; step < parts; ++step) {
    const Attributes attributes = BlockStep(builder, kv, causal, parts, step);
    const ValueId held = kv;
    if (step + 1 < parts) kv = PassOn(builder, kv, parts);
    const std::vector<ValueId> grads =
        builder.AddMulti("block_attention_grad", {q, held, o, lse, d_o}, attributes);
    if (grads.empty()) return {};
    dq = step == 0 ? grads[0] : builder.Add("add", {dq, grads[0]});
    if (step == 0) {
      own = grads[1];
    } else {
      passed =
          step == 1 ? grads[1] : builder.Add("add", {PassOn(builder, passed, parts), grads[1]});
    }
  }
  if (passed != kNoValue) own = builder.Add("add", {own, PassOn(builder, passed, parts)});
  return {CastTo(builder, dq, dtype), CastTo(builder, own, dtype)};
}

ValueId PartOfQkv(GraphBuilder& builder, ValueId qkv, int64_t begin, int64_t end) {
  if (!builder.status().ok()) return kNoValue;
  const Shape shape = builder.type(qkv).shape;
  const Shape start = {0, 0, begin, 0, 0};
  const Shape limit = {shape[0], shape[1], end, shape[3], shape[4]};
  return builder.Add("slice", {qkv},
                     {{"start", AttrValue::Ints(start)}, {"limit", AttrValue::Ints(limit)}});
}

ValueId Reshaped(GraphBuilder& builder, ValueId x, const Shape& shape) {
  return builder.Add("reshape", {x}, {{"shape", AttrValue::Ints(shape)}});
}

RowsOfHeads PackedHeads(GraphBuilder& builder, ValueId qkv) {
  if (!builder.status().ok()) return {};
  const Shape shape = builder.type(qkv).shape;
  const Shape flat = {shape[0], shape[1], shape[3], shape[4]};
  return {.q = Reshaped(builder, PartOfQkv(builder, qkv, 0, 1), flat),
          .kv = PartOfQkv(builder, qkv, 1, 3)};
}

ValueId PackKeys(GraphBuilder& builder, ValueId k, ValueId v) {
  if (!builder.status().ok()) return kNoValue;
  const Shape shape = builder.type(k).shape;
  const Shape one = {shape[0], shape[2], 1, shape[1], shape[3]};
  return builder.Add("concat",
                     {Reshaped(builder, SwapHeadsAndRows(builder, k), one),
                      Reshaped(builder, SwapHeadsAndRows(builder, v), one)},
                     {{"axis", 2}});
}

SeparateHeads SplitQkv(GraphBuilder& builder, ValueId qkv) {
  if (!builder.status().ok()) return {};
  const Shape shape = builder.type(qkv).shape;
  const Shape flat = {shape[0], shape[1], shape[3], shape[4]};
  const auto part = [&](int64_t index) {
    const ValueId rows = PartOfQkv(builder, qkv, index, index + 1);
    return SwapHeadsAndRows(builder, Reshaped(builder, rows, flat));
  };
  return {.q = part(0), .k = part(1), .v = part(2)};
}

ValueId SwapHeadsAndRows(GraphBuilder& builder, ValueId x) {
  return builder.Add("transpose", {x}, {{"permutation", AttrValue::Ints({0, 2, 1, 3})}});
}

}  // namespace penstock::graph::ops
