#include "graph/models/gpt.h"

#include <cmath>
#include <utility>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/layers.h"
#include "graph/models/config_check.h"

namespace penstock::graph {
namespace {

constexpr double kStd = 0.02;
constexpr int64_t kMlpRatio = 4;

absl::Status CheckGpt(const ModelConfig& config) {
  RETURN_IF_ERROR(CheckModelConfig(config));
  RETURN_IF_ERROR(CheckModelSize("heads", config.heads));
  if (config.width % config.heads != 0) {
    return absl::InvalidArgumentError(
        StrCat("heads = ", config.heads, " does not divide width = ", config.width));
  }
  return absl::OkStatus();
}

ModelOutputs BuildGpt(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                      int64_t batch) {
  LayerBuilder layers(builder, config.dtype, use == ModelUse::kTrain ? config.dropout : 0.0);
  const double output_std = kStd / std::sqrt(2.0 * static_cast<double>(config.layers));
  const Shape ids = {batch, config.context};

  ModelOutputs outputs;
  outputs.tokens = builder.Declare("input", "tokens", {DType::kI32, ids});
  if (use != ModelUse::kPredict) {
    outputs.labels = builder.Declare("input", "labels", {DType::kI32, ids});
  }
  const ValueId wte = layers.Normal("wte", {config.vocabulary, config.width}, kStd);
  const ValueId wpe = layers.Normal("wpe", {config.context, config.width}, kStd);
  const ValueId positions =
      builder.Add("broadcast", {wpe},
                  {{"shape", AttrValue::Ints({batch, config.context, config.width})},
                   {"axes", AttrValue::Ints({1, 2})}},
                  "positions");
  ValueId x = builder.Add("add", {layers.Embedding(wte, outputs.tokens, "embedded"), positions}, {},
                          "embedding");
  x = layers.Dropout(x, "embedding.dropout");

  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const NameScope scope(builder, StrCat("h", layer));
    const ValueId mixed = layers.CausalSelfAttention(layers.LayerNorm(x, "ln1"), "attn",
                                                     config.heads, kStd, output_std);
    x = builder.Add("add", {x, mixed}, {}, "attn.residual");
    const ValueId mapped =
        layers.Mlp(layers.LayerNorm(x, "ln2"), "mlp", kMlpRatio * config.width, kStd, output_std);
    x = builder.Add("add", {x, mapped}, {}, "mlp.residual");
  }
  x = layers.LayerNorm(x, "ln_f");
  outputs.logits = builder.Add("matmul", {x, wte}, {{"transpose_b", true}}, "logits");
  if (use != ModelUse::kPredict) {
    const ValueId losses =
        builder.Add("cross_entropy", {outputs.logits, outputs.labels}, {}, "losses");
    const Shape axes = use == ModelUse::kTrain ? Shape{0, 1} : Shape{1};
    outputs.loss = builder.Add("reduce_mean", {losses}, {{"axes", AttrValue::Ints(axes)}}, "loss");
  }
  return outputs;
}

Preset Sized(std::string name, int64_t layers, int64_t width, int64_t heads, int64_t context,
             int64_t vocabulary, double dropout) {
  ModelConfig config;
  config.layers = layers;
  config.width = width;
  config.heads = heads;
  config.context = context;
  config.vocabulary = vocabulary;
  config.dropout = dropout;
  return {std::move(name), "gpt", config};
}

}  // namespace

Model GptModel() {
  Model model;
  model.name = "gpt";
  model.summary = "GPT-2 architecture: pre-norm transformer with tied embeddings";
  model.check = CheckGpt;
  model.build = BuildGpt;
  model.tensor_splits = {
      {.pattern = "wte", .dim = 0, .what = "vocabulary"},
      {.pattern = "h*.attn.qkv_w", .dim = 2, .what = "heads", .must_divide = true},
      {.pattern = "h*.attn.proj_w", .dim = 0, .what = "heads", .must_divide = true},
      {.pattern = "h*.mlp.w1", .dim = 1, .what = "hidden units"},
      {.pattern = "h*.mlp.w2", .dim = 0, .what = "hidden units"},
  };
  return model;
}

std::vector<Preset> GptPresets() {
  constexpr int64_t kBytes = 256;
  constexpr int64_t kGpt2 = 50257;
  return {
      Sized("gpt-1m", 4, 128, 4, 128, kBytes, 0.1),
      Sized("gpt-3m", 4, 256, 8, 128, kBytes, 0.1),
      Sized("gpt-10m", 6, 384, 6, 256, kBytes, 0.1),
      Sized("gpt-25m", 8, 512, 8, 256, kBytes, 0.1),
      Sized("gpt2-124m", 12, 768, 12, 1024, kGpt2, 0.1),
      Sized("gpt2-350m", 24, 1024, 16, 1024, kGpt2, 0.1),
      Sized("gpt2-774m", 36, 1280, 20, 1024, kGpt2, 0.1),
      Sized("gpt2-1558m", 48, 1600, 25, 1024, kGpt2, 0.1),
      Sized("gpt3-125m", 12, 768, 12, 2048, kGpt2, 0.0),
      Sized("gpt3-350m", 24, 1024, 16, 2048, kGpt2, 0.0),
      Sized("gpt3-760m", 24, 1536, 16, 2048, kGpt2, 0.0),
      Sized("gpt3-1.3b", 24, 2048, 16, 2048, kGpt2, 0.0),
      Sized("gpt3-2.7b", 32, 2560, 32, 2048, kGpt2, 0.0),
      Sized("gpt3-6.7b", 32, 4096, 32, 2048, kGpt2, 0.0),
      Sized("gpt3-13b", 40, 5120, 40, 2048, kGpt2, 0.0),
      Sized("gpt3-175b", 96, 12288, 96, 2048, kGpt2, 0.0),
  };
}

}  // namespace penstock::graph
