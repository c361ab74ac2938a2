// A byte-level neural language model without attention (after Bengio et al. 2003): the embeddings
// of the whole context are concatenated, mapped to the model's width, passed through pre-norm MLP
// blocks, and predict the one token that follows the context.
//
// Parameters: wte[vocabulary, min(width, 32)], in.{w,b}, h<i>.ln.{scale,bias},
// h<i>.mlp.{w1,b1,w2,b2}, ln_f.{scale,bias}, head.{w,b}.

#ifndef PENSTOCK_GRAPH_MODELS_MLP_H_
#define PENSTOCK_GRAPH_MODELS_MLP_H_

#include "graph/models/model.h"

namespace penstock::graph {

Model MlpModel();

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_MLP_H_
