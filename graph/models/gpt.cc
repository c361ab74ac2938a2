#include "graph/models/gpt.h"

#include <utility>

#include "graph/models/transformer.h"

namespace penstock::graph {
namespace {

ModelOutputs BuildGpt(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                      int64_t batch) {
  return BuildTransformer(
      builder, config, use, batch,
      [](LayerBuilder& layers, ValueId x, int64_t /*block*/, const WeightScales& scales,
         ValueId* /*auxiliary*/) { return AddMlp(layers, x, scales); });
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
  model.check = CheckTransformer;
  model.build = BuildGpt;
  model.sizes = TransformerSizes();
  model.tensor_splits = TransformerSplits();
  model.can_generate = true;
  for (SplitHint& hint : MlpSplits()) model.tensor_splits.push_back(std::move(hint));
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
