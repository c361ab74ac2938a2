#include "graph/models/convnet.h"

#include "base/strings.h"
#include "graph/layers.h"
#include "graph/models/classifier.h"

namespace penstock::graph {
namespace {

ModelOutputs BuildConvnet(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                          int64_t batch) {
  const bool trains = use == ModelUse::kTrain;
  LayerBuilder layers(builder, config.dtype, trains ? config.dropout : 0.0);
  ModelOutputs outputs = DeclareImages(builder, config, use, batch);
  ValueId x = outputs.images;
  for (int64_t layer = 0; layer < config.layers; ++layer) {
    const NameScope scope(builder, StrCat("h", layer));
    const int64_t channels = config.width << layer;
    for (const std::string_view which : {"1", "2"}) {
      x = layers.Conv2d(x, StrCat("conv", which), channels, /*kernel=*/3, /*stride=*/1);
      x = layers.BatchNorm(x, StrCat("norm", which), trains);
      x = builder.Add("relu", {x}, {}, StrCat("relu", which));
    }
    x = builder.Add("max_pool2d", {x}, {{"window", AttrValue::Ints({2, 2})}}, "pool");
  }
  AddClassifier(layers, x, config, use, &outputs);
  return outputs;
}

}  // namespace

Model ConvnetModel() {
  Model model;
  model.name = "convnet";
  model.summary = "small convolutional classifier of images, with batch normalization";
  model.defaults.layers = 2;
  model.defaults.width = 16;
  model.defaults.channels = 1;
  model.defaults.image = 8;
  model.defaults.classes = 10;
  model.check = [](const ModelConfig& config) { return CheckClassifier(config, config.layers); };
  model.build = BuildConvnet;
  model.sizes = {"layers", "width", "dropout", "image", "channels", "classes"};
  model.tensor_splits = {
      {.pattern = "h*.conv1.w", .dim = 0, .what = "channels"},
      {.pattern = "h*.conv2.w", .dim = 1, .what = "channels"},
  };
  model.reads_images = true;
  model.has_statistics = true;
  return model;
}

}  // namespace penstock::graph
