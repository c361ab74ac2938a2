#include "graph/models/mlp.h"

#include <algorithm>
#include <cmath>

#include "base/strings.h"
#include "graph/layers.h"
#include "graph/models/config_check.h"

namespace penstock::graph {
namespace {

constexpr double kMlpStd = 0.02;
constexpr int64_t kMaxEmbedding = 32;
constexpr int64_t kMlpRatio = 4;

ModelOutputs BuildMlp(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                      int64_t batch) {
  LayerBuilder layers(builder, config.dtype, use == ModelUse::kTrain ? config.dropout : 0.0);
  const int64_t embedding = std::min(config.width, kMaxEmbedding);
  const double output_std = kMlpStd / std::sqrt(static_cast<double>(config.layers));
  const Shape ids = {batch, config.context};

  ModelOutputs outputs;
  outputs.tokens = builder.Declare("input", "tokens", {DType::kI32, ids});
  if (use != ModelUse::kPredict) {
    outputs.labels = builder.Declare("input", "labels", {DType::kI32, ids});
  }
  const ValueId wte = layers.Normal("wte", {config.vocabulary, embedding}, kMlpStd);
  ValueId x = builder.Add("reshape", {layers.Embedding(wte, outputs.tokens, "embedded")},
                          {{"shape", AttrValue::Ints({batch, config.context * embedding})}},
                          "concatenated");
  x = layers.Linear(x, "in", config.width, kMlpStd);
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const NameScope scope(builder, StrCat("h", layer));
    const ValueId mapped =
        layers.Mlp(layers.LayerNorm(x, "ln"), "mlp", kMlpRatio * config.width, kMlpStd, output_std);
    x = builder.Add("add", {x, mapped}, {}, "residual");
  }
  outputs.logits = layers.Linear(layers.LayerNorm(x, "ln_f"), "head", config.vocabulary, kMlpStd);
  if (use != ModelUse::kPredict) {
    const ValueId last = builder.Add("slice", {outputs.labels},
                                     {{"start", AttrValue::Ints({0, config.context - 1})},
                                      {"limit", AttrValue::Ints({batch, config.context})},
                                      {"stride", AttrValue::Ints({1, 1})}},
                                     "last_label");
    const ValueId next =
        builder.Add("reshape", {last}, {{"shape", AttrValue::Ints({batch})}}, "next");
    outputs.loss = builder.Add("cross_entropy", {outputs.logits, next}, {}, "losses");
    if (use == ModelUse::kTrain) {
      outputs.loss =
          builder.Add("reduce_mean", {outputs.loss}, {{"axes", AttrValue::Ints({0})}}, "loss");
    }
  }
  return outputs;
}

}  // namespace

Model MlpModel() {
  Model model;
  model.name = "mlp";
  model.summary = "next-byte model on concatenated embeddings, without attention";
  model.defaults.layers = 2;
  model.defaults.width = 256;
  model.defaults.context = 16;
  model.check = CheckModelConfig;
  model.build = BuildMlp;
  model.sizes = {"layers", "width", "context", "vocabulary", "dropout"};
  model.tensor_splits = {
      {.pattern = "wte", .dim = 0, .what = "vocabulary"},
      {.pattern = "h*.mlp.w1", .dim = 1, .what = "hidden units"},
      {.pattern = "h*.mlp.w2", .dim = 0, .what = "hidden units"},
      {.pattern = "head.w", .dim = 1, .what = "vocabulary"},
  };
  return model;
}

}  // namespace penstock::graph
