// What layer_norm, rms_norm and their gradients share. x[..., n] is normalized over n: feature
// vectors have the shape [n], statistics [...].
//
// Thread rule: as common.h.

#ifndef PENSTOCK_GRAPH_OPS_NORM_H_
#define PENSTOCK_GRAPH_OPS_NORM_H_

#include <vector>

#include "graph/ops/common.h"

namespace penstock::graph::ops {

// The operand is a float of at least one dimension.
absl::Status CheckNormOperand(const OpContext& context, int operand);

// The operand is a feature vector, or statistics, of operand `x`.
absl::Status CheckFeatureVector(const OpContext& context, int operand, int x);
absl::Status CheckStatistics(const OpContext& context, int operand, int x);

TensorType FeaturesOf(const TensorType& x);
TensorType StatisticsOf(const TensorType& x);

// The rule of a sum over all dimensions but the last: (dy, x, statistics...) -> feature vectors.
ShardingRule WeightGradRule(const OpContext& context);

// Statistics in the dtype of `x`, repeated along the last dimension of x.
ValueId BroadcastStatistics(GraphBuilder& builder, ValueId statistics, ValueId x);

// 1 / sqrt(square + epsilon).
ValueId AddRstd(GraphBuilder& builder, ValueId square, const Attributes& attributes);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_NORM_H_
