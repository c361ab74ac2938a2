#include "graph/models/transformer.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/models/config_check.h"

namespace penstock::graph {
namespace {

constexpr double kTransformerStd = 0.02;
constexpr int64_t kTransformerMlpRatio = 4;

// The position of each token, i32[batch, tokens]; the last one for what lies behind it.
ValueId PositionsFrom(GraphBuilder& builder, ValueId start, const Shape& ids, int64_t context) {
  const Attributes all = {{"shape", AttrValue::Ints(ids)}, {"axes", AttrValue::Ints({0})}};
  const ValueId token = builder.Add(
      "iota", {}, {{"axis", 1}, {"shape", AttrValue::Ints(ids)}, {"dtype", DType::kI32}});
  const ValueId position = builder.Add("add", {builder.Add("broadcast", {start}, all), token});
  const ValueId last = builder.Constant(static_cast<double>(context - 1), {DType::kI32, {}});
  return builder.Add("min", {position, last});
}

}  // namespace

absl::Status CheckTransformer(const ModelConfig& config) {
  RETURN_IF_ERROR(CheckModelConfig(config));
  RETURN_IF_ERROR(CheckModelSize("heads", config.heads));
  if (config.width % config.heads != 0) {
    return absl::InvalidArgumentError(
        StrCat("heads = ", config.heads, " does not divide width = ", config.width));
  }
  if (!(config.norm_epsilon > 0 && std::isfinite(config.norm_epsilon))) {
    return absl::InvalidArgumentError(
        StrCat("norm_epsilon = ", config.norm_epsilon, ": must be positive"));
  }
  return absl::OkStatus();
}

ValueId AddMlp(LayerBuilder& layers, ValueId x, const WeightScales& scales) {
  if (!layers.builder().status().ok()) return kNoValue;
  const int64_t width = layers.builder().type(x).shape.back();
  return layers.Mlp(x, "mlp", kTransformerMlpRatio * width, scales.std, scales.output_std);
}

ModelOutputs BuildTransformer(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                              int64_t batch, const FeedForward& feed_forward) {
  LayerBuilder layers(builder, config.dtype, use == ModelUse::kTrain ? config.dropout : 0.0);
  const WeightScales scales = {
      .std = kTransformerStd,
      .output_std = kTransformerStd / std::sqrt(2.0 * static_cast<double>(config.layers))};
  const bool is_generating = use == ModelUse::kGenerate;
  const bool has_labels = use == ModelUse::kTrain || use == ModelUse::kEvaluate;
  const Shape ids = {batch, is_generating ? config.step_tokens : config.context};

  ModelOutputs outputs;
  outputs.tokens = builder.Declare("input", "tokens", {DType::kI32, ids});
  if (has_labels) {
    outputs.labels = builder.Declare("input", "labels", {DType::kI32, ids});
  }
  const ValueId wte = layers.Normal("wte", {config.vocabulary, config.width}, kTransformerStd);
  const ValueId wpe = layers.Normal("wpe", {config.context, config.width}, kTransformerStd);
  LayerBuilder::AttentionCache cache;
  ValueId positions = kNoValue;
  if (is_generating) {
    cache = {builder.Declare("input", "start", {DType::kI32, {batch}}), config.context};
    positions = layers.Embedding(wpe, PositionsFrom(builder, cache.start, ids, config.context),
                                 "positions");
  } else {
    positions = builder.Add("broadcast", {wpe},
                            {{"shape", AttrValue::Ints({batch, config.context, config.width})},
                             {"axes", AttrValue::Ints({1, 2})}},
                            "positions");
  }
  ValueId x = builder.Add("add", {layers.Embedding(wte, outputs.tokens, "embedded"), positions}, {},
                          "embedding");
  x = layers.Dropout(x, "embedding.dropout");

  ValueId auxiliary = kNoValue;
  for (int64_t block = 0; block < config.layers; ++block) {
    const NameScope scope(builder, StrCat("h", block));
    const ValueId mixed = layers.CausalSelfAttention(
        layers.LayerNorm(x, "ln1", config.norm_epsilon), "attn", config.heads, scales.std,
        scales.output_std, is_generating ? &cache : nullptr);
    x = builder.Add("add", {x, mixed}, {}, "attn.residual");
    const ValueId mapped = feed_forward(layers, layers.LayerNorm(x, "ln2", config.norm_epsilon),
                                        block, scales, &auxiliary);
    x = builder.Add("add", {x, mapped}, {}, "mlp.residual");
  }
  if (is_generating) x = LastTokens(builder, x);
  x = layers.LayerNorm(x, "ln_f", config.norm_epsilon);
  outputs.logits = builder.Add("matmul", {x, wte}, {{"transpose_b", true}}, "logits");
  AddLoss(builder, use, auxiliary, &outputs);
  return outputs;
}

ValueId LastTokens(GraphBuilder& builder, ValueId x) {
  if (!builder.status().ok()) return kNoValue;
  const Shape shape = builder.type(x).shape;
  return builder.Add(
      "slice", {x},
      {{"start", AttrValue::Ints({0, shape[1] - 1, 0})}, {"limit", AttrValue::Ints(shape)}},
      "last");
}

void AddLoss(GraphBuilder& builder, ModelUse use, ValueId auxiliary, ModelOutputs* outputs) {
  if (outputs->labels == kNoValue) return;
  const ValueId losses =
      builder.Add("cross_entropy", {outputs->logits, outputs->labels}, {}, "losses");
  const Shape axes = use == ModelUse::kTrain ? Shape{0, 1} : Shape{1};
  const bool has_more = use == ModelUse::kTrain && auxiliary != kNoValue;
  outputs->loss = builder.Add("reduce_mean", {losses}, {{"axes", AttrValue::Ints(axes)}},
                              has_more ? "cross_entropy" : "loss");
  if (has_more) outputs->loss = builder.Add("add", {outputs->loss, auxiliary}, {}, "loss");
}

std::vector<std::string_view> TransformerSizes() {
  return {"layers", "width", "heads", "context", "vocabulary", "dropout", "norm_epsilon"};
}

std::vector<SplitHint> TransformerSplits() {
  std::vector<SplitHint> splits = {
      {.pattern = "wte", .dim = 0, .what = "vocabulary"},
      {.pattern = "h*.attn.qkv_w", .dim = 2, .what = "heads", .must_divide = true},
      {.pattern = "h*.attn.proj_w", .dim = 0, .what = "heads", .must_divide = true},
      {.pattern = "h*.attn.mixed",
       .dim = 2,
       .what = "heads",
       .must_divide = true,
       .axis = "ulysses"},
  };
  for (SplitHint& hint : SequenceSplits()) splits.push_back(std::move(hint));
  return splits;
}

std::vector<SplitHint> SequenceSplits() {
  return {
      {.pattern = "tokens", .dim = 1, .what = "positions", .must_divide = true, .axis = "cp"},
      {.pattern = "labels", .dim = 1, .what = "positions", .must_divide = true, .axis = "cp"},
      // The residual stream; norms, biases and dropout follow by propagation.
      {.pattern = "embedding", .dim = 1, .what = "tokens", .is_sequence = true},
      {.pattern = "h*.attn.residual", .dim = 1, .what = "tokens", .is_sequence = true},
      {.pattern = "h*.mlp.residual", .dim = 1, .what = "tokens", .is_sequence = true},
  };
}

std::vector<SplitHint> MlpSplits() {
  return {
      {.pattern = "h*.mlp.w1", .dim = 1, .what = "hidden units"},
      {.pattern = "h*.mlp.w2", .dim = 0, .what = "hidden units"},
  };
}

}  // namespace penstock::graph
