// The GPT-2 architecture (Radford et al. 2019): token and learned position embeddings, pre-norm
// blocks of causal self-attention and a GELU MLP of four times the width, a final norm, and logits
// by the transposed token embedding.
//
// Initialisation as published: N(0, 0.02^2), the two projections of a block that write to the
// residual stream scaled by 1 / sqrt(2 layers), norms at one and zero, biases zero.
//
// Parameters: wte, wpe, h<i>.ln1.{scale,bias}, h<i>.attn.{qkv_w,qkv_b,proj_w,proj_b},
// h<i>.ln2.{scale,bias}, h<i>.mlp.{w1,b1,w2,b2}, ln_f.{scale,bias}.

#ifndef PENSTOCK_GRAPH_MODELS_GPT_H_
#define PENSTOCK_GRAPH_MODELS_GPT_H_

#include <vector>

#include "graph/models/model.h"

namespace penstock::graph {

Model GptModel();

// gpt-1m and its like over bytes; gpt2-* and gpt3-* with the published sizes (GPT-3: Brown et al.
// 2020, table 2.1, with the head counts and widths that are consistent where the table is not).
std::vector<Preset> GptPresets();

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_GPT_H_
