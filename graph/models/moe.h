// gpt (gpt.h) whose feed-forward layers are mixtures of experts (LayerBuilder::MixtureOfExperts),
// in every block or, with `expert_every` n, in every n-th one; the others have the MLP of gpt. An
// expert is as large as that MLP, without biases.
//
// A sequence is a group: an expert takes at most ceil(capacity_factor * top_k * context / experts)
// of its tokens in training, and all of them where capacity_factor is 0 and in every other use.
// Dropless layers hold places for the worst case, that all tokens choose one expert, and the
// products compute on all places, also on empty ones.
//
// Training minimises the cross-entropy plus `balance` times the balance term of each layer; the
// losses of evaluation are cross-entropies alone.
//
// Parameters: those of gpt, with h<i>.moe.{router,w1,w2} instead of h<i>.mlp.*.

#ifndef PENSTOCK_GRAPH_MODELS_MOE_H_
#define PENSTOCK_GRAPH_MODELS_MOE_H_

#include "graph/models/model.h"

namespace penstock::graph {

Model MoeModel();

// Tokens of a sequence that an expert takes.
int64_t ExpertCapacity(const ModelConfig& config, ModelUse use);

}  // namespace penstock::graph

#endif  // PENSTOCK_GRAPH_MODELS_MOE_H_
