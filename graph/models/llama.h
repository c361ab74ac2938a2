// The Llama architecture (Touvron et al., arXiv:2302.13971 and 2307.09288): token embedding,
// pre-norm blocks of causal self-attention with rotary position embeddings (Su et al.,
// arXiv:2104.09864) and a SwiGLU feed-forward layer (Shazeer, arXiv:2002.05202), RMS norms (Zhang &
// Sennrich, arXiv:1910.07467), a final norm, and logits by a matrix of their own or, with
// config.is_tied, by the transposed embedding. There are no biases. Keys and values may have fewer
// heads than queries (Ainslie et al., arXiv:2305.13245).
//
// The feed-forward layer has config.hidden units; 0 stands for 8/3 of the width, rounded up to a
// multiple of 64, which makes it as large as one of four times the width with two matrices.
//
// Initialisation is that of gpt (gpt.h), norms at one.
//
// Parameters: wte, h<i>.ln1.scale, h<i>.attn.{q_w,k_w,v_w,proj_w}, h<i>.ln2.scale,
// h<i>.mlp.{gate,up,down}, ln_f.scale, and head unless it is tied.

#ifndef PENSTOCK_GRAPH_MODELS_LLAMA_H_
#define PENSTOCK_GRAPH_MODELS_LLAMA_H_

#include <cstdint>
#include <vector>

#include "graph/models/model.h"

namespace penstock::graph {

Model LlamaModel();

// llama-1m and its like over bytes; llama2-*, llama3-* and tinyllama-1.1b with the published sizes.
std::vector<Preset> LlamaPresets();

// What 0 in the config stands for.
int64_t KvHeads(const ModelConfig& config);
int64_t HiddenUnits(const ModelConfig& config);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_LLAMA_H_
