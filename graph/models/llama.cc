#include "graph/models/llama.h"

#include <cmath>
#include <string>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/layers.h"
#include "graph/models/config_check.h"
#include "graph/models/transformer.h"

namespace penstock::graph {
namespace {

constexpr double kLlamaStd = 0.02;
constexpr int64_t kHiddenMultiple = 64;

absl::Status CheckLlama(const ModelConfig& config) {
  RETURN_IF_ERROR(CheckTransformer(config));
  RETURN_IF_ERROR(CheckModelSize("kv_heads", KvHeads(config)));
  RETURN_IF_ERROR(CheckModelSize("hidden", HiddenUnits(config)));
  if (config.heads % KvHeads(config) != 0) {
    return absl::InvalidArgumentError(
        StrCat("kv_heads = ", KvHeads(config), " does not divide heads = ", config.heads));
  }
  if (config.width / config.heads % 2 != 0) {
    return absl::InvalidArgumentError(StrCat("heads = ", config.heads, ": each has ",
                                             config.width / config.heads,
                                             " of the width, an odd number; rotary positions "
                                             "need pairs"));
  }
  if (!(config.rotary_base > 0 && std::isfinite(config.rotary_base))) {
    return absl::InvalidArgumentError(
        StrCat("rotary_base = ", config.rotary_base, ": must be positive"));
  }
  return CheckRotaryScaling(config.rotary_scaling, config.context, "rotary_");
}

ModelOutputs BuildLlama(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                        int64_t batch) {
  LayerBuilder layers(builder, config.dtype, use == ModelUse::kTrain ? config.dropout : 0.0);
  const double output_std = kLlamaStd / std::sqrt(2.0 * static_cast<double>(config.layers));
  const LayerBuilder::GroupedHeads heads = {.heads = config.heads,
                                            .key_heads = KvHeads(config),
                                            .rotary_base = config.rotary_base,
                                            .rotary_scaling = config.rotary_scaling};
  const bool is_generating = use == ModelUse::kGenerate;
  const Shape ids = {batch, is_generating ? config.step_tokens : config.context};

  ModelOutputs outputs;
  outputs.tokens = builder.Declare("input", "tokens", {DType::kI32, ids});
  if (use == ModelUse::kTrain || use == ModelUse::kEvaluate) {
    outputs.labels = builder.Declare("input", "labels", {DType::kI32, ids});
  }
  const ValueId wte = layers.Normal("wte", {config.vocabulary, config.width}, kLlamaStd);
  LayerBuilder::AttentionCache cache;
  if (is_generating) {
    cache = {builder.Declare("input", "start", {DType::kI32, {batch}}), config.context};
  }
  ValueId x = layers.Embedding(wte, outputs.tokens, "embedding");
  x = layers.Dropout(x, "embedding.dropout");

  for (int64_t block = 0; block < config.layers; ++block) {
    const NameScope scope(builder, StrCat("h", block));
    const ValueId mixed =
        layers.RotarySelfAttention(layers.RmsNorm(x, "ln1", config.norm_epsilon), "attn", heads,
                                   kLlamaStd, output_std, is_generating ? &cache : nullptr);
    x = builder.Add("add", {x, mixed}, {}, "attn.residual");
    const ValueId mapped = layers.SwiGlu(layers.RmsNorm(x, "ln2", config.norm_epsilon), "mlp",
                                         HiddenUnits(config), kLlamaStd, output_std);
    x = builder.Add("add", {x, mapped}, {}, "mlp.residual");
  }
  if (is_generating) x = LastTokens(builder, x);
  x = layers.RmsNorm(x, "ln_f", config.norm_epsilon);
  const ValueId head =
      config.is_tied ? wte : layers.Normal("head", {config.vocabulary, config.width}, kLlamaStd);
  outputs.logits = builder.Add("matmul", {x, head}, {{"transpose_b", true}}, "logits");
  AddLoss(builder, use, kNoValue, &outputs);
  return outputs;
}

struct Sizes {
  int64_t layers, width, heads, kv_heads, hidden, context, vocabulary;
  double rotary_base = 1e4;
  bool is_tied = false;
};

Preset Sized(std::string name, const Sizes& sizes) {
  ModelConfig config;
  config.layers = sizes.layers;
  config.width = sizes.width;
  config.heads = sizes.heads;
  config.kv_heads = sizes.kv_heads;
  config.hidden = sizes.hidden;
  config.context = sizes.context;
  config.vocabulary = sizes.vocabulary;
  config.rotary_base = sizes.rotary_base;
  config.is_tied = sizes.is_tied;
  config.dropout = 0;
  return {std::move(name), "llama", config};
}

}  // namespace

int64_t KvHeads(const ModelConfig& config) {
  return config.kv_heads == 0 ? config.heads : config.kv_heads;
}

int64_t HiddenUnits(const ModelConfig& config) {
  if (config.hidden != 0) return config.hidden;
  const int64_t units = (8 * config.width + 2) / 3;
  return (units + kHiddenMultiple - 1) / kHiddenMultiple * kHiddenMultiple;
}

Model LlamaModel() {
  Model model;
  model.name = "llama";
  model.summary =
      "Llama architecture: RMS norms, rotary positions, SwiGLU, grouped-query attention";
  model.defaults.dropout = 0;
  model.check = CheckLlama;
  model.build = BuildLlama;
  model.sizes = TransformerSizes();
  for (const std::string_view size : {"kv_heads", "hidden", "rotary_base", "tied"}) {
    model.sizes.push_back(size);
  }
  model.can_generate = true;
  model.takes_any_context = true;
  model.tensor_splits = {
      {.pattern = "wte", .dim = 0, .what = "vocabulary"},
      {.pattern = "head", .dim = 0, .what = "vocabulary"},
      {.pattern = "h*.attn.q_w", .dim = 1, .what = "heads", .must_divide = true},
      {.pattern = "h*.attn.k_w",
       .dim = 1,
       .what = "heads of keys",
       .must_divide = true,
       .is_shared = true},
      {.pattern = "h*.attn.v_w",
       .dim = 1,
       .what = "heads of values",
       .must_divide = true,
       .is_shared = true},
      {.pattern = "h*.attn.proj_w", .dim = 0, .what = "heads", .must_divide = true},
      {.pattern = "h*.mlp.gate", .dim = 1, .what = "hidden units"},
      {.pattern = "h*.mlp.up", .dim = 1, .what = "hidden units"},
      {.pattern = "h*.mlp.down", .dim = 0, .what = "hidden units"},
      {.pattern = "h*.attn.mixed",
       .dim = 1,
       .what = "heads",
       .must_divide = true,
       .axis = "ulysses"},
  };
  for (SplitHint& hint : SequenceSplits()) model.tensor_splits.push_back(std::move(hint));
  return model;
}

std::vector<Preset> LlamaPresets() {
  constexpr int64_t kBytes = 256;
  constexpr int64_t kLlama2 = 32000;
  constexpr int64_t kLlama3 = 128256;
  return {
      Sized("llama-1m", {4, 128, 4, 2, 0, 128, kBytes}),
      Sized("llama-3m", {4, 256, 8, 2, 0, 128, kBytes}),
      Sized("tinyllama-1.1b", {22, 2048, 32, 4, 5632, 2048, kLlama2}),
      Sized("llama2-7b", {32, 4096, 32, 32, 11008, 4096, kLlama2}),
      Sized("llama2-13b", {40, 5120, 40, 40, 13824, 4096, kLlama2}),
      Sized("llama2-70b", {80, 8192, 64, 8, 28672, 4096, kLlama2}),
      Sized("llama3-8b", {32, 4096, 32, 8, 14336, 8192, kLlama3, 5e5}),
      Sized("llama3-70b", {80, 8192, 64, 8, 28672, 8192, kLlama3, 5e5}),
  };
}

}  // namespace penstock::graph
