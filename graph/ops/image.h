// What convolutions, poolings and batch normalization share: checks of images x[n, c, h, w], and
// the factors of convolutions.
//
// Thread rule: as common.h.

#ifndef PENSTOCK_GRAPH_OPS_IMAGE_H_
#define PENSTOCK_GRAPH_OPS_IMAGE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "graph/image_window.h"
#include "graph/ops/common.h"

namespace penstock::graph::ops {

// The operand is a float [n, c, h, w].
absl::Status CheckImages(const OpContext& context, int operand);

// The last two dimensions of a shape.
std::array<int64_t, 2> PlaneOf(const Shape& shape);

// The attribute, of two entries that are at least 1.
absl::StatusOr<std::array<int64_t, 2>> ReadPlane(const Attributes& attributes,
                                                 std::string_view name);

// {h, w} of what the window makes of a plane; an error where the window is larger than the padded
// plane.
absl::StatusOr<std::array<int64_t, 2>> ResultPlane(const ImageWindow& window,
                                                   const std::array<int64_t, 2>& plane);

// ---- Convolutions of x[n, c, h, w] by w[o, c / groups, kh, kw] to y[n, o, oh, ow].

std::vector<AttrSpec> ConvolutionAttributes();

// The types of x and w make a convolution; that of y. The error tells of the context's operands,
// from which x and w were derived.
absl::StatusOr<TensorType> ConvolutionResult(const OpContext& context, const TensorType& x,
                                             const TensorType& w);

enum class ConvolutionPass : uint8_t { kResult, kInputGradient, kWeightGradient };

// The rule of the pass, whose operands are x and w, w and dy, x and dy. Batch, groups, input and
// output channels are factors; image and taps are needed whole.
ShardingRule ConvolutionRule(ConvolutionPass pass, const TensorType& x, const TensorType& w,
                             const TensorType& y);

// Of any of the three passes. Products with padding count.
OpCost ConvolutionCost(const OpContext& context, const TensorType& w, const TensorType& y);

// ---- Poolings: attributes `window`, `strides` (the window's size if absent) and `padding`.

std::vector<AttrSpec> PoolingAttributes();
// The window over planes of {h, w}; without the attribute `window` it is the whole plane.
absl::StatusOr<ImageWindow> PoolingWindow(const Attributes& attributes,
                                          const std::array<int64_t, 2>& plane);
// The type of the result of pooling x; errors as above.
absl::StatusOr<TensorType> PoolingResult(const OpContext& context, const TensorType& x);
// Images and channels are split, planes are needed whole.
ShardingRule PoolingRule(const OpContext& context);
// Of pooling x to y, and of its gradient: an operation for each element of each window.
OpCost PoolingCost(const OpContext& context, const TensorType& x, const TensorType& y);

// ---- Batch normalization of x[n, c, ...] by channel.

// The operand is a float of at least two dimensions.
absl::Status CheckChannels(const OpContext& context, int operand);
// The operand is a vector of x's channels, of x's element type; or one of their statistics.
absl::Status CheckChannelVector(const OpContext& context, int operand, int x);
absl::Status CheckChannelStatistics(const OpContext& context, int operand, int x);
TensorType ChannelVectorOf(const TensorType& x);
TensorType ChannelStatisticsOf(const TensorType& x);

// The rule of tensors like operand 0, [n, c, ...], and vectors [c]: the factors of operand 0 are
// its dimensions in order. All but the channels have the kind.
ShardingRule ChannelRule(const OpContext& context, FactorKind kind);

}  // namespace penstock::graph::ops

#endif  // PENSTOCK_GRAPH_OPS_IMAGE_H_
