#include "graph/models/classifier.h"

#include <cmath>

#include "base/status_macros.h"
#include "base/strings.h"
#include "graph/models/config_check.h"

namespace penstock::graph {
namespace {

constexpr int64_t kMaxImage = 1 << 14;

}  // namespace

absl::Status CheckClassifier(const ModelConfig& config, int64_t halvings) {
  RETURN_IF_ERROR(CheckModelConfig(config));
  RETURN_IF_ERROR(CheckModelSize("channels", config.channels, 1 << 16));
  RETURN_IF_ERROR(CheckModelSize("classes", config.classes));
  RETURN_IF_ERROR(CheckModelSize("image", config.image, kMaxImage));
  if (halvings > 14 || config.image >> halvings < 1) {
    return absl::InvalidArgumentError(
        StrCat("image = ", config.image, ": the model halves it ", halvings, " times"));
  }
  // Each halving doubles the channels.
  if (config.width > kMaxModelSize >> halvings) {
    return absl::InvalidArgumentError(StrCat("width = ", config.width, ": with ", halvings,
                                             " doublings it must not exceed ", kMaxModelSize));
  }
  return absl::OkStatus();
}

ModelOutputs DeclareImages(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                           int64_t batch) {
  ModelOutputs outputs;
  outputs.images = builder.Declare(
      "input", "images", {config.dtype, {batch, config.channels, config.image, config.image}});
  if (use != ModelUse::kPredict) {
    outputs.labels = builder.Declare("input", "labels", {DType::kI32, {batch}});
  }
  return outputs;
}

void AddClassifier(LayerBuilder& layers, ValueId x, const ModelConfig& config, ModelUse use,
                   ModelOutputs* outputs) {
  GraphBuilder& builder = layers.builder();
  const ValueId means = builder.Add("avg_pool2d", {x}, {}, "means");
  if (!builder.status().ok()) return;
  const Shape shape = builder.type(means).shape;
  const ValueId features = builder.Add(
      "reshape", {means}, {{"shape", AttrValue::Ints({shape[0], shape[1]})}}, "features");
  const double std = 1 / std::sqrt(static_cast<double>(shape[1]));
  outputs->logits = layers.Linear(layers.Dropout(features, "dropout"), "head", config.classes, std);
  if (use == ModelUse::kPredict) return;
  outputs->loss = builder.Add("cross_entropy", {outputs->logits, outputs->labels}, {}, "losses");
  if (use == ModelUse::kTrain) {
    outputs->loss =
        builder.Add("reduce_mean", {outputs->loss}, {{"axes", AttrValue::Ints({0})}}, "loss");
    return;
  }
  const std::vector<ValueId> best =
      builder.AddMulti("top_k", {outputs->logits}, {{"k", 1}}, "best");
  if (best.size() != 2) return;
  const ValueId guess =
      builder.Add("reshape", {best[1]}, {{"shape", AttrValue::Ints({shape[0]})}}, "guess");
  const ValueId labels =
      builder.Add("cast", {outputs->labels}, {{"dtype", DType::kI64}}, "labels_i64");
  const ValueId is_correct = builder.Add("equal", {guess, labels}, {}, "is_correct");
  outputs->correct = builder.Add("cast", {is_correct}, {{"dtype", config.dtype}}, "correct");
}

}  // namespace penstock::graph
