// Residual networks of basic blocks (He et al., "Deep residual learning for image recognition",
// arXiv:1512.03385): four stages of `layers` blocks, of which each stage but the first halves the
// image and doubles the channels. A block adds to its input what two 3 x 3 convolutions with batch
// normalization make of it; where the shape changes, the input goes through a 1 x 1 convolution.
// Images above 64 x 64 are reduced to a quarter first, by a 7 x 7 convolution and max pooling,
// smaller ones go through a 3 x 3 convolution.
//
// Parameters: stem.w, stem_norm.{scale,bias}, s<i>.h<j>.conv<k>.w, s<i>.h<j>.norm<k>.{scale,bias},
// s<i>.h0.down.w, s<i>.h0.down_norm.{scale,bias}, head.{w,b}.

#ifndef PENSTOCK_GRAPH_MODELS_RESNET_H_
#define PENSTOCK_GRAPH_MODELS_RESNET_H_

#include <vector>

#include "graph/models/model.h"

namespace penstock::graph {

Model ResnetModel();

// resnet18, for images of 224 x 224 and 1000 classes, and resnet18-32, for 32 x 32 and 10.
std::vector<Preset> ResnetPresets();

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_RESNET_H_
