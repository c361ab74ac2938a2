#include "graph/ops/image.h"

#include <algorithm>

#include "base/status_macros.h"

namespace penstock::graph::ops {
namespace {

// A factor for each extent, none of which may be split.
TensorFactors WholePlane(ShardingRule& rule, const TensorType& type) {
  const std::array<int64_t, 2> plane = PlaneOf(type.shape);
  return AddFactors(rule, plane, FactorKind::kNeedReplication);
}

TensorFactors Append(TensorFactors factors, const TensorFactors& more) {
  factors.insert(factors.end(), more.begin(), more.end());
  return factors;
}

}  // namespace

absl::Status CheckImages(const OpContext& context, int operand) {
  RETURN_IF_ERROR(CheckFloat(context, operand));
  return CheckRank(context, operand, 4);
}

std::array<int64_t, 2> PlaneOf(const Shape& shape) {
  return {shape[shape.size() - 2], shape[shape.size() - 1]};
}

absl::StatusOr<std::array<int64_t, 2>> ReadPlane(const Attributes& attributes,
                                                 std::string_view name) {
  const Shape entries = attributes.GetInts(name);
  if (entries.size() != 2) {
    return Invalid("attribute '", name, "' has ", entries.size(), " entries; expected [h, w]");
  }
  for (const int64_t entry : entries) {
    if (entry < 1) return Invalid("attribute '", name, "' has the entry ", entry);
  }
  return std::array<int64_t, 2>{entries[0], entries[1]};
}

absl::StatusOr<std::array<int64_t, 2>> ResultPlane(const ImageWindow& window,
                                                   const std::array<int64_t, 2>& plane) {
  std::array<int64_t, 2> result;
  for (size_t d = 0; d < 2; ++d) {
    result[d] = window[d].NumResults(plane[d]);
    if (result[d] > 0) continue;
    return Invalid("the window spans ", window[d].span(), " elements of ", d == 0 ? "h" : "w",
                   ", which has ", plane[d], " and a padding of ", window[d].low, " and ",
                   window[d].high);
  }
  return result;
}

namespace {

// An error with the operands that it is about.
absl::StatusOr<TensorType> OfOperands(const OpContext& context, absl::StatusOr<TensorType> type) {
  if (type.ok()) return type;
  std::vector<std::string> operands;
  for (int i = 0; i < static_cast<int>(context.operands.size()); ++i) {
    operands.push_back(Describe(context, i));
  }
  return Invalid(ToStd(type.status().message()), " (", penstock::StrJoin(operands, ", "), ")");
}

absl::StatusOr<TensorType> ConvolutionType(const Attributes& attributes, const TensorType& x,
                                           const TensorType& w) {
  const int64_t groups = attributes.GetInt("groups", 1);
  if (groups < 1) return Invalid("attribute 'groups' is ", groups, "; expected at least 1");
  if (x.shape[1] % groups != 0 || w.shape[0] % groups != 0) {
    return Invalid("attribute 'groups' is ", groups, ", which does not divide the ", x.shape[1],
                   " input and ", w.shape[0], " output channels");
  }
  if (w.shape[1] != x.shape[1] / groups) {
    return Invalid("the weights ", ToString(w), " are for ", w.shape[1],
                   " input channels a group, but ", ToString(x), " has ", x.shape[1] / groups);
  }
  ASSIGN_OR_RETURN(const ImageWindow window, ReadImageWindow(attributes, PlaneOf(w.shape)));
  ASSIGN_OR_RETURN(const auto plane, ResultPlane(window, PlaneOf(x.shape)));
  return TensorType{x.dtype, {x.shape[0], w.shape[0], plane[0], plane[1]}};
}

}  // namespace

std::vector<AttrSpec> ConvolutionAttributes() {
  return {{"strides", Kind::kInts},
          {"padding", Kind::kInts},
          {"dilation", Kind::kInts},
          {"groups", Kind::kInt}};
}

absl::StatusOr<TensorType> ConvolutionResult(const OpContext& context, const TensorType& x,
                                             const TensorType& w) {
  return OfOperands(context, ConvolutionType(context.attributes, x, w));
}

ShardingRule ConvolutionRule(ConvolutionPass pass, const TensorType& x, const TensorType& w,
                             const TensorType& y) {
  const auto kind = [pass](ConvolutionPass reduced_in) {
    return pass == reduced_in ? FactorKind::kReduction : FactorKind::kPassThrough;
  };
  ShardingRule rule;
  const int64_t groups = w.shape[1] == 0 ? 1 : x.shape[1] / w.shape[1];
  const DimFactors n = {rule.AddFactor(x.shape[0], kind(ConvolutionPass::kWeightGradient))};
  const DimFactors c = {rule.AddFactor(w.shape[1], kind(ConvolutionPass::kResult))};
  const DimFactors o = {rule.AddFactor(w.shape[0] / groups, kind(ConvolutionPass::kInputGradient))};
  DimFactors x_channels = c;
  DimFactors y_channels = o;
  if (groups > 1) {
    const int g = rule.AddFactor(groups);
    x_channels = {g, c[0]};
    y_channels = {g, o[0]};
  }
  const TensorFactors images = Append({n, x_channels}, WholePlane(rule, x));
  const TensorFactors weights = Append({y_channels, c}, WholePlane(rule, w));
  const TensorFactors results = Append({n, y_channels}, WholePlane(rule, y));
  switch (pass) {
    case ConvolutionPass::kResult:
      rule.operands = {images, weights};
      rule.results = {results};
      break;
    case ConvolutionPass::kInputGradient:
      rule.operands = {weights, results};
      rule.results = {images};
      break;
    case ConvolutionPass::kWeightGradient:
      rule.operands = {images, results};
      rule.results = {weights};
      break;
  }
  rule.linear = {{0}, {1}};
  return rule;
}

OpCost ConvolutionCost(const OpContext& context, const TensorType& w, const TensorType& y) {
  OpCost cost = CostOf(context, 0, 0);
  const double products =
      w.shape[0] == 0 ? 0.0
                      : static_cast<double>(w.num_elements()) / static_cast<double>(w.shape[0]);
  cost.flops = 2 * products * static_cast<double>(y.num_elements());
  return cost;
}

std::vector<AttrSpec> PoolingAttributes() {
  return {{"window", Kind::kInts}, {"strides", Kind::kInts}, {"padding", Kind::kInts}};
}

absl::StatusOr<ImageWindow> PoolingWindow(const Attributes& attributes,
                                          const std::array<int64_t, 2>& plane) {
  std::array<int64_t, 2> taps = plane;
  if (attributes.Find("window") != nullptr) {
    ASSIGN_OR_RETURN(taps, ReadPlane(attributes, "window"));
  }
  ASSIGN_OR_RETURN(const ImageWindow window, ReadImageWindow(attributes, taps, taps));
  for (const ImageAxis& axis : window) {
    if (axis.low < axis.taps && axis.high < axis.taps) continue;
    return Invalid("attribute 'padding' has the entry ", std::max(axis.low, axis.high),
                   ", but a window of ", axis.taps, " would lie outside the image with it");
  }
  return window;
}

namespace {

absl::StatusOr<TensorType> PoolingType(const Attributes& attributes, const TensorType& x) {
  const std::array<int64_t, 2> plane = PlaneOf(x.shape);
  ASSIGN_OR_RETURN(const ImageWindow window, PoolingWindow(attributes, plane));
  ASSIGN_OR_RETURN(const auto result, ResultPlane(window, plane));
  return TensorType{x.dtype, {x.shape[0], x.shape[1], result[0], result[1]}};
}

}  // namespace

absl::StatusOr<TensorType> PoolingResult(const OpContext& context, const TensorType& x) {
  return OfOperands(context, PoolingType(context.attributes, x));
}

ShardingRule PoolingRule(const OpContext& context) {
  ShardingRule rule;
  const Shape& x = context.operands[0].shape;
  const TensorFactors channels = AddFactors(rule, absl::MakeConstSpan(x).first(2));
  const auto factors_of = [&](const TensorType& type) {
    return Append(channels, WholePlane(rule, type));
  };
  for (const TensorType& type : context.operands) rule.operands.push_back(factors_of(type));
  for (const TensorType& type : context.results) rule.results.push_back(factors_of(type));
  return rule;
}

OpCost PoolingCost(const OpContext& context, const TensorType& x, const TensorType& y) {
  OpCost cost = CostOf(context, 0, 0);
  const ImageWindow window =
      PoolingWindow(context.attributes, PlaneOf(x.shape)).value_or(ImageWindow());
  cost.flops = static_cast<double>(window[0].taps) * static_cast<double>(window[1].taps) *
               static_cast<double>(y.num_elements());
  return cost;
}

absl::Status CheckChannels(const OpContext& context, int operand) {
  RETURN_IF_ERROR(CheckFloat(context, operand));
  return CheckMinRank(context, operand, 2);
}

absl::Status CheckChannelVector(const OpContext& context, int operand, int x) {
  return CheckOperandType(context, operand, ChannelVectorOf(context.operands[x]),
                          StrCat("one for each channel of operand ", x));
}

absl::Status CheckChannelStatistics(const OpContext& context, int operand, int x) {
  return CheckOperandType(context, operand, ChannelStatisticsOf(context.operands[x]),
                          StrCat("a statistic of each channel of operand ", x));
}

TensorType ChannelVectorOf(const TensorType& x) { return {x.dtype, {x.shape[1]}}; }

TensorType ChannelStatisticsOf(const TensorType& x) {
  return {StatisticsDType(x.dtype), {x.shape[1]}};
}

ShardingRule ChannelRule(const OpContext& context, FactorKind kind) {
  ShardingRule rule;
  const TensorFactors all = AddFactors(rule, context.operands[0].shape, kind);
  rule.factors[1].kind = FactorKind::kPassThrough;
  const auto factors_of = [&](const TensorType& type) {
    return type.shape.size() == 1 ? TensorFactors{all[1]} : all;
  };
  for (const TensorType& type : context.operands) rule.operands.push_back(factors_of(type));
  for (const TensorType& type : context.results) rule.results.push_back(factors_of(type));
  return rule;
}

}  // namespace penstock::graph::ops
