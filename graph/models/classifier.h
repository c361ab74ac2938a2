// What models that classify images share: their inputs and their last layers.
//
// Thread rule: as layers.h.

#ifndef PENSTOCK_GRAPH_MODELS_CLASSIFIER_H_
#define PENSTOCK_GRAPH_MODELS_CLASSIFIER_H_

#include "graph/layers.h"
#include "graph/models/model.h"

namespace penstock::graph {

// channels, image, classes, layers, width, dropout and dtype. A model halves the image `halvings`
// times.
absl::Status CheckClassifier(const ModelConfig& config, int64_t halvings);

// The inputs "images", [batch, channels, image, image], and "labels", i32[batch].
ModelOutputs DeclareImages(GraphBuilder& builder, const ModelConfig& config, ModelUse use,
                           int64_t batch);

// From feature maps x[n, c, h, w]: their means, dropout, the layer "head" to a logit for each
// class, and what the use asks for.
void AddClassifier(LayerBuilder& layers, ValueId x, const ModelConfig& config, ModelUse use,
                   ModelOutputs* outputs);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_CLASSIFIER_H_
