#include "graph/models/resnet.h"

#include "base/strings.h"
#include "graph/layers.h"
#include "graph/models/classifier.h"

namespace penstock::graph {
namespace {

constexpr int kStages = 4;
constexpr int64_t kSmallImage = 64;

// Convolution and batch normalization.
ValueId Normalized(LayerBuilder& layers, ValueId x, std::string_view conv, std::string_view norm,
                   int64_t channels, int64_t kernel, int64_t stride, bool trains) {
  return layers.BatchNorm(layers.Conv2d(x, conv, channels, kernel, stride), norm, trains);
}

ModelOutputs BuildResnet(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                         int64_t batch) {
  const bool trains = use == ModelUse::kTrain;
  LayerBuilder layers(builder, config.dtype, trains ? config.dropout : 0.0);
  ModelOutputs outputs = DeclareImages(builder, config, use, batch);
  const bool is_small = config.image <= kSmallImage;
  ValueId x = Normalized(layers, outputs.images, "stem", "stem_norm", config.width,
                         is_small ? 3 : 7, is_small ? 1 : 2, trains);
  x = builder.Add("relu", {x}, {}, "stem_relu");
  if (!is_small) {
    x = builder.Add("max_pool2d", {x},
                    {{"window", AttrValue::Ints({3, 3})},
                     {"strides", AttrValue::Ints({2, 2})},
                     {"padding", AttrValue::Ints({1, 1})}},
                    "stem_pool");
  }
  for (int stage = 0; stage < kStages; ++stage) {
    const int64_t channels = config.width << stage;
    for (int64_t block = 0; block < config.layers; ++block) {
      const NameScope stage_scope(builder, StrCat("s", stage));
      const NameScope scope(builder, StrCat("h", block));
      const int64_t stride = stage > 0 && block == 0 ? 2 : 1;
      ValueId y = Normalized(layers, x, "conv1", "norm1", channels, 3, stride, trains);
      y = builder.Add("relu", {y}, {}, "relu1");
      y = Normalized(layers, y, "conv2", "norm2", channels, 3, 1, trains);
      if (stride > 1) x = Normalized(layers, x, "down", "down_norm", channels, 1, 2, trains);
      x = builder.Add("relu", {builder.Add("add", {x, y}, {}, "sum")}, {}, "out");
    }
  }
  AddClassifier(layers, x, config, use, &outputs);
  return outputs;
}

ModelConfig Sizes(int64_t image, int64_t classes) {
  ModelConfig config = ResnetModel().defaults;
  config.image = image;
  config.classes = classes;
  return config;
}

}  // namespace

Model ResnetModel() {
  Model model;
  model.name = "resnet";
  model.summary = "residual network of basic blocks, a classifier of images";
  model.defaults.layers = 2;
  model.defaults.width = 64;
  model.defaults.channels = 3;
  model.defaults.image = 224;
  model.defaults.classes = 1000;
  model.defaults.dropout = 0;
  model.check = [](const ModelConfig& config) {
    return CheckClassifier(config, config.image <= kSmallImage ? kStages - 1 : kStages + 1);
  };
  model.build = BuildResnet;
  model.sizes = {"layers", "width", "dropout", "image", "channels", "classes"};
  model.tensor_splits = {
      {.pattern = "s*.h*.conv1.w", .dim = 0, .what = "channels"},
      {.pattern = "s*.h*.conv2.w", .dim = 1, .what = "channels"},
  };
  model.reads_images = true;
  model.has_statistics = true;
  return model;
}

std::vector<Preset> ResnetPresets() {
  return {{"resnet18", "resnet", Sizes(224, 1000)}, {"resnet18-32", "resnet", Sizes(32, 10)}};
}

}  // namespace penstock::graph
