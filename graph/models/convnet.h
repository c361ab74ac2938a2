// A small classifier of images. Each block has two 3 x 3 convolutions with batch normalization and
// relu, and halves the image by max pooling; the next one has twice the channels. The means of the
// last feature maps go through one linear layer.
//
// Parameters: h<i>.conv1.w, h<i>.norm1.{scale,bias}, h<i>.conv2.w, h<i>.norm2.{scale,bias},
// head.{w,b}. States: h<i>.norm<j>.{mean,variance}.

#ifndef PENSTOCK_GRAPH_MODELS_CONVNET_H_
#define PENSTOCK_GRAPH_MODELS_CONVNET_H_

#include "graph/models/model.h"

namespace penstock::graph {

Model ConvnetModel();

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_CONVNET_H_
