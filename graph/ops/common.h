// Words that the operator definitions share: checks with messages a user can act on, pieces of
// sharding rules, and nodes that several gradients need.
//
// Thread rule: pure functions, but for those that take a GraphBuilder, which belongs to one thread.

#ifndef PENSTOCK_GRAPH_OPS_COMMON_H_
#define PENSTOCK_GRAPH_OPS_COMMON_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

#include "base/dtype.h"
#include "base/shape.h"
#include "base/strings.h"
#include "base/tensor.h"
#include "graph/builder.h"
#include "graph/op.h"

namespace penstock::graph::ops {

using Kind = AttrSpec::Kind;                                    // of an attribute
using InferredTypes = absl::StatusOr<std::vector<TensorType>>;  // of Op::InferTypes
using Values = absl::StatusOr<std::vector<ValueId>>;            // of Op::Gradient and Decompose

// --- Checks --------------------------------------------------------------------------------------

// kInvalidArgument with the parts, strings or numbers, as its message.
template <typename... Parts>
absl::Status Invalid(const Parts&... parts) {
  return absl::InvalidArgumentError(StrCat(parts...));
}

// What an operator calls its operands, for messages; empty: numbers alone.
using OperandNames = absl::Span<const std::string_view>;

// "operand 1 f32[12, 4]".
std::string Describe(const OpContext& context, int operand);

// "operand 1", or "operand 1 (g)" if it has a name.
std::string NameOperand(int operand, OperandNames names = {});

// These return kInvalidArgument, with a message that names the operand, unless what the comment
// says holds. The dtype of the operand is a float.
absl::Status CheckFloat(const OpContext& context, int operand);
// It is a float or an integer, not a bool.
absl::Status CheckNumber(const OpContext& context, int operand);
// It is an integer.
absl::Status CheckInteger(const OpContext& context, int operand);
// It is the dtype of operand `other`.
absl::Status CheckSameDType(const OpContext& context, int operand, int other);

// The operand has at least `rank` dimensions.
absl::Status CheckMinRank(const OpContext& context, int operand, int rank);
// The operand has `rank` dimensions.
absl::Status CheckRank(const OpContext& context, int operand, int rank);

// The operand has exactly this shape; `what` says where the shape comes from.
absl::Status CheckOperandShape(const OpContext& context, int operand,
                               absl::Span<const int64_t> shape, std::string_view what);

// The operand has exactly this type; `what` says where the type comes from.
absl::Status CheckOperandType(const OpContext& context, int operand, const TensorType& expected,
                              std::string_view what, OperandNames names = {});

// The operand has the type of operand `other`.
absl::Status CheckSameType(const OpContext& context, int operand, int other,
                           OperandNames names = {});

// The operand is a float scalar that kernels convert to the dtype of operand `other`: f32, f64 or
// that dtype.
absl::Status CheckFloatScalar(const OpContext& context, int operand, int other,
                              OperandNames names = {});

// The axis counted from the front; negative ones count from the back.
absl::StatusOr<int> NormalizeAxis(int64_t axis, int rank);

// The same for an axis of operand 0, which the error names.
absl::StatusOr<int> NormalizeOperandAxis(const OpContext& context, int64_t axis);

// As NormalizeAxis, for an attribute that was checked when the node was built.
int AxisOf(const Attributes& attributes, int64_t fallback, int rank);

// The list attribute has one entry a dimension of operand 0.
absl::Status CheckOneADimension(const OpContext& context, std::string_view attribute);

// "tanh" or "none": how gelu is computed.
absl::Status CheckApproximate(const Attributes& attributes);

// The dtype of statistics kept for the gradient (mean, rstd, log-sum-exp): never below f32.
DType StatisticsDType(DType dtype);

// The result's type of operators that sum: operand 0's, or what the attribute `dtype` says, which
// may be f32 for operands of 16 bits, whose sums then are not rounded.
inline constexpr AttrSpec kSumDType = {"dtype", AttrSpec::Kind::kDType};
// The dtype of such a result; kInvalidArgument for one that the operator does not take.
absl::StatusOr<DType> SumDTypeOf(const OpContext& context);

// --- Shapes --------------------------------------------------------------------------------------

// The shape without its last dimension. REQUIRES: it has one.
Shape WithoutLast(const Shape& shape);
// begin, begin + 1, ... end - 1.
std::vector<int64_t> Iota(int64_t begin, int64_t end);

// --- Sharding rules ------------------------------------------------------------------------------

// One new factor a dimension.
TensorFactors AddFactors(ShardingRule& rule, absl::Span<const int64_t> shape,
                         FactorKind kind = FactorKind::kPassThrough);

// One factor a dimension of operand 0, the last one of `last_kind`. A tensor of the same rank
// follows them all; those operands listed in `feature_vectors`, which have the shape [n], the last
// one; any other tensor has a rank less and follows the leading ones.
ShardingRule LastDimensionRule(const OpContext& context, FactorKind last_kind,
                               absl::Span<const int> feature_vectors = {});

// One new factor a dimension: a permutation where the operator touches the dimension, pass-through
// elsewhere.
TensorFactors AddTouched(ShardingRule& rule, absl::Span<const int64_t> shape,
                         const std::vector<bool>& is_touched);

// --- Costs ---------------------------------------------------------------------------------------

// Flops are additions, multiplications, comparisons and conversions; a division or a square root
// counts 4, an exponential or a logarithm 8, sine, cosine and tanh 10. What a kernel computes again
// in a second pass over its operands counts again.

// Of one random word: its share of a Philox block, ten rounds of 8 operations for 4 words.
inline constexpr double kFlopsPerDraw = 20;

// `flops` for each of `elements` and the bytes of every operand and result.
OpCost CostOf(const OpContext& context, double flops, int64_t elements);

// --- Gradients and decompositions ----------------------------------------------------------------

// The results of a decomposition that the node binds: `values[0]` and statistics after it.
std::vector<ValueId> BoundResults(GraphBuilder& builder, const Node& node,
                                  std::vector<ValueId> values);

// `value` as `dtype`: itself if it is.
ValueId CastTo(GraphBuilder& builder, ValueId value, DType dtype);

// A scalar of the dtype of `like`.
ValueId ScalarLike(GraphBuilder& builder, ValueId like, double value);
// A tensor of zeros, of the type of `like`.
ValueId ZerosLike(GraphBuilder& builder, ValueId like);

// `gradient` summed to the type of an operand that was a scalar broadcast over it.
ValueId SumToOperand(GraphBuilder& builder, ValueId gradient, ValueId operand);

// The sum over all dimensions but the last `num_kept`.
ValueId SumLeading(GraphBuilder& builder, ValueId value, size_t num_kept = 1);

// `value`, which lacks the dimensions `missing` of `like`, repeated along them.
ValueId BroadcastLike(GraphBuilder& builder, ValueId value, ValueId like,
                      absl::Span<const int64_t> missing);

// A vector over the last dimension of `like`, repeated along the others.
ValueId BroadcastFeatures(GraphBuilder& builder, ValueId vector, ValueId like);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_COMMON_H_
